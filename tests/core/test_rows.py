"""Rows: splitting, joining and searching."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.rows import (
    BLOCK_CHARS,
    ROW_CHARS,
    Row,
    Rows,
    count_lines,
    find_rows,
    join_rows,
    split_rows,
    to_bytes,
)

TEXTS = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="a\n\r é🙂\ud800", max_size=300),
    st.lists(st.tuples(st.sampled_from("ab \n\r🙂é"), st.integers(1, 5_000)), max_size=6).map(
        lambda runs: "".join(char * number for char, number in runs),
    ),
)


class Finder:
    """A matcher on the standard library's engine, for patterns that cannot match a line feed."""

    def __init__(self, pattern: bytes) -> None:
        self.pattern = re.compile(pattern, re.MULTILINE)

    def find(self, data: bytes, start: int) -> int:
        """Return where the next match begins."""
        found = self.pattern.search(data, start)
        return found.start() if found else -1


def numbers(text: str, pattern: bytes, most: int = 1_000_000) -> list[int]:
    """Return the rows of a text that match, from zero."""
    return find_rows(Rows(text), Finder(pattern), most)


@given(TEXTS, st.sampled_from([64, 150, 1_000, 7_900, 100_000]))
def test_rows_put_together_are_the_text(text: str, most_bytes: int) -> None:
    """Joining what continues with nothing and the rest with a line feed gives the text again."""
    rows = split_rows(text, most_bytes)
    assert join_rows(rows) == text
    assert len(rows) == len(Rows(text, most_bytes))


@given(TEXTS, st.sampled_from([64, 150, 1_000, 7_900, 100_000]))
def test_rows_keep_both_limits(text: str, most_bytes: int) -> None:
    """No row has more than 2,000 characters or more bytes than allowed, and none holds a line feed."""
    for row in split_rows(text, most_bytes):
        assert len(row.text) <= ROW_CHARS
        assert len(to_bytes(row.text)) <= most_bytes
        assert "\n" not in row.text


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [Row("", continues=False)]),
        ("a\n", [Row("a", continues=False), Row("", continues=False)]),
        ("a\r\nb\x0bc\u2028d", [Row("a\r", continues=False), Row("b\x0bc\u2028d", continues=False)]),
        ("x" * 2_000, [Row("x" * 2_000, continues=False)]),
        ("x" * 2_001, [Row("x" * 2_000, continues=True), Row("x", continues=False)]),
        ("世" * 2_000, [Row("世" * 2_000, continues=False)]),
    ],
)
def test_a_row_is_a_line_or_a_piece_of_a_long_one(text: str, rows: list[Row]) -> None:
    """Lines end at line feeds only, and only lines of more than 2,000 characters are split."""
    assert split_rows(text) == rows


def test_rows_are_found_by_number() -> None:
    """A row is found among split and whole lines, and no number outside is answered."""
    rows = Rows("a\n" + "b" * 4_500 + "\nc")
    assert [len(rows[number].text) for number in range(len(rows))] == [1, 2_000, 2_000, 500, 1]
    assert [rows[number].continues for number in range(len(rows))] == [False, True, True, False, False]
    for number in (-1, 5):
        with pytest.raises(IndexError):
            rows[number]


def test_lines_are_counted_as_rows_are() -> None:
    """What follows the last line feed is a line."""
    assert [count_lines(text) for text in ("", "a", "a\n", "\n\n")] == [1, 1, 2, 3]


@given(st.lists(st.text(alphabet="ab c", max_size=8), min_size=1, max_size=40), st.integers(0, 3))
def test_searching_finds_the_lines_that_a_look_at_each_line_finds(lines: list[str], filler: int) -> None:
    """Over short lines, in one block or several, the rows found are the lines that match."""
    lines = lines + [" " * 1_999] * (filler * BLOCK_CHARS // 2_000) + lines
    for pattern in (b"ab", b"^a", b"b$", b"^$", rb"\bc\b", b"a.*b"):
        expected = [at for at, line in enumerate(lines) if re.search(pattern, line.encode())]
        assert numbers("\n".join(lines), pattern) == expected


def test_a_match_counts_for_the_row_in_which_it_begins() -> None:
    """In a long line every row has its own hit, and a match over the seam of two rows is found."""
    text = "head\n" + "x" * 1_998 + "needle" + "x" * 3_000 + "needle" + "\nneedle"
    assert numbers(text, b"needle") == [1, 3, 4]
    assert numbers(text, b"^x") == [1]
    assert numbers(text, b"needle$") == [3, 4]
    assert numbers(text, b"^needle") == [4]
    assert numbers("é" * 5_000, "é".encode()) == [0, 1, 2]


def test_searching_stops_at_the_number_wanted() -> None:
    """No more hits are gathered than asked for."""
    assert numbers("a\n" * 100, b"a", most=7) == list(range(7))
