"""Server-sent events as frames that keep their exact bytes.

A frame is everything up to and including the blank line that ends an event, so joining all frames and the rest gives
back the stream, byte for byte, whatever the line ends are and wherever the network cut it. Nothing is decoded here:
characters may be split over reads, and what is not looked at cannot be changed.

Three pieces leave as frames of their own, because a reader of the stream takes them for nothing:

- a byte-order mark at the very start;
- a comment or field block that holds no data;
- a lone line feed, when a frame ended in CR at the end of a read and the LF of that CRLF came with the next one.
  (Waiting for the next byte would hold back every event of a stream that ends its lines with CR alone.)
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

BOM: Final = b"\xef\xbb\xbf"

# Atomic groups: without them CR LF would also match as two line ends, and a lone CRLF as a blank line.
_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LONGEST_BLANK_LINE: Final = 4  # CR LF CR LF


class Splitter:
    """Cuts a byte stream into frames, in any split of the stream."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._scanned = 0
        self._is_started = False
        self._is_after_cr = False

    def at_boundary(self) -> bool:
        """Say whether the next byte starts a frame."""
        return not self._rest and not self._is_after_cr

    def skip(self) -> None:
        """Take note that whole frames went by without being fed."""
        self._is_started = True

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes, each with its own bytes."""
        frames: list[bytes] = []
        if self._is_after_cr and data:
            self._is_after_cr = False
            if data.startswith(b"\n"):
                frames.append(b"\n")
                data = data[1:]
        if not self._is_started:
            data = self._start(data, frames)
        if not self._rest and b"\r" not in data:
            *whole, rest = data.split(b"\n\n")
            frames += [piece + b"\n\n" for piece in whole]
            self._rest += rest
            self._scanned = 0
            return frames
        self._rest += data
        self._cut(frames)
        return frames

    def close(self) -> bytes:
        """Return what is left without a blank line after it, and forget it."""
        rest = bytes(self._rest)
        self._rest.clear()
        self._scanned = 0
        return rest

    def _start(self, data: bytes, frames: list[bytes]) -> bytes:
        """Take a byte-order mark off the front; keep a possible part of one back."""
        data = bytes(self._rest) + data
        self._rest.clear()
        if data.startswith(BOM):
            frames.append(BOM)
            data = data[len(BOM) :]
        elif BOM.startswith(data):
            self._rest += data
            return b""
        self._is_started = True
        return data

    def _cut(self, frames: list[bytes]) -> None:
        """Move whole frames from the rest to `frames`."""
        rest, start = self._rest, 0
        found = _BLANK_LINE.search(rest, self._scanned)
        while found:
            frames.append(bytes(rest[start : found.end()]))
            start = found.end()
            found = _BLANK_LINE.search(rest, start)
        self._is_after_cr = 0 < start == len(rest) and rest.endswith(b"\r")
        del rest[:start]
        self._scanned = max(0, len(rest) - _LONGEST_BLANK_LINE + 1)


class Fields(NamedTuple):
    """What a frame says: the name of its event (b"" when unnamed) and its data (None when it has none)."""

    name: bytes
    data: bytes | None


def read_frame(frame: bytes) -> Fields:
    """Return name and data of a frame; several data lines are joined by line feeds."""
    if frame.startswith(b"data:") and b"\r" not in frame:
        line, _, after = frame.partition(b"\n")
        if not after.strip(b"\n"):
            return Fields(b"", line[5:].removeprefix(b" "))
    name, lines = b"", []
    for line in _LINE_END.split(frame) if b"\r" in frame else frame.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            lines.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return Fields(name, b"\n".join(lines) if lines else None)


def write_frame(data: bytes) -> bytes:
    """Return the frame of a JSON document; line ends between its tokens become blanks."""
    if b"\n" in data or b"\r" in data:
        data = _LINE_END.sub(b" ", data)
    return b"data: " + data + b"\n\n"


def is_harmless_rest(rest: bytes) -> bool:
    """Say whether an unterminated rest is no half event: nothing but blank lines and whole comments."""
    return all(not line or line.startswith(b":") for line in _LINE_END.split(rest))
