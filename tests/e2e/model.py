"""What a scripted model says, streamed when it was asked to, and what goes upstream to it.

`says("text", call("f", "{}"))` is a round; `$REF` in arguments stands for the first ref in the request.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from tests.fakes.upstream import Pause, Received, Reply, answer, events

TOOL = "read_offloaded"
_REF = re.compile(rb"off_[a-z2-7]{26,}")
_RAW_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_RAW_ITEMS = msgspec.json.Decoder(list[Raw])

Call = tuple[str, str, str]  # id, name, arguments


class Round(Struct, frozen=True):
    """One answer of the model."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    finish: str = ""
    id: str = "chatcmpl-1"
    prompt_tokens: int = 10
    completion_tokens: int = 5
    pause_seconds: float = 0.0

    def __call__(self, received: Received) -> Reply:
        """Reply to a request as it asks for it."""
        ref = next(iter(refs(received.body)), "")
        calls = [(ident, name, arguments.replace("$REF", ref)) for ident, name, arguments in self.calls]
        fields = json.loads(received.body)  # takes lone surrogates, which msgspec does not
        if not fields.get("stream"):
            return answer(self._whole(calls))
        wants_usage = (fields.get("stream_options") or {}).get("include_usage")
        chunks = [self._chunk([choice]) for choice in self._choices(calls)]
        usage = [{**self._chunk([]), "usage": self._usage()}] if wants_usage else []
        reply = events(*chunks, *usage)
        return msgspec.structs.replace(reply, steps=(Pause(self.pause_seconds), *reply.steps))

    def _usage(self) -> dict[str, int]:
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }

    def _reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")

    def _whole(self, calls: list[Call]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None, "refusal": None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if calls:
            message["tool_calls"] = [_call(made) for made in calls]
        choice = {"index": 0, "message": message, "finish_reason": self._reason(), "logprobs": None}
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": self._usage(),
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": choices,
        }

    def _choices(self, calls: list[Call]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if self.text else None, "refusal": None}]
        deltas += [{"reasoning_content": word} for word in _words(self.reasoning)]
        deltas += [{"content": word} for word in _words(self.text)]
        for index, made in enumerate(calls):
            head = _call(made)
            head["function"]["arguments"] = ""
            deltas.append({"tool_calls": [{"index": index, **head}]})
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _halves(made[2])
            ]
        out = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        return [*out, {"index": 0, "delta": {}, "finish_reason": self._reason()}]


def says(text: str = "", *calls: Call, **more: Any) -> Round:
    """Return a round of the model."""
    return Round(text=text, calls=calls, **more)


def call(name: str, arguments: str = "{}", ident: str = "c1") -> Call:
    """Return a call of one of the client's tools."""
    return ident, name, arguments


def reads(ref: str = "$REF", ident: str = "r1", **more: object) -> Call:
    """Return a call of the reading tool."""
    return ident, TOOL, json.dumps({"ref": ref, **more})


def refs(data: bytes) -> list[str]:
    """Return the refs in a body, each once, in order."""
    return list(dict.fromkeys(found.decode() for found in _REF.findall(data)))


def frames(*items: object) -> list[bytes]:
    """Return objects as events of a stream."""
    return [b"data: " + msgspec.json.encode(item) + b"\n\n" for item in items]


def raw_messages(body: bytes) -> list[bytes]:
    """Return the messages of a body as they were written."""
    return [bytes(raw) for raw in _RAW_ITEMS.decode(_RAW_FIELDS.decode(body)["messages"])]


def raw_tools(body: bytes) -> list[bytes]:
    """Return the declared tools of a body as they were written."""
    return [bytes(raw) for raw in _RAW_ITEMS.decode(_RAW_FIELDS.decode(body).get("tools", Raw(b"[]")))]


def tool_names(body: bytes) -> list[str]:
    """Return the names of the declared tools."""
    return [json.loads(raw)["function"]["name"] for raw in raw_tools(body)]


def without_tool(body: bytes) -> bytes:
    """Return the body as it was before the reading tool was appended to the client's tools."""
    declaration = raw_tools(body)[-1]
    assert json.loads(declaration)["function"]["name"].startswith(TOOL)
    assert body.count(b"," + declaration) == 1
    return body.replace(b"," + declaration, b"")


def _call(made: Call) -> dict[str, Any]:
    ident, name, arguments = made
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]
