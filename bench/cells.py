"""What is sent: one cell is a size, a way to answer, and what the gateway has to do with the body.

plain      an untouched history without tools: nothing is declared, the body leaves as it came
tools      an untouched history of a client with tools: the reading tool is declared in every request
compacted  a known history with one large result, which has a stub already
growing    as compacted, but every request adds a step to the one before, as an agent does
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

SMALL_BYTES = 2_000
LARGE_BYTES = 400_000
CONFIG = """\
[defaults]
preset = "safe"
[presets.small]
extends = "safe"
offload_results = { over_tokens = 150, head_lines = 1, tail_lines = 1 }
[models."*"]
window = 1_000_000
"""
_STEPS = {SMALL_BYTES: 1, LARGE_BYTES: 99}  # an assistant message with a call, and its result
_TOOLS = {SMALL_BYTES: ("read_file",), LARGE_BYTES: ("read_file", "run_command", "write_file")}
_LARGE_RESULT_BYTES = 60_000
_WORDS = (
    "the",
    "parser",
    "reads",
    "a",
    "token",
    "from",
    "this",
    "buffer",
    "and",
    "returns",
    "None",
    "at",
    "its",
    "end",
)

Message = dict[str, Any]


class Cell(Struct, frozen=True):
    """One line of the table."""

    size_bytes: int
    streamed: bool
    kind: str

    @property
    def name(self) -> str:
        """How it is called in the table and by --only."""
        size = f"{self.size_bytes // 1000} KB"
        return f"{size} {'streamed' if self.streamed else 'whole'} {self.kind}"

    @property
    def edits(self) -> int:
        """How many edits the gateway is to report."""
        return int(self.kind in ("compacted", "growing"))

    @property
    def preset(self) -> str:
        """The preset under which the large result is offloaded: 2 KB hold none that is large for the usual ones."""
        return "small" if self.size_bytes == SMALL_BYTES and self.edits else "safe"

    def bodies(self, number: int) -> Callable[[], bytes]:
        """Return what gives the next body of a connection; every cell and connection has a history of its own."""
        empty = len(self._body(number, 0, 0))
        steps = _STEPS[self.size_bytes]
        large = _LARGE_RESULT_BYTES if self.edits and steps > 1 else 0
        body = self._body(number, (self.size_bytes - empty - large) // steps, large)
        return _Growing(body, number).next if self.kind == "growing" else lambda: body

    def _body(self, number: int, result_bytes: int, large_bytes: int) -> bytes:
        """Return a history in which one result is larger than the others."""
        source = random.Random(f"{self.name} {number}")  # noqa: S311  # text to measure with
        steps = _STEPS[self.size_bytes]
        messages = [{"role": "system", "content": _text(source, 150)}, {"role": "user", "content": _text(source, 150)}]
        for step in range(steps):
            messages += _step(source, step, result_bytes + (large_bytes if step == steps // 3 else 0))
        return msgspec.json.encode({**self._fields(), "messages": messages})

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": "bench"}
        if self.streamed:
            fields["stream"] = True
        if self.kind != "plain":
            fields["tools"] = [_tool(name) for name in _TOOLS[self.size_bytes]]
        return fields


def all_cells() -> list[Cell]:
    """Return the cells in the order of the table."""
    sizes = [
        Cell(size, streamed, kind)
        for size in (SMALL_BYTES, LARGE_BYTES)
        for streamed in (False, True)
        for kind in ("plain", "tools", "compacted")
    ]
    return [*sizes, Cell(LARGE_BYTES, streamed=False, kind="growing"), Cell(LARGE_BYTES, streamed=True, kind="growing")]


class _Growing:
    """A history that gets longer by one step each time it is sent."""

    def __init__(self, body: bytes, seed: int) -> None:
        self._body = body
        self._count = 0
        self._random = random.Random(seed)  # noqa: S311  # text to measure with

    def next(self) -> bytes:
        """Return the body, one step longer than the last time."""
        self._count += 1
        steps = b",".join(msgspec.json.encode(message) for message in _step(self._random, 1000 + self._count, 200))
        self._body = self._body.removesuffix(b"]}") + b"," + steps + b"]}"
        return self._body


def _step(source: random.Random, number: int, result_bytes: int) -> Iterator[Message]:
    call_id = f"call_{number}"
    arguments = msgspec.json.encode({"path": f"src/module_{number}.py"}).decode()
    function = {"name": "read_file", "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    yield {"role": "assistant", "content": _text(source, 60), "tool_calls": [call]}
    yield {"role": "tool", "tool_call_id": call_id, "content": _text(source, result_bytes)}


def _text(source: random.Random, size: int) -> str:
    """Return lines of words, about so many bytes."""
    words: list[str] = []
    length = 0
    while length < size:
        word = source.choice(_WORDS) if source.random() < 0.9 else f"{source.getrandbits(24):x}\n"
        words.append(word)
        length += len(word) + 1
    return " ".join(words)


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return {"type": "function", "function": {"name": name, "description": f"Runs {name}.", "parameters": parameters}}
