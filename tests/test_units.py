"""Sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.units import Size, parse_share, parse_size


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("50%", Size(share=0.5)),
        ("12.5 %", Size(share=0.125)),
        (100_000, Size(tokens=100_000)),
        ("100000", Size(tokens=100_000)),
        ({"share": "50%", "tokens": 9}, Size(share=0.5, tokens=9)),
        ({"tokens": 9}, Size(tokens=9)),
    ],
)
def test_sizes_are_read_in_all_their_forms(written: object, size: Size) -> None:
    """A share, a number of tokens, and a table of both."""
    assert parse_size(written) == size


@pytest.mark.parametrize("written", ["", "half", "0%", "101%", 0, -5, True, 0.5, None, [1]])
def test_what_is_no_size_is_refused(written: object) -> None:
    """Anything else is refused with an example of what to write."""
    with pytest.raises(ValueError, match="; write "):
        parse_size(written)


def test_a_size_is_the_smaller_of_share_and_tokens() -> None:
    """Share and tokens together: whichever is reached first; an unknown window leaves the tokens."""
    size = Size(share=0.5, tokens=100_000)
    assert size.within(128_000) == 64_000
    assert size.within(1_000_000) == 100_000
    assert size.within(None) == 100_000
    assert Size(share=0.5).within(None) is None
    assert Size(share=0.5).within(9) == 4


@given(st.integers(1, 100), st.integers(1, 10_000_000))
def test_a_share_never_exceeds_the_window(percent: int, window: int) -> None:
    """No share of a window is larger than the window."""
    within = Size(share=parse_share(f"{percent}%")).within(window)
    assert within is not None
    assert 0 <= within <= window
