"""Texts in the inputs of calls: found, read and replaced without touching the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.wire.chat_inputs import INPUTS, input_slots, input_text, replace_inputs
from proxy.core.wire.raw_fields import encode_text

TEXTS = st.text(st.characters(codec=None), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def call(arguments: object, kind: str = "function") -> dict[str, Any]:
    """Return a call with these arguments."""
    field = "input" if kind == "custom" else "arguments"
    return {"id": "c", "type": kind, kind: {"name": "f", field: arguments}, "x": 1.0}


def leaves(value: object) -> list[str]:
    """Return the string values in a JSON value, in order of appearance."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [leaf for item in inner for leaf in leaves(item)]


@given(st.lists(VALUES, min_size=1, max_size=3), st.booleans(), st.sampled_from([None, 2]))
def test_leaves_are_the_string_values_in_order(values: list[Any], ascii_only: bool, indent: int | None) -> None:
    """However arguments are spelled, each string value is one slot, and keys are none."""
    calls = [call(json.dumps(v, ensure_ascii=ascii_only, indent=indent)) for v in values]
    slots = list(input_slots(calls))
    assert [text for _, text in slots] == [leaf for v in values for leaf in leaves(json.loads(json.dumps(v)))]
    assert all(at >= INPUTS and input_text(calls, at) == text for at, text in slots)


@given(VALUES, TEXTS, st.data())
def test_one_leaf_is_replaced_and_the_rest_keeps_its_bytes(value: Any, new: str, data: st.DataObject) -> None:
    """The arguments stay the JSON that they were, but for one text."""
    arguments = json.dumps(value, indent=1)
    calls = [call(arguments)]
    slots = list(input_slots(calls))
    if not slots:
        return
    at, old = data.draw(st.sampled_from(slots))
    raw = b"[" + b"{" + f'"n": 1.0, "function":{{"arguments":{json.dumps(arguments)}}}'.encode() + b"}]"
    changed = replace_inputs(raw, {at: new})
    assert b'"n":1.0' in changed
    after = json.loads(changed)[0]["function"]["arguments"]
    expected = [new if a == at else text for a, text in slots]
    assert leaves(json.loads(after)) == expected
    spelled = json.dumps(old)
    if arguments.count(spelled) == 1:
        before, _, behind = arguments.partition(spelled)
        assert after == before + encode_text(new).decode() + behind


@pytest.mark.parametrize("arguments", ["", "not json", '{"a":"cut', None, {"a": "object"}, 7, '{"a":1,}'])
def test_what_is_no_json_text_has_no_leaves(arguments: object) -> None:
    """Broken arguments, and such that are no text, are left alone."""
    assert list(input_slots([call(arguments)])) == []


def test_odd_calls_have_no_leaves() -> None:
    """Neither have calls of unknown shape."""
    assert list(input_slots(None)) == list(input_slots([1, {}, {"function": 3}, {"function": {}}])) == []


def test_a_custom_input_is_one_leaf() -> None:
    """Free text is replaced whole."""
    calls = [call('{"a":"b"}', "custom")]
    assert list(input_slots(calls)) == [(INPUTS, '{"a":"b"}')]
    changed = json.loads(replace_inputs(json.dumps(calls).encode(), {INPUTS: "new"}))
    assert changed == [call("new", "custom")]
