"""The client's side of a chat: its history, which it sends whole each time, as agents do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.e2e.answer import Answer, Message
from tests.e2e.gateway import Client
from tests.e2e.model import TOOL, Call, raw_messages

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("read_file", "search")
]


class Chat:
    """A history that grows with each answer; `fields` are the other fields of each request."""

    def __init__(self, client: Client, *opening: Message, **fields: Any) -> None:
        self.client = client
        self.messages: list[Message] = list(opening)
        self.fields = {"model": "m", "tools": TOOLS, **fields}
        self.headers: dict[str, str] = {}

    def add(self, *messages: Message) -> Chat:
        """Add messages of the client's own."""
        self.messages += messages
        return self

    def body(self, **changes: Any) -> bytes:
        """Return the next request."""
        return json.dumps({**self.fields, "messages": self.messages, **changes}).encode()

    def ask(self, *messages: Message, headers: Mapping[str, str] | None = None) -> Answer:
        """Add messages, send the whole history, and keep the answer."""
        self.add(*messages)
        got = self.client.post(self.body(), {**self.headers, **(headers or {})})
        assert got.status == 200, got.data
        self.messages.append(got.message)
        return got


def system(text: str) -> Message:
    """Return a system message."""
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    """Return a user message."""
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: Call) -> Message:
    """Return an assistant message."""
    made = [
        {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}
        for ident, name, arguments in calls
    ]
    return {"role": "assistant", "content": text} | ({"tool_calls": made} if made else {})


def result(text: str, ident: str = "c1") -> Message:
    """Return the answer to a call."""
    return {"role": "tool", "tool_call_id": ident, "content": text}


def large(word: str, lines: int = 60) -> str:
    """Return a text that is moved out; no two words give equal lines."""
    return "\n".join(f"{word} {number:04} is a line of a large text" for number in range(1, lines + 1))


def step(word: str, ident: str = "c1", tool: str = "read_file") -> list[Message]:
    """Return a call and its large answer."""
    return [assistant(None, (ident, tool, json.dumps({"path": word}))), result(large(word), ident)]


def assert_valid(messages: list[Message]) -> None:
    """Check what every upstream checks: each call is answered right behind its message, each answer was asked for."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_calls, f"nobody asked for {message}"
            open_calls.remove(message["tool_call_id"])
            continue
        assert not open_calls, f"unanswered before {message}: {open_calls}"
        open_calls = [made["id"] for made in message.get("tool_calls") or []]
    assert not open_calls, f"unanswered: {open_calls}"


def assert_grows(bodies: Sequence[bytes]) -> None:
    """Check that each request begins with all messages of the one before, byte for byte."""
    for older, newer in pairwise(map(raw_messages, bodies)):
        assert newer[: len(older)] == older


def assert_hidden(answer: Answer) -> None:
    """Check that nothing of the reading tool is in an answer."""
    assert TOOL.encode() not in answer.data
    assert b"@@ rows" not in answer.data
