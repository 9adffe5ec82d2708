"""Bodies are taken apart and changed without a byte moving anywhere else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.envelope import Envelope, NotAnEnvelope, Patch, Span, decode, locate, open_envelope, split_list

SPACES = st.sampled_from(["", " ", "\n", "\t \r\n"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def spelled_bodies(draw: st.DrawFn) -> tuple[bytes, list[str], dict[str, str]]:
    """A body in some spelling, its messages and its other fields as they are spelled."""
    messages = [json.dumps(m) for m in draw(st.lists(VALUES, max_size=5))]
    extra = draw(st.dictionaries(st.text(min_size=1, max_size=6), VALUES, max_size=4))
    fields = {k: json.dumps(v, ensure_ascii=draw(st.booleans())) for k, v in extra.items() if k != "messages"}
    space = [draw(SPACES) for _ in range(4)]
    listed = "[" + space[0] + (space[1] + "," + space[2]).join(messages) + space[3] + "]"
    items = [*fields.items()]
    items.insert(draw(st.integers(0, len(items))), ("messages", listed))
    pairs = [f"{space[1]}{json.dumps(k)}{space[0]}:{space[2]}{v}{space[3]}" for k, v in items]
    text = space[3] + "{" + ",".join(pairs) + "}" + space[1]
    return text.encode("utf-8", "surrogatepass"), messages, fields


def spans_of(envelope: Envelope) -> list[Span]:
    """Where the messages lie."""
    items = split_list(envelope.fields["messages"])
    return locate(envelope.body, envelope.spans["messages"].start + 1, items)


@given(spelled_bodies())
def test_every_element_is_found_where_it_lies(spelled: tuple[bytes, list[str], dict[str, str]]) -> None:
    """Whatever the spelling, the spans hold exactly the messages, and the untouched body comes back as it is."""
    body, messages, _ = spelled
    envelope = open_envelope(body)
    raws = split_list(envelope.fields["messages"])
    assert raws == [m.encode() for m in messages]
    assert [body[s.start : s.stop] for s in spans_of(envelope)] == raws
    assert Patch(envelope).apply() is body


@given(spelled_bodies(), st.data())
def test_a_change_moves_nothing_else(spelled: tuple[bytes, list[str], dict[str, str]], data: st.DataObject) -> None:
    """Replacing one message and appending a tool changes just that: cutting both out again gives the old bytes."""
    body, messages, fields = spelled
    envelope = open_envelope(body)
    patch = Patch(envelope)
    patch.append_element("tools", b'{"new":1}')
    if messages:
        at = data.draw(st.integers(0, len(messages) - 1))
        patch.replace(spans_of(envelope)[at], b'"NEW"')
    changed = json.loads(patch.apply().decode("utf-8", "surrogatepass"))
    want = json.loads(body.decode("utf-8", "surrogatepass"))
    tools = want.get("tools")
    want["tools"] = [*tools, {"new": 1}] if isinstance(tools, list) else [{"new": 1}]
    if messages:
        want["messages"][at] = "NEW"
    assert changed == want
    for name, spelling in fields.items():
        if name != "tools":
            assert spelling.encode("utf-8", "surrogatepass") in patch.apply()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"messages":1}',
        b'{"messages":[1],"messages":[2]}',
        b'{"a":1,"messages":[],"a":1}',
        b'{"messages":[1,2]} trailing',
        b'{"messages":[1,}',
        b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"\xff\xfe",
    ],
)
def test_what_cannot_be_taken_apart_is_refused(body: bytes) -> None:
    """No JSON, no object, no list of messages, repeated keys and abysmal nesting are told apart from envelopes."""
    with pytest.raises(NotAnEnvelope):
        open_envelope(body)


def test_lone_surrogates_and_nan_take_the_slow_way() -> None:
    """Spellings that the fast parser refuses are still taken apart, byte for byte."""
    first, second = b'{"content":"\\ud83d alone"}', b'{"n":NaN}'
    body = b'{"model":"m\\udc00","messages":[' + first + b" , " + second + b"]}"
    envelope = open_envelope(body)
    assert split_list(envelope.fields["messages"]) == [first, second]
    assert envelope.value("model") == "m\udc00"
    assert [body[s.start : s.stop] for s in spans_of(envelope)] == [first, second]


def test_an_absent_null_or_empty_list_is_made() -> None:
    """A tool goes into a new list where there was none, and the rest of the body stays."""
    for body in (b'{"messages":[]}', b'{"tools":null,"messages":[]}', b'{"tools":[ ],"messages":[]}'):
        patch = Patch(open_envelope(body))
        patch.append_element("tools", b"1")
        assert json.loads(patch.apply()) == {"messages": [], "tools": [1]}


def test_null_is_not_set() -> None:
    """A field that is null counts as absent."""
    envelope = open_envelope(b'{"messages":[],"a":null,"b":0}')
    assert [envelope.is_set(n) for n in ("a", "b", "c")] == [False, True, False]


def test_decode_gives_none_for_what_is_no_json() -> None:
    """Broken values decode to None instead of raising."""
    assert decode(b"{") is None
    assert decode(b'"\\ud800"') == "\ud800"


def test_split_list_refuses_other_values() -> None:
    """Only lists are split."""
    with pytest.raises(NotAnEnvelope):
        split_list(b'{"a":1}')
    assert split_list(b'["\\ud800", 1]') == [b'"\\ud800"', b"1"]


def test_spans_are_half_open() -> None:
    """A span with equal ends inserts."""
    patch = Patch(open_envelope(b'{"messages":[]}'))
    patch.replace(Span(13, 13), b"1")
    assert patch.apply() == b'{"messages":[1]}'
