"""How values lie in a store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import Unavailable
from proxy.store.codec import SMALL_BYTES, pack, storable, unpack


@given(st.binary(max_size=2000) | st.integers(0, 5000).map(lambda n: b"text " * n))
def test_a_value_comes_back(data: bytes) -> None:
    """Unpacking gives the bytes that were packed, which never grow by more than a byte."""
    stored = pack(data)
    assert unpack(stored) == data
    assert len(stored) <= len(data) + 1


def test_text_becomes_small() -> None:
    """Repetitive text takes a fraction of its room."""
    assert len(pack(b"a line of a log\n" * 1000)) < 200


@pytest.mark.parametrize("damage", [lambda s: s[:-3], lambda s: s[:20] + b"XX" + s[22:], lambda s: s[:1] + b"junk"])
def test_damage_is_noticed(damage: object) -> None:
    """A damaged frame is never served as if it were the value."""
    assert callable(damage)
    data = bytes(range(256)) * (SMALL_BYTES // 16)
    with pytest.raises(Unavailable, match="damaged"):
        unpack(damage(pack(data)))


def test_an_unknown_form_is_refused() -> None:
    """A value written by a later version is not guessed at."""
    with pytest.raises(Unavailable, match="does not know"):
        unpack(b"\x7fdata")
    with pytest.raises(Unavailable, match="does not know"):
        unpack(b"")


@given(st.text() | st.text(alphabet=st.characters(categories=["Cs"])))
def test_any_text_can_be_stored(text: str) -> None:
    """Text stays as it is unless UTF-8 cannot carry it."""
    stored = storable(text)
    assert stored is not None
    encoded = stored.encode()
    assert stored == text or b"?" in encoded
