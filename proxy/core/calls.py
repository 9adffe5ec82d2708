"""Tool calls of one assistant message, put together from streamed deltas or taken whole.

Providers cut calls in many ways. A delta finds its call by the first rule that fits:

1. its id is known: that call, whatever the index says (head and tail may come under different indices);
2. its id is new: a new call, also on an index in use (some send index 0 for all), unless the call there has none yet;
3. its index is in use: that call;
4. it has no name: the call being streamed, that is the one opened last;
5. otherwise a new call.

Where rule 2 or 3 finds a call whose arguments are whole and the delta brings a name and more arguments, it is a new
call all the same: parallel calls without ids. Nulls, empty strings and a missing `function` add nothing; a name may
come in pieces, or again with every delta.

Whose a call is shows in its name: ours when it is that of a tool of ours, open while it is still the beginning of one,
theirs otherwise. Arguments end a name; so the client's tool `read` is told from a first piece of `read_offloaded`.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, count
from typing import Final, NamedTuple

from msgspec import Raw

from proxy.core.wire.raw import NULL, Fields, is_empty, read_object, read_text, write

_MADE_ID_LENGTH: Final = 9  # Mistral takes exactly nine letters and digits, the others anything
_BODIES: Final = {"function": "arguments", "custom": "input"}
_HEAD_FIELDS: Final = frozenset(("index", "id", "type"))


class Owner(StrEnum):
    """Whose a call is."""

    OPEN = "open"
    OURS = "ours"  # of a tool of ours, or declined: answered here, never shown
    THEIRS = "theirs"


class Route(NamedTuple):
    """A delta, the call it belongs to, what it adds to the arguments, and which parts of the head it brought first."""

    delta: Fields
    call: Call
    text: str
    is_id_new: bool
    is_name_new: bool

    @property
    def is_text_only(self) -> bool:
        """Whether it brings nothing but a piece of the arguments."""
        others = (value for key, value in self.delta.items() if key not in _BODIES and key not in _HEAD_FIELDS)
        return not (self.is_id_new or self.is_name_new) and all(map(is_empty, others))


@dataclass(slots=True, eq=False)
class Call:
    """One tool call."""

    position: int
    id: Raw | None = None
    name: str = ""
    owner: Owner = Owner.OPEN
    is_settled: bool = False  # nothing that follows changes the owner
    fields: Fields = field(default_factory=dict)
    body: Fields = field(default_factory=dict)
    body_key: str = "function"
    pieces: list[str] = field(default_factory=list)
    restored: str | None = None  # the arguments that the client gets, where they are not the model's
    answer: str | None = None  # what the model is told where the call is not carried out
    whole: Raw | None = None  # as it came, where nothing has to be mended
    shown_index: int | None = None  # the index under which the client knows it
    held: list[Route] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self.pieces)

    def settle(self, owner: Owner) -> None:
        """Fix whose the call is."""
        self.owner, self.is_settled = owner, True

    def absorb(self, delta: Fields, tools: Sequence[str]) -> Route:
        """Add a delta."""
        is_id_new = self.id is None and not is_empty(delta.get("id"))
        if is_id_new:
            self.id = delta["id"]
        is_name_new, known = False, len(self.pieces)
        for key, value in delta.items():
            if key in _BODIES:
                is_name_new = self._absorb_body(key, value, tools)
            elif key not in ("id", "index") and not is_empty(value):
                self.fields[key] = value
        self._judge(tools)
        return Route(delta, self, "".join(self.pieces[known:]), is_id_new, is_name_new)

    def encode(self) -> Raw:
        """Return the call as a part of an assistant message."""
        if self.whole is not None:
            return self.whole
        head = {} if self.id is None else {"id": self.id}
        kind = self.fields.get("type") or write(self.body_key)
        arguments = self.arguments if self.restored is None else self.restored
        is_sent_back = self.owner is Owner.OURS and self.body_key == "function"
        if is_sent_back and read_object(arguments.encode("utf-8", "replace")) is None:
            arguments = "{}"  # strict upstreams parse what comes back; the answer says what was wrong
        body = {**self.body, "name": write(self.name), _BODIES[self.body_key]: write(arguments)}
        return write({**head, "type": kind, self.body_key: body, **self._extras()})

    def restore(self, arguments: str) -> None:
        """Give the client other arguments than the model wrote."""
        self.restored = arguments
        if self.whole is not None:
            self.whole = write(_with_text(read_object(self.whole) or {}, self.body_key, arguments))

    def decline(self, answer: str) -> None:
        """Have the call answered with this instead of carried out."""
        self.settle(Owner.OURS)
        self.answer = answer

    def _extras(self) -> Fields:
        return {key: value for key, value in self.fields.items() if key != "type"}

    def _absorb_body(self, key: str, value: Raw, tools: Sequence[str]) -> bool:
        body = read_object(value)
        if body is None:
            return False
        self.body_key = key
        is_name_new = self._absorb_name(read_text(body.pop("name", None)), tools)
        piece = _text_of(body.pop(_BODIES[key], None))
        if piece:
            self.pieces.append(piece)
        self.body.update((name, part) for name, part in body.items() if not is_empty(part))
        return is_name_new

    def _absorb_name(self, piece: str | None, tools: Sequence[str]) -> bool:
        if not piece or piece == self.name or (self.name and self.pieces):
            return False
        self.name = piece if piece in tools else self.name + piece
        return True

    def _judge(self, tools: Sequence[str]) -> None:
        if self.is_settled:
            return
        has_arguments = bool(self.pieces)
        if self.body_key != "function" or not any(tool.startswith(self.name) for tool in tools):
            self.settle(Owner.THEIRS)
        elif self.name in tools:
            self.owner, self.is_settled = Owner.OURS, has_arguments
        elif self.name and has_arguments:
            self.settle(Owner.THEIRS)
        else:
            self.owner = Owner.OPEN


class Calls:
    """All calls of one assistant message, in order."""

    def __init__(self, tools: Sequence[str]) -> None:
        """`tools` are the gateway's own in this request."""
        self._tools = tools
        self._all: list[Call] = []
        self._by_id: dict[bytes, Call] = {}
        self._by_index: dict[int, Call] = {}

    def __iter__(self) -> Iterator[Call]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def of(self, owner: Owner) -> list[Call]:
        """Return the calls of one owner."""
        return [call for call in self._all if call.owner is owner]

    def has(self, owner: Owner) -> bool:
        """Say whether there is a call of this owner."""
        return any(call.owner is owner for call in self._all)

    def are_theirs(self) -> bool:
        """Say whether there are calls, and all of them are the client's for certain."""
        return bool(self._all) and all(call.is_settled and call.owner is Owner.THEIRS for call in self._all)

    def add(self, entries: Iterable[Raw]) -> list[Route]:
        """Give each delta to its call."""
        deltas = (read_object(entry) for entry in entries)
        return [self._find(delta).absorb(delta, self._tools) for delta in deltas if delta is not None]

    def take(self, entries: Iterable[Raw]) -> list[Route]:
        """Add whole calls of a message that was not streamed."""
        routes = []
        for entry in entries:
            delta = read_object(entry)
            if delta is not None:
                call = self._open()
                routes.append(call.absorb(delta, self._tools))
                call.whole = entry
        self.settle_names()
        return routes

    def settle_names(self) -> None:
        """Take every name as complete: the turn has ended."""
        for call in self._all:
            call.settle(Owner.OURS if call.owner is Owner.OURS else Owner.THEIRS)

    def mend(self, salt: bytes) -> None:
        """Make our calls fit to be sent back: an id each, none twice, arguments that are the text of a JSON object."""
        taken = [call.id for call in self._all if call.owner is not Owner.OURS]
        for call in self.of(Owner.OURS):
            if call.id is None or call.id in taken:
                call.id = _make_id(salt, call.position, taken)
                call.whole = None
            elif not _is_well_formed(call):
                call.whole = None
            taken.append(call.id)

    def _find(self, delta: Fields) -> Call:
        index = index_of(delta)
        known = None if index is None else self._by_index.get(index)
        if known is not None and _is_next_call(known, delta):
            known = None
        identity = delta.get("id")
        if identity is not None and not is_empty(identity):
            call = self._by_id.get(bytes(identity))
            if call is None:
                call = known if known is not None and known.id is None else self._open()
            self._by_id[bytes(identity)] = call
        else:
            call = known or self._being_streamed(delta, index) or self._open()
        if index is not None:
            self._by_index[index] = call
        return call

    def _being_streamed(self, delta: Fields, index: int | None) -> Call | None:
        """Return the call opened last if a delta without id on no known index continues it."""
        if not self._all:
            return None
        last = self._all[-1]
        continues_name = index is None and last.owner is Owner.OPEN and not last.pieces
        return last if continues_name or not _name_in(delta) else None

    def _open(self) -> Call:
        call = Call(len(self._all))
        self._all.append(call)
        return call


