"""How a value lies in a store: one byte that says how, then the value, plain or as a zstd frame.

A frame carries a checksum, so damaged bytes are noticed and never served as an original.
"""

from __future__ import annotations

import sys
import threading
from typing import overload

from proxy.errors import Unavailable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["PLAIN", "SMALL_BYTES", "ZSTD", "pack", "unpack", "zstd"]

PLAIN = b"\x00"
ZSTD = b"\x01"
SMALL_BYTES = 192  # below it a frame's own bytes eat up what compression saves

_OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.checksum_flag: 1,
}


class _Compressors(threading.local):
    """One compressor per thread: making one costs more than compressing a small value."""

    def __init__(self) -> None:
        self.zstd = zstd.ZstdCompressor(options=_OPTIONS)


_compressors = _Compressors()


def pack(data: bytes) -> bytes:
    """Return the stored form of a value."""
    if len(data) < SMALL_BYTES:
        return PLAIN + data
    frame = _compressors.zstd.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
    return ZSTD + frame if len(frame) < len(data) else PLAIN + data


@overload
def storable(text: str) -> str: ...
@overload
def storable(text: str | None) -> str | None: ...
def storable(text: str | None) -> str | None:
    """Replace lone surrogates, which JSON may carry and UTF-8 cannot."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()


def unpack(stored: bytes) -> bytes:
    """Return the value of a stored form; raises Unavailable if it is damaged."""
    if stored[:1] == PLAIN:
        return stored[1:]
    if stored[:1] != ZSTD:
        raise Unavailable("the store holds a value in a form that this version does not know")
    try:
        return zstd.decompress(memoryview(stored)[1:])
    except zstd.ZstdError as error:
        raise Unavailable("the store holds a damaged value") from error
