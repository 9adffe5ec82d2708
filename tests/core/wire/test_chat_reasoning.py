"""Reasoning: where it is found, and messages without it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.wire.chat import ChatAdapter
from proxy.core.wire.chat_reasoning import reasoning_size, reasoning_text, without_reasoning

CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"s": "x"}}]
THOUGHT = "first this, then that"
FIELDS: list[dict[str, Any]] = [
    {"reasoning_content": THOUGHT},
    {"reasoning": THOUGHT},
    {"reasoning_text": THOUGHT},
    {"reasoning": THOUGHT, "reasoning_details": [{"type": "reasoning.text", "text": THOUGHT, "id": "r", "index": 0}]},
    {"thinking_blocks": [{"type": "thinking", "thinking": THOUGHT, "signature": "c2ln"}]},
]


def bare(message: dict[str, Any]) -> Any:
    """The message without its reasoning."""
    return json.loads(without_reasoning(json.dumps(message).encode()))


@pytest.mark.parametrize("fields", FIELDS)
def test_what_was_thought_is_gone(fields: dict[str, Any]) -> None:
    """Whatever field it is in; what was said stays."""
    said = {"role": "assistant", "content": "ok", "name": "x"}
    assert THOUGHT in reasoning_text(said | fields)
    assert bare(said | fields) == said


@pytest.mark.parametrize("fields", FIELDS)
def test_calls_keep_all_that_they_need(fields: dict[str, Any]) -> None:
    """Signatures of calls stay, and the field that DeepSeek demands in a message with calls is there, empty."""
    said = {"role": "assistant", "content": None, "tool_calls": CALLS}
    emptied = {"reasoning_content": ""} if "reasoning_content" in fields else {}
    assert bare(said | fields) == said | emptied
    assert bare(bare(said | fields)) == said | emptied


def test_thoughts_among_the_content() -> None:
    """Parts go where others remain; content is never left without any."""
    thought, text = (
        {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]},
        {"type": "text", "text": "ok"},
    )
    message = {"role": "assistant", "content": [thought, text]}
    assert bare(message) == {"role": "assistant", "content": [text]}
    assert bare({**message, "content": [thought]}) == {**message, "content": [thought]}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"role": "assistant",  "content": "reasoning"}',
        b'{"role": "assistant", "content": "\\u0061", "reasoning": null, "reasoning_details": []}',
        b'{"role": "assistant", "content": null, "reasoning_content": "",  "tool_calls": [] }',
        b'{"role": "assistant", "content": [ {"type": "text", "text": "thinking"} ]}',
    ],
)
def test_a_message_without_thoughts_keeps_every_byte(raw: bytes) -> None:
    """Nothing is spelled anew where nothing goes."""
    assert without_reasoning(raw) == raw
    assert reasoning_size(json.loads(raw), raw) == 0


def test_all_other_fields_keep_their_bytes() -> None:
    """Their order, escapes and numbers are the client's."""
    raw = b'{"role":"assistant","reasoning":"x","content":"\\u0061","n":1.0,"tool_calls":[ {"id" : "c"} ]}'
    assert without_reasoning(raw) == b'{"role":"assistant","content":"\\u0061","n":1.0,"tool_calls":[ {"id" : "c"} ]}'


@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_only_the_model_thinks(role: str) -> None:
    """A field of that name elsewhere is the client's own affair."""
    message = {"role": role, "content": "x", "reasoning": THOUGHT}
    assert ChatAdapter().facts(json.dumps(message).encode(), b"k").reasoning_bytes == 0


@given(
    fields=st.sampled_from(FIELDS),
    content=st.none() | st.text(),
    more=st.dictionaries(st.sampled_from("abc"), st.integers()),
    calls=st.booleans(),
)
def test_what_goes_is_what_is_told(
    fields: dict[str, Any], content: str | None, more: dict[str, int], *, calls: bool
) -> None:
    """The size is that of the bytes that leave; role, content, calls and unknown fields stay."""
    message = {"role": "assistant", **fields, "content": content, **more, **({"tool_calls": CALLS} if calls else {})}
    raw = json.dumps(message).encode()
    found = ChatAdapter().facts(raw, b"k").reasoning_bytes
    assert found == len(raw) - len(without_reasoning(raw)) > 0
    kept = {k: v for k, v in bare(message).items() if not k.startswith(("reasoning", "thinking"))}
    assert kept == {k: v for k, v in message.items() if k not in fields}
    assert THOUGHT not in json.dumps(bare(message))
