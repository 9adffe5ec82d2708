"""The scripted provider."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from proxy.demo.model import Call, Reply
from proxy.demo.upstream import ScriptedUpstream, chunks, completion

REPLY = Reply("a word " * 30, (Call("c1", "bash", '{"command": "ls"}'), Call("c2", "read", "{}")))


class Says:
    """A model that always says the same."""

    def answer(self, body: bytes) -> Reply:
        """Answer."""
        return REPLY


def test_a_reply_as_one_object() -> None:
    """Text, calls and the reason to stop; no text is null."""
    choice = completion(REPLY, "m")["choices"][0]
    assert choice["message"]["content"] == REPLY.text
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["bash", "read"]
    assert choice["finish_reason"] == "tool_calls"
    silent = completion(Reply(""), "m")["choices"][0]
    assert (silent["message"], silent["finish_reason"]) == ({"role": "assistant", "content": None}, "stop")


def test_the_chunks_of_a_stream_add_up() -> None:
    """Several pieces of text, calls by their index, one finish at the end."""
    choices = [chunk["choices"][0] for chunk in chunks(REPLY, "m")]
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("content", "") for delta in deltas) == REPLY.text
    assert sum("content" in delta for delta in deltas) > 2
    arguments = {0: "", 1: ""}
    for part in (part for delta in deltas for part in delta.get("tool_calls", [])):
        arguments[part["index"]] += part["function"]["arguments"]
    assert arguments == {0: '{"command": "ls"}', 1: "{}"}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["tool_calls"]


def test_it_is_served_on_one_connection() -> None:
    """Whole and streamed answers follow each other; the stream ends with [DONE]."""
    request: dict[str, Any] = {"model": "m", "messages": []}
    with ScriptedUpstream(Says()) as upstream, httpx.Client(trust_env=False) as client:
        url = f"{upstream.url}/chat/completions"
        whole = client.post(url, json=request)
        streamed = client.post(url, json=request | {"stream": True})
        again = client.post(url, json=request)
    assert whole.json() == again.json() == completion(REPLY, "m")
    assert streamed.headers["content-type"] == "text/event-stream"
    *events, done, rest = streamed.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert [msgspec.json.decode(event.removeprefix("data: ")) for event in events] == list(chunks(REPLY, "m"))