def restored_routes(held: Sequence[Sequence[Route]]) -> list[tuple[Route, ...]]:
    """Return the deltas of chunks that were held back, with restored arguments in the place of the model's.

    All that the client does not have of them yet comes with the first delta that brings a piece of them.
    """
    if all(route.call.restored is None for route in chain.from_iterable(held)):
        return [tuple(routes) for routes in held]
    held_back: Counter[int] = Counter()
    missing: dict[int, str] = {}
    for route in chain.from_iterable(held):
        call = route.call
        held_back[call.position] += len(route.text)
        if call.restored is not None:
            missing[call.position] = call.restored[len(call.arguments) - held_back[call.position] :]
    return [tuple(r for route in routes if (r := _restored(route, missing)) is not None) for routes in held]


def index_of(delta: Fields) -> int | None:
    """Return the index of a delta; None when it has none that can be meant."""
    index = bytes(delta.get("index", b""))
    return int(index) if index.isdigit() and len(index) < 10 else None


def _body_in(delta: Fields) -> Fields:
    value = delta.get("function") or delta.get("custom")
    return (read_object(value) if value is not None else None) or {}


def _restored(route: Route, missing: dict[int, str]) -> Route | None:
    if route.call.restored is None or not route.text:
        return route
    text = missing.pop(route.call.position, "")
    if not text and route.is_text_only:
        return None
    return route._replace(delta=_with_text(route.delta, route.call.body_key, text), text=text)


