"""Scripts for the interceptor: `>>` tells it an event, `<<` says which command must come next.

    script = Playbook(tool="read_offloaded")
    script >> Opened() >> Received(stream(chunk({"content": "hi"}, "stop"))) << Emit(...)
    script >> Ended() << Finished
    script.end()

An expected command is a command, the class of one, or a function that says whether it fits. Every command has to be
expected: an event may only be told when none is waiting. Beside it: builders of chunks, and `play`, which runs whole
turns and checks what holds for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from proxy.core.intercept import (
    Answered,
    Body,
    Broke,
    Command,
    Emit,
    Ended,
    Event,
    Finished,
    InterceptOptions,
    Interceptor,
    Opened,
    Read,
    Received,
    Refuse,
    Remember,
    Reopen,
)

TOOL = "read_offloaded"
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

Expected = Command | type[Any] | Callable[[Any], bool]


def options(**changes: Any) -> InterceptOptions:
    """Return the options of a streamed request that has the reading tool."""
    usual = InterceptOptions(tool=TOOL, rounds=8, wants_usage=False, streaming=True)
    return msgspec.structs.replace(usual, **changes)


class Playbook:
    """One turn, told step by step."""

    def __init__(self, **changes: Any) -> None:
        self.machine = Interceptor(options(**changes))
        self.waiting: list[Command] = []

    def __rshift__(self, event: Event) -> Playbook:
        """Tell an event."""
        assert not self.waiting, f"before {event}: {self.waiting}"
        self.waiting = self.machine.receive(event)
        return self

    def __lshift__(self, expected: Expected) -> Playbook:
        """Expect the next command."""
        assert self.waiting, f"nothing came, expected {expected}"
        command = self.waiting.pop(0)
        if isinstance(expected, type):
            assert isinstance(command, expected), f"{command} is no {expected.__name__}"
        elif callable(expected):
            assert expected(command), f"{command} does not fit"
        else:
            assert command == expected
        return self

    def end(self) -> None:
        """Expect no more."""
        assert not self.waiting, f"not expected: {self.waiting}"
        for event in (Received(b"data: {}\n\n"), Ended(), Broke("late"), Answered(()), Body(b"{}")):
            assert self.machine.receive(event) == [], f"{event} after the end"


def sends(text: bytes) -> Callable[[Any], bool]:
    """Return an expectation: bytes for the client that hold this text."""
    return lambda command: isinstance(command, Emit) and text in command.data


# -- builders


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a chunk."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    frame = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**frame, "choices": [choice], **fields}


def usage_chunk(usage: Any = USAGE, **fields: Any) -> dict[str, Any]:
    """Return a chunk that reports usage and nothing else."""
    return chunk(choices=[], usage=usage, **fields)


def call(
    index: int | None, identity: str | None, name: str | None, arguments: Any = None, **fields: Any
) -> dict[str, Any]:
    """Return a delta of a tool call; None leaves a part out."""
    head = {"index": index, "id": identity, "type": "function" if identity else None}
    body = {"name": name, "arguments": arguments}
    delta: dict[str, Any] = {key: value for key, value in head.items() if value is not None}
    delta["function"] = {key: value for key, value in body.items() if value is not None}
    return {**delta, **fields}


def calls(*deltas: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """Return a chunk with deltas of tool calls."""
    return chunk({"tool_calls": list(deltas)}, finish)


def event(value: dict[str, Any]) -> bytes:
    """Return a chunk as an event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def stream(*chunks: dict[str, Any], done: bool = True) -> bytes:
    """Return chunks as an event stream."""
    return b"".join(map(event, chunks)) + (DONE if done else b"")


def reading(identity: str = "h1", arguments: str = '{"ref":"off_a"}', **fields: Any) -> bytes:
    """Return a round in which the model does nothing but read."""
    head = chunk({"role": "assistant", "content": None}, **fields)
    return stream(head, chunk({"tool_calls": [call(0, identity, TOOL, arguments)]}), chunk({}, "tool_calls"))


def saying(text: str, finish: str = "stop", **fields: Any) -> bytes:
    """Return a round in which the model says something."""
    head = chunk({"role": "assistant", "content": ""}, **fields)
    return stream(head, chunk({"content": text}, **fields), chunk({}, finish, **fields))


