"""Rows: the numbered pieces in which an original is read back and searched.

A row is a line, or a piece of at most 2,000 characters of a longer one. Lines end at line feeds only, so
every other character, carriage returns included, is part of a row. Two rules make a text exact again: a row
that continues is joined to the next with nothing between, any other with a line feed.

A row also has a limit in bytes. A token is at least one byte, so a row within the token budget of an answer
by its bytes always fits that answer, whatever its characters are, and paging can promise both exactness and
progress. The limit touches only lines of characters outside the basic plane, unless an answer may be very
small.

Searching is by line, not by row: a match may run across the pieces of a long line and counts for the row in
which it begins. Blocks keep one search short, so that a matcher can look at its own clock between two of
them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, Protocol

from msgspec import Struct

ROW_CHARS: Final = 2_000
ROW_BYTES: Final = 7_900
BLOCK_CHARS: Final = 32_768
_WIDEST: Final = 4  # bytes of the longest character in UTF-8


class Row(Struct, frozen=True, gc=False):
    """One row: its text, and whether the line goes on in the next row."""

    text: str
    continues: bool


class PatternError(ValueError):
    """A pattern cannot be used; the text says why, in words for the model."""


class Matcher(Protocol):
    """A compiled pattern. Line feeds are never part of a match; `^` and `$` stand at the ends of lines."""

    def find(self, data: bytes, start: int) -> int:
        """Return where the first match that begins at byte `start` or later begins, or -1.

        Raises `PatternError` when the search takes too much work.
        """


class Block(Struct, frozen=True, gc=False):
    """Text to search, from row `row` on, for matches that begin from byte `start` up to `stop`."""

    row: int
    data: bytes
    start: int
    stop: int


class Rows(Sequence[Row]):
    """The rows of a text by number, counted from zero, without building all of them."""

    def __init__(self, text: str, most_bytes: int = ROW_BYTES) -> None:
        """Split `text` so that no row is over `most_bytes` (at least 4) in UTF-8."""
        self._lines = text.split("\n")
        self._widths: list[int] = []
        self._firsts: Sequence[int] = range(len(self._lines))
        self._total = len(self._lines)
        if max(map(len, self._lines)) > min(ROW_CHARS, most_bytes // _WIDEST):
            self._widths = [_width(line, most_bytes) for line in self._lines]
            ends = list(accumulate(map(_pieces, self._lines, self._widths), initial=0))
            self._firsts, self._total = ends[:-1], ends[-1]

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, index: int) -> Row:  # type: ignore[override]  # slices of rows are never needed
        if not 0 <= index < self._total:
            raise IndexError(index)
        at = bisect_right(self._firsts, index) - 1
        line = self._lines[at]
        if not self._is_split(at):
            return Row(line, continues=False)
        width = self._widths[at]
        begin = (index - self._firsts[at]) * width
        return Row(line[begin : begin + width], continues=begin + width < len(line))

    def blocks(self) -> Iterator[Block]:
        """Yield the whole text in blocks to search, in order."""
        begin = size = 0
        for at, line in enumerate(self._lines):
            if self._is_split(at):
                yield from self._short_lines(begin, at)
                yield from self._long_line(at)
                begin, size = at + 1, 0
                continue
            size += len(line) + 1
            if size >= BLOCK_CHARS:
                yield from self._short_lines(begin, at + 1)
                begin, size = at + 1, 0
        yield from self._short_lines(begin, len(self._lines))

    def _is_split(self, at: int) -> bool:
        return bool(self._widths) and len(self._lines[at]) > self._widths[at]

    def _short_lines(self, begin: int, end: int) -> Iterator[Block]:
        if begin < end:
            data = to_bytes("\n".join(self._lines[begin:end]))
            yield Block(self._firsts[begin], data, 0, len(data) + 1)

    def _long_line(self, at: int) -> Iterator[Block]:
        line, width = self._lines[at], self._widths[at]
        for number, begin in enumerate(range(0, len(line), width)):
            # One character before, for `^` and `\b`; a stretch behind, for matches that run on.
            before = to_bytes(line[max(0, begin - 1) : begin])
            piece = to_bytes(line[begin : begin + width])
            behind = to_bytes(line[begin + width : begin + width + ROW_CHARS])
            stop = len(before) + len(piece) + (not behind)
            yield Block(self._firsts[at] + number, before + piece + behind, len(before), stop)


def to_bytes(text: str) -> bytes:
    """Return the text in UTF-8, lone surrogates kept."""
    return text.encode("utf-8", "surrogatepass")


def split_rows(text: str, most_bytes: int = ROW_BYTES) -> list[Row]:
    """Return all rows of a text."""
    return list(Rows(text, most_bytes))


def join_rows(rows: Sequence[Row]) -> str:
    """Return the text that the rows came from."""
    return "".join(row.text if row.continues else row.text + "\n" for row in rows).removesuffix("\n")


def count_lines(text: str) -> int:
    """Return how many lines a text has; what follows the last line feed is a line, even when it is empty."""
    return text.count("\n") + 1


def find_rows(rows: Rows, matcher: Matcher, most: int) -> list[int]:
    """Return the numbers, from zero, of the first `most` rows in which a match begins."""
    found: list[int] = []
    for block in rows.blocks():
        for number in _search(block, matcher):
            found.append(number)
            if len(found) >= most:
                return found
    return found


def _search(block: Block, matcher: Matcher) -> Iterator[int]:
    """Yield the rows of one block that match; in a piece of a long line that is at most one."""
    row, position = block.row, block.start
    while True:
        hit = matcher.find(block.data, position)
        if not 0 <= hit < block.stop:
            return
        row += block.data.count(b"\n", position, hit)
        yield row
        end = block.data.find(b"\n", hit)
        if end < 0:
            return
        row, position = row + 1, end + 1


def _width(line: str, most_bytes: int) -> int:
    """Return how many characters of this line make a row."""
    if len(line) <= min(ROW_CHARS, most_bytes // _WIDEST):
        return ROW_CHARS
    widest = 1 if line.isascii() else len(to_bytes(max(line)))
    return max(1, min(ROW_CHARS, most_bytes // widest))


def _pieces(line: str, width: int) -> int:
    return max(1, -(-len(line) // width))
