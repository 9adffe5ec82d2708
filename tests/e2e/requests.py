"""What left the gateway, looked at without any code of the gateway's: raw messages, prefixes, rules of the format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

_DECODER = json.JSONDecoder()
_MESSAGES = '"messages":['


class Request:
    """One body: its messages as the characters they are, and decoded."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.fields: dict[str, Any] = json.loads(body)
        self.messages: list[dict[str, Any]] = self.fields["messages"]
        self.raw = list(_raw_messages(body.decode()))
        self.tools: list[dict[str, Any]] | None = self.fields.get("tools")


def _raw_messages(text: str) -> Iterator[str]:
    at = text.index(_MESSAGES) + len(_MESSAGES)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield text[at:end]
        at = end + (text[end] == ",")


def violations(sent: Request, client: Request) -> list[str]:
    """Return what a provider would refuse in a request, beyond what was so in the client's own."""
    found = [*_broken_pairs(sent.messages)]
    theirs = {call["function"]["arguments"] for message in client.messages for call in message.get("tool_calls") or []}
    for at, message in enumerate(sent.messages):
        for call in message.get("tool_calls") or []:
            arguments = call["function"]["arguments"]
            if arguments not in theirs and not _is_json(arguments):
                found.append(f"message {at}: arguments are no JSON")
        if message.get("content") == "" and message not in client.messages:
            found.append(f"message {at}: empty")
    return found


def _broken_pairs(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield calls without their answers right behind them, and answers without a call."""
    open_calls: Counter[str] = Counter()
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            if not open_calls[message["tool_call_id"]]:
                yield f"message {at}: answers no call"
            open_calls[message["tool_call_id"]] -= 1
            continue
        if +open_calls:
            yield f"message {at}: calls before it are not answered"
        ids = [call["id"] for call in message.get("tool_calls") or []]
        open_calls = Counter(ids)
        if len(set(ids)) < len(ids):
            yield f"message {at}: one id for two calls"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def breaks(requests: Sequence[Request]) -> list[str]:
    """Return where a request does not begin with the whole one before it.

    One thing is declared: the reading tool may appear once, in the first request with a stub, when a session began
    without tools.
    """
    found, may_appear = [], True
    for at, (before, after) in enumerate(pairwise(requests), 1):
        if after.raw[: len(before.raw)] != before.raw:
            found.append(f"request {at}: other messages")
        if after.tools != before.tools:
            appeared = may_appear and before.tools is None and len(after.tools or []) == 1
            may_appear = False
            if not appeared:
                found.append(f"request {at}: other tools")
    return found
