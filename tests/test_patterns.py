"""Patterns from models: what they may cost and what is said about bad ones."""

from __future__ import annotations

import itertools

import pytest

from proxy.core.rows import Rows, find_rows
from proxy.patterns import PATTERN_CHARS, PatternError, compile_pattern


def rows(text: str, pattern: str) -> list[int]:
    """Return the rows of a text that match, from zero."""
    return find_rows(Rows(text), compile_pattern(pattern), 1_000)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("b", [1, 3]),
        ("^b$", [1]),
        ("(?i)B", [1, 3]),
        ("^$", [2]),
        ("é", [4]),
        ("(?i)É", [4]),
        ("a[^x]*b", [3]),
        (r"a\s+b", []),
        ("a\nb", []),
        ("", [0, 1, 2, 3, 4]),
        ("nothing", []),
    ],
)
def test_a_match_stays_in_one_line(pattern: str, expected: list[int]) -> None:
    """`^` and `$` stand at the ends of lines, and nothing in a pattern matches a line feed."""
    assert rows("a\nb\n\na b\né", pattern.replace(r"a\s+b", r"a\s\s+b")) == expected


def test_half_a_surrogate_pair_in_the_text_is_no_obstacle() -> None:
    """Text that is not valid UTF-8 is searched all the same."""
    assert rows("x\ud800y\nz", "y") == [0]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("([", "missing ]"),
        ("(", "missing \\)"),
        ("(?=x)", "look-around"),
        (r"(a)\1", "back-references"),
        ("x{1001}", "repetition"),
        ("a" * (PATTERN_CHARS + 1), "characters"),
        ("((a{30}){30}){30}", "repetition"),
        ("[ab]{0,1000}[ac]{0,1000}[ad]{0,1000}c", "too large"),
        (r"(\pL|\pN){1,900}", "too large"),
        ("\ud800", "surrogate"),
    ],
)
def test_a_bad_pattern_says_what_is_wrong(
    pattern: str,
    words: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The message names the fault, and RE2 writes nothing to standard error."""
    with pytest.raises(PatternError, match=words) as raised:
        compile_pattern(pattern)
    assert "(?m)" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_a_search_is_given_up_when_its_time_is_over() -> None:
    """A search that takes too long by the clock ends with a message instead of going on."""
    matcher = compile_pattern("x", clock=itertools.count(0, 1).__next__)
    with pytest.raises(PatternError, match="too long"):
        find_rows(Rows("y" * 1_000_000), matcher, 1_000)


def test_a_costly_pattern_ends() -> None:
    """A pattern over which back-tracking engines do not end is answered over a megabyte."""
    assert rows("a" * 1_000_000, "(a|aa|a?)+b") == []