def _with_text(fields: Fields, key: str, text: str) -> Fields:
    """Return a delta or a whole call with other arguments, as an object where the model's were one."""
    body = read_object(fields.get(key, NULL)) or {}
    before = body.get(_BODIES[key])
    is_object = not is_empty(before) and read_text(before) is None
    value = Raw(text.encode()) if is_object and text else write(text)
    return {**fields, key: write({**body, _BODIES[key]: value})}


def _name_in(delta: Fields) -> bool:
    return not is_empty(_body_in(delta).get("name"))


def _is_next_call(known: Call, delta: Fields) -> bool:
    """Say whether a delta on a used index starts another call: a name and arguments after whole arguments."""
    if not known.pieces:
        return False
    body = _body_in(delta)
    if is_empty(body.get("name")) or is_empty(body.get("arguments")):
        return False
    return read_object(known.arguments.encode("utf-8", "replace")) is not None


def _is_well_formed(call: Call) -> bool:
    arguments = call.whole and _body_in(read_object(call.whole) or {}).get("arguments")
    text = read_text(arguments) if arguments else None
    return text is not None and "type" in call.fields and read_object(text.encode("utf-8", "replace")) is not None


def _text_of(value: Raw | None) -> str:
    """Return the text of streamed arguments; an object that should have been text, as its JSON."""
    if value is None or (is_empty(value) and bytes(value) != b"{}"):
        return ""
    text = read_text(value)
    return bytes(value).decode("utf-8", "replace") if text is None else text


def _make_id(salt: bytes, position: int, taken: list[Raw | None]) -> Raw:
    """Return an id that depends on nothing but its place, and is not taken."""
    for attempt in count():
        digest = hashlib.blake2b(b"%d.%d" % (position, attempt), key=salt[:64], digest_size=10).digest()
        made = write(b32encode(digest).decode().lower()[:_MADE_ID_LENGTH])
        if made not in taken:
            return made
    raise AssertionError("there are more ids than calls")
