"""What a tokenizer sees of a request."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.prompt_text import prompt_texts


def test_messages_and_tools_are_text_and_nothing_else() -> None:
    """Neither pictures nor ids nor roles."""
    call = {"id": "call_1", "type": "function", "function": {"name": "cat", "arguments": '{"a":1}'}}
    body = {
        "model": "m",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}],
            },
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "done"},
        ],
        "tools": [{"type": "function", "function": {"name": "cat"}}],
    }
    *texts, tools = prompt_texts(json.dumps(body).encode())
    assert texts == ["see", "cat", '{"a":1}', "done"]
    assert json.loads(tools) == body["tools"]


@given(st.binary() | st.text().map(lambda text: json.dumps({"messages": [{"content": text}]}).encode()))
def test_any_body_can_be_looked_at(body: bytes) -> None:
    """What cannot be read has no text."""
    assert all(isinstance(text, str) for text in prompt_texts(body))


def test_depth_is_bounded() -> None:
    """No body makes it fail."""
    assert prompt_texts(b'{"messages":' + b"[" * 900 + b'"a"' + b"]" * 900 + b"}") == []
    assert prompt_texts(b"[]") == prompt_texts(b'{"tools":[]}') == []
