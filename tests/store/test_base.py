"""The values of the store protocol."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadRequest
from proxy.store.base import PAGE_LIMIT, PageRequest, StoreOptions, encode_cursor


@given(st.integers(0, (1 << 63) - 1))
def test_a_cursor_leads_back(position: int) -> None:
    """A cursor stands for the position that it was made from, and survives a URL."""
    cursor = encode_cursor(position)
    assert PageRequest(cursor=cursor).position == position
    assert cursor.replace("-", "").replace("_", "").isalnum()


@given(st.text() | st.binary().map(lambda b: b.decode("latin-1")))
def test_no_other_text_is_a_cursor(text: str) -> None:
    """What no list has given is refused as the client's mistake, whatever it is."""
    with suppress(BadRequest):
        assert PageRequest(cursor=text).position in range(1 << 63)
    with pytest.raises(BadRequest) as caught:
        _ = PageRequest(cursor=f"{text}!").position
    assert caught.value.param == "cursor"


def test_no_cursor_is_the_beginning() -> None:
    """A first page has no position."""
    assert PageRequest().position is None


@pytest.mark.parametrize(("limit", "size"), [(-1, 1), (0, 1), (7, 7), (10**9, PAGE_LIMIT)])
def test_a_page_has_bounds(limit: int, size: int) -> None:
    """A limit out of bounds is brought within them."""
    assert PageRequest(limit).size == size


def test_a_sweep_follows_the_idle_life() -> None:
    """The background expiry runs often enough for a short life, and never less than once a minute."""
    assert StoreOptions(idle_ttl=1.0).sweep_period == 0.25
    assert StoreOptions().sweep_period == 60.0
