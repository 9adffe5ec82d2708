"""What a client got: an answer, whole or streamed, and the assistant message that a client makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import httpx

Message = dict[str, Any]
_TEXTS = ("content", "refusal", "reasoning_content")


class Compaction(NamedTuple):
    """The header `x-ullage-compaction`."""

    state: str
    edits: int = 0
    new: int = 0
    compactions: int = 0
    reason: str = ""


class Answer:
    """A response that was read to its end."""

    def __init__(self, status: int, headers: httpx.Headers, data: bytes, *, is_whole: bool = True) -> None:
        self.status = status
        self.headers = headers
        self.data = data
        self.is_whole = is_whole  # False: the connection broke

    @classmethod
    def of(cls, response: httpx.Response) -> Answer:
        """Return an answer that was read already."""
        return cls(response.status_code, response.headers, response.content)

    @property
    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.data)

    @property
    def session(self) -> str | None:
        """The id of the session."""
        session: str | None = self.headers.get("x-ullage-session")
        return session

    @property
    def compaction(self) -> Compaction:
        """What the gateway says it did."""
        state, *fields = self.headers["x-ullage-compaction"].split("; ")
        said = dict(field.split("=", 1) for field in fields)
        reason = said.pop("reason", "")
        return Compaction(state, reason=reason, **{name: int(value) for name, value in said.items()})

    @property
    def is_stream(self) -> bool:
        """Whether it is an event stream."""
        return str(self.headers.get("content-type")).startswith("text/event-stream")

    @property
    def events(self) -> list[Any]:
        """The events of a stream, decoded; without comments and `[DONE]`."""
        return [json.loads(data) for data in self._data() if data != b"[DONE]"]

    @property
    def is_done(self) -> bool:
        """Whether a stream ended with `[DONE]`."""
        return b"[DONE]" in self._data()

    @property
    def error(self) -> dict[str, Any] | None:
        """The error that it tells, if it does, as an answer or as an event."""
        told = self.events if self.is_stream else [self.json]
        return next((event["error"] for event in told if event.get("error")), None)

    @property
    def message(self) -> Message:
        """The assistant message that a client sends back."""
        if not self.is_stream:
            message: Message = self.json["choices"][0]["message"]
            return message
        return assemble(self.events)

    @property
    def finish(self) -> str | None:
        """Why the model ended; there must be only one reason."""
        events = self.events if self.is_stream else [self.json]
        choices = [choice for event in events for choice in event.get("choices", [])]
        reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
        assert len(reasons) <= 1, reasons
        return reasons[0] if reasons else None

    def _data(self) -> list[bytes]:
        frames = self.data.replace(b"\r\n", b"\n").split(b"\n\n")
        lines = [line for frame in frames for line in frame.split(b"\n")]
        return [line.removeprefix(b"data:").strip() for line in lines if line.startswith(b"data:")]


def assemble(events: Sequence[Message]) -> Message:
    """Put the message of choice 0 together from its deltas, the way SDKs do."""
    message: Message = {"role": "", "content": None}
    calls: list[Message] = []
    for event in events:
        for choice in event.get("choices", []):
            if choice["index"] == 0:
                _add(message, calls, choice["delta"])
    return message | ({"tool_calls": calls} if calls else {})


def _add(message: Message, calls: list[Message], delta: Message) -> None:
    message["role"] += delta.get("role") or ""
    for name in _TEXTS:
        if delta.get(name) is not None:
            message[name] = (message.get(name) or "") + delta[name]
    for piece in delta.get("tool_calls") or []:
        at = piece["index"]
        if at == len(calls):
            calls.append({"id": "", "type": piece["type"], "function": {"name": "", "arguments": ""}})
        function = piece.get("function") or {}
        calls[at]["id"] += piece.get("id") or ""
        for name in ("name", "arguments"):
            calls[at]["function"][name] += function.get(name) or ""
