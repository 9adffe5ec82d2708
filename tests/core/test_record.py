"""Recorded messages survive being stored."""

from __future__ import annotations

from proxy.core.record import RecordedMessage, decode_recorded, encode_recorded


def test_what_is_written_is_what_is_read() -> None:
    """Raw bytes, refs and policies come back, whatever the bytes."""
    message = RecordedMessage(b'{"content":"\xff\\ud800"}', ((-1, "off_a"), (2, "off_b")), ("p", "q"))
    assert decode_recorded(encode_recorded(message)) == message
    assert decode_recorded(encode_recorded(RecordedMessage(b"{}"))) == RecordedMessage(b"{}")
