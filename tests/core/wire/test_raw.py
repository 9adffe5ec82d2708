"""JSON is taken apart without losing a spelling, and without ever failing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from proxy.core.wire.raw import NULL, is_empty, read_any, read_array, read_object, read_text, write

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_an_object_keeps_its_spelling() -> None:
    """Numbers, escapes and order are those that came."""
    data = b'{"b":[1.0,1e0,-0.0,12345678901234567890],"a":"\\u00e9\\/","c":{"x" : 1E-7}}'
    fields = read_object(data)
    assert fields is not None
    assert bytes(write(fields)) == data


@pytest.mark.parametrize("data", [b"[1]", b"1", b"", b"{", b'{"a":1} x', b"\xff", b"null", b"[" * 100_000])
def test_what_is_no_object_is_none(data: bytes) -> None:
    """Anything else, however broken or deep, is None."""
    assert read_object(data) is None


@pytest.mark.parametrize("data", [b"{}", b"1", b"", b"[", b"[" * 100_000])
def test_what_is_no_array_is_none(data: bytes) -> None:
    """Anything else is None."""
    assert read_array(data) is None


def test_lone_surrogates_survive() -> None:
    """An emoji cut in two stays two escapes, which whoever joins the text puts together again."""
    fields = read_object(b'{"a":"x\\ud83d","n":1}')
    assert fields is not None
    assert read_text(fields["a"]) == "x\ud83d"
    items = read_array(b'["\\ude00"]')
    assert items is not None
    joined = write((read_text(fields["a"]) or "") + (read_text(items[0]) or ""))
    assert json.loads(bytes(joined)) == "x\U0001f600"
    assert json.loads(bytes(write({"\ud800": [Raw(b"1.50"), "\ud800", None]}))) == {"\ud800": [1.5, "\ud800", None]}
    assert read_any(b'{"a":["\\ud800"]}') == {"a": ["\ud800"]}


def test_text_is_text_alone() -> None:
    """Numbers, null and nothing are no text; bytes that are no UTF-8 are replaced."""
    assert [read_text(data) for data in (b"1", b"null", None, b"{", b'"\xff"')] == [None, None, None, None, "\ufffd"]


@pytest.mark.parametrize("data", [b"null", b'""', b"[]", b"{}", b"false", b"0"])
def test_what_says_nothing(data: bytes) -> None:
    """Null and everything without content is empty."""
    assert is_empty(Raw(data))
    assert is_empty(None)
    assert not is_empty(Raw(b'"0"'))
    assert Raw(b"null") == NULL


@given(st.binary())
def test_nothing_raises(data: bytes) -> None:
    """Any bytes can be looked at."""
    read_object(data)
    read_array(data)
    read_text(data)
    read_any(data)


@given(json_values)
def test_values_come_back(value: object) -> None:
    """What is written can be read."""
    assert json.loads(bytes(write(value))) == value
    assert read_any(bytes(write(value))) == value
