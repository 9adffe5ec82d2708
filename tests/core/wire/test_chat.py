"""What Chat Completions messages say, by meaning, and how one text is changed in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.history import Facts, digest, text_bytes
from proxy.core.wire.chat import WHOLE, ChatAdapter
from proxy.core.wire.raw_fields import encode_text, split_fields

CHAT = ChatAdapter()


def facts(message: object, **dump: Any) -> Facts:
    """Facts of a message in some spelling."""
    return CHAT.facts(json.dumps(message, **dump).encode(), b"key")


def call(arguments: object, **more: Any) -> dict[str, Any]:
    """An assistant message with one call."""
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}, **more}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


SAME = [
    ({"role": "user", "content": "é"}, {"content": [{"type": "text", "text": "é"}], "role": "user"}),
    ({"role": "assistant", "content": "a "}, {"role": "assistant", "content": "a", "refusal": None}),
    ({"role": "assistant", "content": None}, {"role": "assistant"}),
    ({"role": "assistant", "content": ""}, {"role": "assistant", "content": None, "annotations": []}),
    ({"role": "assistant", "content": "a", "reasoning_content": "r"}, {"role": "assistant", "content": "a"}),
    (
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "tool", "tool_call_id": "2", "content": "x"},
    ),
    (call('{"a": 1.0,"b":2}'), call('{"b":2,"a":1}')),
    (call('{"a":1}', id="other"), call({"a": 1})),
    (
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "x"},
    ),
    ({"role": "system", "content": "x"}, {"role": "developer", "content": "x"}),
]


@pytest.mark.parametrize(("one", "two"), SAME)
def test_other_spellings_of_one_meaning_match(one: object, two: object) -> None:
    """Clients that re-serialise, drop fields, change ids or move cache markers are recognised."""
    assert facts(one).match == facts(two, indent=2, ensure_ascii=False).match


OTHER = [
    ({"role": "user", "content": "a"}, {"role": "user", "content": "a "}),
    ({"role": "user", "content": "a"}, {"role": "tool", "content": "a"}),
    ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}),
    (call('{"a":1}'), call('{"a":2}')),
    (call("not json"), call("not json!")),
    ({"role": "assistant", "content": "x"}, {**call("{}"), "content": "x"}),
    (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:a"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:b"}}]},
    ),
]


@pytest.mark.parametrize(("one", "two"), OTHER)
def test_other_meanings_do_not_match(one: object, two: object) -> None:
    """Text, role, calls and images tell messages apart."""
    assert facts(one).match != facts(two).match


def test_slots_are_the_texts_of_results_and_users() -> None:
    """Each text part of a user or tool message is a slot with its exact digest; nothing else is."""
    parts = [
        {"type": "text", "text": "one"},
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "text", "text": "é"},
    ]
    slots = facts({"role": "user", "content": parts}).slots
    assert [(s.at, s.kind, s.size_bytes) for s in slots] == [(0, "user", 3), (2, "user", 2)]
    assert slots[1].exact == digest("é".encode())
    result = facts({"role": "tool", "tool_call_id": "z", "content": "r"})
    assert [(s.at, s.kind, s.call_id) for s in result.slots] == [(WHOLE, "result", "z")]
    assert facts({"role": "assistant", "content": "a"}).slots == ()
    assert facts({"role": "system", "content": "a"}).slots == ()


@pytest.mark.parametrize(
    "raw",
    [b"1", b"[]", b"null", b"{}", b'{"role":5}', b'{"role":"user","content":7}', b'{"role":"alien","content":[1,null]}',
     b'{"role":"assistant","tool_calls":7}', b'{"role":"assistant","tool_calls":[1,{"function":3}]}',
     b'{"role":"tool","tool_call_id":[],"content":{"a":1}}', b'{"role":"user","content":"\\ud800"}'],
)  # fmt: skip
def test_odd_messages_have_facts(raw: bytes) -> None:
    """Shapes that nobody documented are described as well as can be, never refused."""
    assert CHAT.facts(raw, b"k").match


def test_exact_digests_tell_what_matching_forgives() -> None:
    """Trailing blanks and lone surrogates are part of the exact text."""
    assert facts({"role": "user", "content": "a\ud800"}).slots[0].exact == digest(text_bytes("a\ud800"))


TEXTS = st.text(st.characters(codec=None), max_size=20)


@given(TEXTS, TEXTS)
def test_a_replaced_string_leaves_the_rest(old: str, new: str) -> None:
    """A string stays a string, all other fields keep their bytes, and the new text is what comes out."""
    raw = b'{"zz":{"b":1.0,"a":[]} , "role":"tool","content": ' + encode_text(old) + b',"tool_call_id":"\\u00e9"}'
    assert CHAT.text(raw, WHOLE) == old
    changed = CHAT.replace_texts(raw, {WHOLE: new})
    assert CHAT.text(changed, WHOLE) == new
    assert b'{"b":1.0,"a":[]}' in changed
    assert [*split_fields(changed)] == ["zz", "role", "content", "tool_call_id"]


def test_replaced_parts_stay_parts() -> None:
    """Parts keep their number, order, markers and neighbours."""
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "text", "text": "b"},
    ]
    raw = json.dumps({"role": "user", "content": parts}).encode()
    changed = json.loads(CHAT.replace_texts(raw, {0: "A", 2: "B"}))
    assert changed["content"] == [{**parts[0], "text": "A"}, parts[1], {**parts[2], "text": "B"}]


def test_images_do_not_count_as_text() -> None:
    """A megabyte of base64 is a picture's worth of tokens."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    assert facts({"role": "user", "content": [image]}).estimated_tokens < 6000
    assert facts({"role": "user", "content": "A" * 400}).estimated_tokens > 100


def test_what_a_tokenizer_counts() -> None:
    """Texts, call names and arguments are counted, pictures by their size, base64 never."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}
    texts, media = CHAT.countable(
        json.dumps({"role": "user", "content": [{"type": "text", "text": "x"}, image]}).encode()
    )
    assert texts == ["x"]
    assert 500 < media < 2000
    texts, _ = CHAT.countable(json.dumps({**call('{"a":1}'), "reasoning_content": "hm"}).encode())
    assert texts == ["f", '{"a":1}', "hm"]


def test_inputs_are_slots_of_their_own() -> None:
    """Long texts in a call's input can be moved out like any other, and the arguments stay JSON."""
    raw = json.dumps(call(json.dumps({"path": "a", "content": "y" * 300}))).encode()
    (slot,) = CHAT.facts(raw, b"k").slots
    assert (slot.kind, CHAT.text(raw, slot.at)) == ("input", "y" * 300)
    changed = json.loads(CHAT.replace_texts(raw, {slot.at: "short"}))
    assert json.loads(changed["tool_calls"][0]["function"]["arguments"]) == {"path": "a", "content": "short"}
    assert changed["content"] is None


def test_what_is_no_text_is_named() -> None:
    """A file by its name as well, so that a record of it says which one it was."""
    parts = [{"type": "file", "file": {"filename": "a.pdf"}}, {"type": "image_url"}, {"type": "file", "file": 7}, 3]
    raw = json.dumps({"role": "user", "content": parts}).encode()
    assert CHAT.describe(raw, 0, None).text == "[file a.pdf]\n[image_url]\n[file]\n3"
