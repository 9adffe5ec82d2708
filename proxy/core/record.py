"""The record of a session: every message as it was received, with what edits took out kept by reference."""

from __future__ import annotations

import msgspec


class RecordedMessage(msgspec.Struct, frozen=True):
    """A message in the form it was first sent upstream; `edits` are (number of the text, ref of its original)."""

    raw: bytes
    edits: tuple[tuple[int, str], ...] = ()
    policies: tuple[str, ...] = ()


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(RecordedMessage)


def encode_recorded(message: RecordedMessage) -> bytes:
    """Return the stored form."""
    return _ENCODER.encode(message)


def decode_recorded(data: bytes) -> RecordedMessage:
    """Return the message of a stored form."""
    return _DECODER.decode(data)
