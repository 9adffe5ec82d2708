"""What a Chat Completions chunk says, and how chunks of several rounds become one stream.

A chunk is read one level deep where something is looked for and stays undecoded elsewhere, so an edited chunk keeps its
number spellings, key order and unknown keys. Only choice 0 is looked into: with several choices there is no reading
tool, and chunks pass as they are.

Both official clients put deltas together without checking them: a second role becomes "assistantassistant", a second id
opens a new answer, an index that starts at 1 is an error. `Splice` keeps what they rely on: one id, created, model and
fingerprint, one role, gapless call indices, head fields of a call once, and no finish or usage before the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Raw, Struct

from proxy.core.calls import Call, Calls, Owner, Route, index_of
from proxy.core.sse import is_harmless_rest, read_frame
from proxy.core.wire.raw import NULL, Fields, is_empty, read_array, read_object, read_text, write

_IDENTITY: Final = ("id", "created", "model", "system_fingerprint")
_CHOICE_FRAME: Final = frozenset(("index", "delta", "finish_reason"))

_FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*[^n\s]')
_USAGE: Final = re.compile(rb'"usage"\s*:\s*[^n\s]')
_CALLS: Final = re.compile(rb'"tool_calls"\s*:\s*\[\s*[^\]\s]')


def is_text(data: bytes) -> bool:
    """Say whether chunks hold no finish, usage, error or end; what they hold instead is not looked at.

    False is no claim: such chunks have to be read. Quotes inside a JSON string are escaped, so text cannot look like a
    key.
    """
    return (
        _FINISH.search(data) is None
        and not (b'"usage"' in data and _USAGE.search(data))
        and b'"error"' not in data
        and b"[DONE]" not in data
    )


def has_calls(data: bytes) -> bool:
    """Say whether chunks may hold deltas of tool calls."""
    return b'"tool_calls"' in data and _CALLS.search(data) is not None


def has_head(data: bytes) -> bool:
    """Say whether a chunk may begin a call or go on with its name: its only id is then not its own."""
    return b'"name"' in data or data.count(b'"id"') > 1


def are_plain_frames(data: bytes) -> bool:
    """Say whether a read is nothing but whole frames of one data line each."""
    if not data.startswith(b"data:"):
        return False
    lines = data.count(b"\n")
    if b"\r" in data:
        frames = data.count(b"\r\n\r\ndata:") + 1
        return data.endswith(b"\r\n\r\n") and data.count(b"\r") == lines == 2 * frames
    return data.endswith(b"\n\n") and lines == 2 * data.count(b"\n\ndata:") + 2


def is_done(data: bytes | None) -> bool:
    """Say whether the data of an event is the mark that ends a stream."""
    return data is not None and data.lstrip().startswith(b"[DONE]")


def is_whole_event(rest: bytes) -> bool:
    """Say whether what came without a blank line after it is no half event."""
    data = read_frame(rest).data or b""
    return is_harmless_rest(rest) or data.strip() == b"[DONE]" or read_object(data) is not None


class Chunk(Struct, frozen=True):
    """A parsed chunk; `choice` and `delta` are those of choice 0."""

    data: bytes
    fields: Fields
    choices: list[Raw]
    position: int | None  # of choice 0 among the choices
    choice: Fields
    delta: Fields
    calls: list[Raw]
    finish: str | None
    usage: Raw | None
    is_error: bool

    @property
    def is_usage_only(self) -> bool:
        """A chunk that reports usage and nothing else."""
        return self.usage is not None and not self.choices

    @property
    def is_text(self) -> bool:
        """A chunk that needs no edit but for the identity of the stream."""
        return self.finish is None and self.usage is None and not self.calls and "role" not in self.delta

    @property
    def has_delta(self) -> bool:
        """A chunk whose delta says something."""
        return any(not is_empty(value) for value in self.delta.values())


def read_chunk(data: bytes) -> Chunk | None:
    """Return what the data of an event says; None when it is no JSON object."""
    fields = read_object(data)
    if fields is None:
        return None
    choices = read_array(fields.get("choices", NULL)) or []
    position, choice = _first_choice(choices)
    delta = read_object(choice.get("delta", NULL)) or {}
    usage = fields.get("usage", NULL)
    return Chunk(
        data=data,
        fields=fields,
        choices=choices,
        position=position,
        choice=choice,
        delta=delta,
        calls=read_array(delta.get("tool_calls", NULL)) or [],
        finish=_finish_of(choices, choice),
        usage=None if usage == NULL else usage,
        is_error=not is_empty(fields.get("error")),
    )


def _first_choice(choices: list[Raw]) -> tuple[int | None, Fields]:
    for position, raw in enumerate(choices):
        choice = read_object(raw)
        if choice is not None and is_empty(choice.get("index")):
            return position, choice
    return None, {}


def _finish_of(choices: list[Raw], choice: Fields) -> str | None:
    """Return the finish of choice 0, or else of any other: a stream of several choices has ended when one has."""
    others = [] if choice and len(choices) == 1 else [read_object(raw) or {} for raw in choices]
    for candidate in (choice, *others):
        finish = candidate.get("finish_reason")
        if finish is not None and not is_empty(finish):
            return read_text(finish) or bytes(finish).decode("utf-8", "replace")
    return None


class Splice:
    """Edits the chunks of several rounds so that they make one answer."""

    def __init__(self) -> None:
        self._identity: Fields = {}
        self._has_role = False
        self._next_index = 0

    def passed(self, chunk: Chunk) -> None:
        """Learn from a chunk that left as it came: the identity of the stream, and whether it has had its role."""
        self._learn(chunk)
        self._has_role = self._has_role or not is_empty(chunk.delta.get("role"))

    def number(self, routes: Sequence[Route]) -> None:
        """Note the indices of calls whose deltas leave as they came."""
        for route in routes:
            call = route.call
            if call.shown_index is None:
                index = index_of(route.delta)
                call.shown_index = self._next_index if index is None else index
                self._next_index = max(self._next_index, call.shown_index + 1)

    def edit(self, chunk: Chunk, routes: Sequence[Route]) -> bytes | None:
        """Return the chunk's data without our calls, a second role, finish and usage; None when that leaves nothing."""
        self._learn(chunk)
        fields = self._with_identity(chunk.fields)
        if chunk.is_text and fields == chunk.fields:
            return chunk.data
        if chunk.usage is not None:
            fields["usage"] = NULL
        if chunk.position is None:
            return None if chunk.is_usage_only else _same_or(chunk, fields)
        delta = self._delta(chunk, routes)
        choice = chunk.choice
        if chunk.finish is not None:
            choice = {**choice, "finish_reason": NULL}
        if delta == chunk.delta and choice is chunk.choice and fields == chunk.fields:
            return chunk.data
        if delta != chunk.delta or chunk.finish is not None or chunk.usage is not None:
            fields.pop("obfuscation", None)
            has_more = not chunk.calls and chunk.finish is None and _has_more(choice)
            if not has_more and not _says_something(delta):
                return None
        return _assemble(chunk, fields, {**choice, "delta": write(delta)})

    def finish(self, chunk: Chunk, *, is_bare: bool, reason: str | None = None) -> bytes:
        """Return the chunk that ends the answer; bare when the rest of it has been sent."""
        fields = self._with_identity(chunk.fields)
        fields.pop("obfuscation", None)
        if chunk.usage is not None:
            fields["usage"] = NULL
        delta = {key: value for key, value in chunk.delta.items() if is_empty(value) and key != "tool_calls"}
        choice = chunk.choice
        if is_bare:
            choice, delta = {key: value for key, value in choice.items() if key in _CHOICE_FRAME}, {}
        if reason is not None:
            choice = {**choice, "finish_reason": write(reason)}
        return _assemble(chunk, fields, {**choice, "delta": write(delta)})

    def usage(self, chunk: Chunk, usage: Raw) -> bytes:
        """Return the chunk that reports usage, after the model of one that did."""
        fields = self._with_identity(chunk.fields)
        fields.update(choices=write([]), usage=usage)
        return bytes(write(fields))

    def overdue(self, calls: Calls) -> bytes | None:
        """Return a chunk with what was kept back of calls that turned out to be the client's."""
        deltas = [delta for call in calls.of(Owner.THEIRS) for delta in self._held(call)]
        if not deltas:
            return None
        choice = {"index": 0, "delta": {"tool_calls": deltas}, "finish_reason": None}
        return bytes(write({**self._identity, "object": "chat.completion.chunk", "choices": [choice]}))

    def _with_identity(self, fields: Fields) -> Fields:
        if not self._identity:
            return dict(fields)
        fields = {key: self._identity.get(key, value) for key, value in fields.items()}
        if "system_fingerprint" not in self._identity:
            fields.pop("system_fingerprint", None)
        return fields

    def _learn(self, chunk: Chunk) -> None:
        """Take the identity from the first chunk with a choice; Azure sends one before that has neither."""
        if not self._identity and chunk.choices:
            self._identity = {key: chunk.fields[key] for key in _IDENTITY if key in chunk.fields}

    def _delta(self, chunk: Chunk, routes: Sequence[Route]) -> Fields:
        delta = dict(chunk.delta)
        if not is_empty(delta.get("role")):
            if self._has_role:
                del delta["role"]
            self._has_role = True
        if chunk.calls:
            shown = [edited for route in routes for edited in self._shown(route)]
            del delta["tool_calls"]
            if shown:
                delta["tool_calls"] = write(shown)
        return delta

    def _shown(self, route: Route) -> list[Fields]:
        """Return what the client gets of a delta: nothing while its call may be ours, all that was held back after."""
        call = route.call
        if call.owner is not Owner.THEIRS:
            call.held.append(route)
            return []
        return [*self._held(call), self._numbered(route)]

    def _held(self, call: Call) -> list[Fields]:
        held, call.held = call.held, []
        return [self._numbered(route) for route in held]

    def _numbered(self, route: Route) -> Fields:
        """Return a delta under the client's index; head fields that were sent before are left out."""
        call, delta = route.call, dict(route.delta)
        is_first = call.shown_index is None
        if call.shown_index is None:
            call.shown_index = self._next_index
            self._next_index += 1
        delta["index"] = write(call.shown_index)
        if not route.is_id_new:
            delta.pop("id", None)
        if is_first and is_empty(delta.get("type")):
            delta["type"] = write(call.body_key)
        elif not is_first:
            delta.pop("type", None)
        body = read_object(delta.get(call.body_key, NULL))
        if body is not None and "name" in body and not route.is_name_new:
            del body["name"]
            delta[call.body_key] = write(body)
        return delta


def _says_something(delta: Fields) -> bool:
    return any(not is_empty(value) for value in delta.values())


def _has_more(choice: Fields) -> bool:
    """Say whether a choice carries more than its delta, such as log probabilities or filter results."""
    return any(not is_empty(value) for key, value in choice.items() if key not in _CHOICE_FRAME)


def _same_or(chunk: Chunk, fields: Fields) -> bytes:
    return chunk.data if fields == chunk.fields else bytes(write(fields))


def _assemble(chunk: Chunk, fields: Fields, choice: Fields) -> bytes:
    """Return a chunk with an edited choice 0; other choices stay as they are."""
    choices = list(chunk.choices)
    if chunk.position is not None:
        choices[chunk.position] = write(choice)
    return bytes(write({**fields, "choices": write(choices)}))