def whole(message: dict[str, Any], finish: str = "stop", usage: Any = USAGE, **fields: Any) -> bytes:
    """Return a whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    head = {"id": "r", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**head, "choices": [choice], "usage": usage, **fields}).encode()


def tool_call(identity: str, name: str = TOOL, arguments: Any = '{"ref":"off_a"}', **fields: Any) -> dict[str, Any]:
    """Return a whole tool call."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


# -- whole turns


class Turn:
    """What came of a turn."""

    def __init__(self, sent: bytes, commands: list[Command]) -> None:
        self.sent = sent
        self.commands = commands

    @property
    def finished(self) -> Finished:
        """The last command."""
        last = self.commands[-1]
        assert isinstance(last, Finished)
        return last

    @property
    def reopened(self) -> list[Reopen]:
        """The further rounds that were asked for."""
        return [command for command in self.commands if isinstance(command, Reopen)]

    @property
    def remembered(self) -> list[Remember]:
        """The hidden turns that were written down."""
        return [command for command in self.commands if isinstance(command, Remember)]

    @property
    def reads(self) -> list[Read]:
        """The reads that were asked for."""
        return [command for command in self.commands if isinstance(command, Read)]

    @property
    def refused(self) -> Refuse | None:
        """The answer that the gateway should give instead."""
        return next((command for command in self.commands if isinstance(command, Refuse)), None)

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The JSON events that the client got."""
        return events_of(self.sent)


def events_of(sent: bytes) -> list[dict[str, Any]]:
    """Return the JSON events of a stream, read without the code under test."""
    text = sent.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    events = []
    for block in text.split("\n\n"):
        data = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        if data and not data[0].startswith("[DONE]"):
            events.append(json.loads("\n".join(data)))
    return events


def assemble(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the message, as the simplest client puts it together: by index alone, everything appended."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "role": "", "calls": {}, "finish": []}
    for item in chunks:
        for choice in item.get("choices") or []:
            delta = choice.get("delta") or {}
            for key in ("content", "reasoning_content", "role"):
                message[key] += delta.get(key) or ""
            for entry in delta.get("tool_calls") or []:
                found = message["calls"].setdefault(entry.get("index"), {"id": "", "name": "", "arguments": ""})
                body = entry.get("function") or {}
                found["id"] += entry.get("id") or ""
                found["name"] += body.get("name") or ""
                found["arguments"] += body.get("arguments") or ""
            if choice.get("finish_reason"):
                message["finish"].append(choice["finish_reason"])
    return message


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Return data cut at these places."""
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in pairwise(places)]


def play(
    streams: Sequence[bytes], *, every: int = 0, cuts: Sequence[int] = (), broken: bool = False, **changes: Any
) -> Turn:
    """Run a turn over streamed rounds, cut every so many bytes or at places of the whole; the last may break."""
    machine = Interceptor(options(**changes))
    commands: list[Command] = []
    offset = 0
    for number, data in enumerate(streams):
        told: list[Event] = [Opened()]
        places = (
            range(every, len(data), every) if every else [cut - offset for cut in cuts if 0 < cut - offset < len(data)]
        )
        told += [Received(piece) for piece in pieces(data, list(places))]
        told.append(Broke("reset") if broken and number == len(streams) - 1 else Ended())
        offset += len(data)
        for item in told:
            _tell(machine, item, commands)
        if any(isinstance(command, Finished) for command in commands):
            break
    sent = b"".join(command.data for command in commands if isinstance(command, Emit))
    assert sum(isinstance(command, Finished) for command in commands) <= 1, "a turn ends once"
    return Turn(sent, commands)


def play_whole(bodies: Sequence[bytes], **changes: Any) -> Turn:
    """Run a turn over whole bodies."""
    machine = Interceptor(options(streaming=False, **changes))
    commands: list[Command] = []
    for data in bodies:
        _tell(machine, Body(data), commands)
        if any(isinstance(command, Finished) for command in commands):
            break
    return Turn(b"".join(command.data for command in commands if isinstance(command, Emit)), commands)


def _tell(machine: Interceptor, told: Event, commands: list[Command]) -> None:
    """Tell an event, and answer what is read at once."""
    for command in machine.receive(told):
        commands.append(command)
        if isinstance(command, Read):
            _tell(machine, Answered(tuple(f"answer {use.arguments}" for use in command.calls)), commands)
