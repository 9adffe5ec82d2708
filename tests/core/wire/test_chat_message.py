"""Messages put together from deltas are what the upstream would have sent whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.calls import Calls
from proxy.core.wire.chat_message import Draft, join_messages, texts_of, with_calls
from proxy.core.wire.raw import Fields, read_object, write
from tests.core.wire.test_raw import json_values
from tests.playbook import TOOL, tool_call

Delta = dict[str, Any]


def fields(delta: Delta) -> Fields:
    """Return a delta undecoded."""
    return read_object(write(delta)) or {}


def decoded(message: Fields) -> Any:
    """Return a message decoded."""
    return json.loads(bytes(write(message)))


def draft(*deltas: Delta, beside_calls: bool = False) -> Any:
    """Return the message that deltas add up to."""
    collected = Draft()
    for delta in deltas:
        collected.add(fields(delta))
    return decoded(collected.message(beside_calls=beside_calls))


MESSAGES: dict[str, tuple[list[Delta], Delta]] = {
    "text": ([{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}], {"content": "ab"}),
    "null": ([{"role": "assistant", "content": None}, {}], {"content": None}),
    "null and text": ([{"content": None}, {"content": "a"}, {"content": None}], {"content": "a"}),
    "no content": ([{"role": "assistant"}], {}),
    "role repeated": (
        [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
        {"content": "ab"},
    ),
    "reasoning": (
        [{"reasoning_content": "a", "reasoning": "x"}, {"reasoning_content": "b"}],
        {"reasoning_content": "ab", "reasoning": "x"},
    ),
    "empty reasoning stays": ([{"reasoning_content": ""}, {"content": "a"}], {"reasoning_content": "", "content": "a"}),
    "reasoning details": (
        [
            {"reasoning_details": [{"type": "reasoning.text", "text": "a", "index": 0, "signature": None}]},
            {"reasoning_details": [{"type": "reasoning.text", "text": "b", "index": 0}]},
            {"reasoning_details": [{"type": "reasoning.text", "signature": "s==", "index": 0}]},
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "zz", "index": 1, "id": "r1"}]},
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "yy", "index": 1, "id": "r2"}]},
        ],
        {
            "reasoning_details": [
                {"type": "reasoning.text", "text": "ab", "index": 0, "signature": "s=="},
                {"type": "reasoning.encrypted", "data": "zz", "index": 1, "id": "r1"},
                {"type": "reasoning.encrypted", "data": "yy", "index": 1, "id": "r2"},
            ]
        },
    ),
    "thinking blocks": (
        [
            {"thinking_blocks": [{"type": "thinking", "thinking": "a"}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": "b", "signature": "s=="}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": "c"}]},
        ],
        {
            "thinking_blocks": [
                {"type": "thinking", "thinking": "ab", "signature": "s=="},
                {"type": "thinking", "thinking": "c"},
            ]
        },
    ),
    "parts, then text": (
        [
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "b"}]}]},
            {"content": "c"},
            {"content": ""},
            {"content": "d"},
        ],
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "ab"}]},
                {"type": "text", "text": "cd"},
            ]
        },
    ),
    "objects": (
        [{"audio": {"id": "a", "data": "x"}}, {"audio": {"data": "y", "transcript": "t"}}, {"audio": {"id": "a"}}],
        {"audio": {"id": "a", "data": "xy", "transcript": "t"}},
    ),
    "unknown": ([{"x_d": None, "n": 1}, {"n": 2, "l": [1]}, {"l": [2]}], {"x_d": None, "n": 2, "l": [1, 2]}),
    "legacy call": (
        [{"function_call": {"name": "f", "arguments": ""}}, {"function_call": {"arguments": "{}"}}],
        {"function_call": {"name": "f", "arguments": "{}"}},
    ),
    "an emoji cut in two": ([{"content": "\ud83d"}, {"content": "\ude00"}], {"content": "\U0001f600"}),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_deltas_add_up(kind: str) -> None:
    """Text is appended, parts are continued, objects merged, and null is null only where nothing came."""
    deltas, expected = MESSAGES[kind]
    assert draft(*deltas) == {"role": "assistant", **expected}


def test_calls_are_collected_elsewhere() -> None:
    """A draft holds everything but the calls."""
    assert draft({"content": "a", "tool_calls": [1]}) == {"role": "assistant", "content": "a"}


def test_no_text_beside_calls_is_null() -> None:
    """A stream says "" where a whole answer says null, and some providers refuse empty text."""
    assert draft({"content": ""}, beside_calls=True)["content"] is None
    assert draft({"content": ""})["content"] == ""
    assert draft({"content": "a"}, beside_calls=True)["content"] == "a"


def test_a_draft_knows_whether_there_is_text() -> None:
    """Nulls and empty strings are none."""
    collected = Draft()
    collected.add(fields({"content": "", "reasoning": "x"}))
    collected.add(fields({"content": None}))
    assert not collected.has_content()
    collected.add(fields({"content": "a"}))
    assert collected.has_content()


def test_long_messages_are_joined_as_they_come() -> None:
    """Ten thousand deltas give the same text as one, without keeping ten thousand chunks."""
    collected = Draft()
    for number in range(10_000):
        collected.add(fields({"content": f"{number} ", "reasoning": None}))
    assert decoded(collected.message(beside_calls=False)) == {
        "role": "assistant",
        "content": "".join(f"{number} " for number in range(10_000)),
        "reasoning": None,
    }


def test_a_message_with_and_without_calls() -> None:
    """Calls are put in or taken out; all else stays."""
    collected = Calls((TOOL,))
    collected.take([write(tool_call("a", "f", "{}"))])
    message = fields({"role": "assistant", "content": "", "x": 1, "tool_calls": [tool_call("h")]})
    assert decoded(with_calls(message, collected))["tool_calls"] == [tool_call("a", "f", "{}")]
    assert decoded(with_calls(message, [])) == {"role": "assistant", "content": "", "x": 1}


def test_messages_of_several_rounds_become_one() -> None:
    """Text, reasoning and parts of earlier rounds stand in front of the last; its other fields are its own."""
    earlier = [
        fields({"role": "assistant", "content": "a ", "reasoning": "r1", "x": 1}),
        fields(
            {"role": "assistant", "content": None, "reasoning": "r2", "reasoning_details": [{"type": "t", "id": "1"}]}
        ),
    ]
    last = fields(
        {"role": "assistant", "content": "b", "refusal": None, "reasoning_details": [{"type": "t", "id": "2"}]}
    )
    assert decoded(join_messages(earlier, last)) == {
        "role": "assistant",
        "content": "a b",
        "refusal": None,
        "reasoning": "r1r2",
        "reasoning_details": [{"type": "t", "id": "1"}, {"type": "t", "id": "2"}],
    }
    assert decoded(join_messages([], last)) == decoded(last)


def test_texts_are_those_that_are_there() -> None:
    """Nulls, parts and empty strings are not shown."""
    message = fields({"content": "a", "reasoning": "", "refusal": None, "reasoning_content": ["x"], "other": "y"})
    assert texts_of(message) == {"content": "a"}


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["content", "reasoning_details", "x", "id"]), json_values, max_size=3),
        max_size=4,
    )
)
def test_deltas_of_any_shape_add_up_to_something(deltas: list[Delta]) -> None:
    """No delta breaks the message, nor the joining of it with another."""
    collected = Draft()
    for delta in deltas:
        collected.add(fields(delta))
    message = collected.message(beside_calls=True)
    assert decoded(join_messages([message], message))["role"] is not None


def test_deep_deltas_do_no_harm() -> None:
    """Where values nest too deeply to be merged the last one counts."""
    deep: Any = "x"
    for _ in range(400):
        deep = {"a": [deep]}
    assert draft({"x": deep}, {"x": deep}, {"content": "a"})["content"] == "a"
