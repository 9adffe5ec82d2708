"""The client of the demonstration: the official OpenAI package, pointed at the gateway and told nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import openai
from msgspec import Struct

from proxy.demo.model import Call, Reply
from proxy.demo.recording import Message, Recording, tools_of
from proxy.errors import ProxyError

_TOKENS = re.compile(r"received=(\d+), sent=(\d+)")
_EDITS = re.compile(r"edits=(\d+); new=(\d+)")


class NoAnswer(ProxyError):
    """The gateway answered with an error, or not at all."""

    code = "no_answer"


class Heard(Struct, frozen=True):
    """What the client got for one call: the answer, and what the gateway says that it did."""

    reply: Reply
    streamed: bool
    session: str
    state: str
    received_tokens: int
    sent_tokens: int
    edits: int
    new_edits: int


class Agent:
    """Asks with the whole history each time, as every client of Chat Completions does."""

    def __init__(self, gateway_url: str, recording: Recording) -> None:
        self._client = openai.OpenAI(
            base_url=f"{gateway_url}/v1",
            api_key="sk-demo",
            max_retries=0,
            # What the environment says about proxies is about another network than this machine's own.
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )
        self._fields: dict[str, Any] = {"model": recording.model or "demo"}
        if tools := tools_of(recording):
            self._fields["tools"] = tools
        self.history: list[Message] = []

    def ask(self, *, stream: bool) -> Heard:
        """Send the history and take the answer into it; raises NoAnswer."""
        try:
            heard = self._ask(stream=stream)
        except openai.OpenAIError as error:
            raise NoAnswer(f"the agent got no answer: {error}") from error
        self.history.append(message_of(heard.reply))
        return heard

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def _ask(self, *, stream: bool) -> Heard:
        raw = self._client.chat.completions.with_raw_response
        messages: Any = self.history  # plain objects, as they go over the wire
        if stream:
            streaming = raw.create(messages=messages, stream=True, **self._fields)
            reply, headers = _gathered(streaming.parse()), streaming.headers
        else:
            whole = raw.create(messages=messages, **self._fields)
            reply, headers = _reply(whole.parse().choices[0].message), whole.headers
        return _heard(reply, headers, streamed=stream)


def message_of(reply: Reply) -> Message:
    """Return the assistant message that a client keeps of an answer."""
    message: Message = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    return message


def _reply(message: Any) -> Reply:  # noqa: ANN401  # the package's own type differs between its versions
    calls = (Call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or [])
    return Reply(message.content or "", tuple(calls))


def _gathered(chunks: Iterable[Any]) -> Reply:
    """Return what the chunks of a stream add up to."""
    text: list[str] = []
    calls: dict[int, list[str]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            text.append(choice.delta.content or "")
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, [part.id or "", "", ""])
                call[1] += part.function.name or ""
                call[2] += part.function.arguments or ""
    return Reply("".join(text), tuple(Call(*calls[index]) for index in sorted(calls)))


def _heard(reply: Reply, headers: Mapping[str, str], *, streamed: bool) -> Heard:
    compaction = headers.get("x-ullage-compaction", "")
    tokens = _TOKENS.fullmatch(headers.get("x-ullage-tokens", ""))
    edits = _EDITS.search(compaction)
    return Heard(
        reply=reply,
        streamed=streamed,
        session=headers.get("x-ullage-session", ""),
        state=compaction.partition(";")[0],
        received_tokens=int(tokens[1]) if tokens else 0,
        sent_tokens=int(tokens[2]) if tokens else 0,
        edits=int(edits[1]) if edits else 0,
        new_edits=int(edits[2]) if edits else 0,
    )
