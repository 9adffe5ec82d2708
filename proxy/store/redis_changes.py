"""What the Redis store writes: calls of the protocol as arguments of scripts, replies as results or errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from proxy.errors import Conflict, Full
from proxy.store.backlog import Note
from proxy.store.base import Clock, Mark, Original, Session, SessionUse, StoreOptions
from proxy.store.codec import pack, storable
from proxy.store.redis_connection import Connection
from proxy.store.redis_keys import as_bytes, as_text
from proxy.store.redis_places import Part
from proxy.store.redis_scripts import (
    APPEND,
    CLAIM,
    DELETE,
    ERASE,
    EXPIRE,
    FACT,
    NOTE,
    PUT,
    REFUSE,
    RELEASE,
    SESSION,
    Script,
)
from proxy.store.sealing import Codec, context_of

SPARE = 3600.0  # seconds that the server waits longer than any sweep would
REMEMBERED = 3600  # seconds for which a batch that was written is not written again
STEP_THINGS = 100
STEP_WORK = 10_000
STEP_TIPS = 1000
LARGEST = 1 << 48  # of numbers to be counted: sums of them stay exact in scripts


class About(Struct, frozen=True, array_like=True):
    """What is known of an original, beside its size."""

    kind: str
    tool: str | None
    tokens: int
    lines: int
    created: float


class Latest(Struct, frozen=True, array_like=True):
    """What a session was last, beside its counters."""

    key: str | None = None
    model: str = ""
    format: str = ""
    preset: str = ""
    messages: int = 0
    edits: int = 0
    compactions: int = 0


class Changes:
    """The changes, bound to one connection; each is one script, and raises StoreErrors."""

    def __init__(self, connection: Connection, options: StoreOptions, clock: Clock) -> None:
        self.codec = Codec(options.encryption_keys)
        self._connection = connection
        self._keys = connection.keys
        self._options = options
        self._clock = clock
        self._backstop = math.ceil(2 * options.idle_ttl + SPARE)
        self._due = math.floor(self._backstop - options.slack)

    async def put_originals(
        self, tenant: str, originals: Sequence[Original], bodies: Sequence[bytes]
    ) -> frozenset[str]:
        """Store originals with their sealed bytes; returns those refused because erased."""
        parts: list[Part] = []
        for original, body in zip(originals, bodies, strict=True):
            o = original
            about = About(storable(o.kind), storable(o.tool), o.tokens, o.lines, o.created)
            parts += (as_bytes(o.ref), as_bytes(o.ledger), o.size_bytes, msgspec.json.encode(about), body)
        reply = await self._run(PUT, tenant, self._quota, *parts)
        if reply[0] == b"full":
            raise Full("the tenant has used up what it may store")
        return frozenset(as_text(ref) for ref in reply[1:])

    async def append(self, tenant: str, ledger: str, at: int, entries: Sequence[bytes], marks: Sequence[Mark]) -> int:
        """Append to a ledger that is as long as the caller thinks; returns its new length."""
        size_bytes = sum(map(len, entries))
        context = context_of("entry", tenant, ledger)
        sealed = [self.codec.seal(entry, context) for entry in entries]
        reply = await self._run(APPEND, tenant, as_bytes(ledger), at, size_bytes, len(sealed), *sealed, *_flat(marks))
        if reply[0] == b"conflict":
            raise Conflict(f"the ledger holds {reply[1]} entries, not {at}", version=reply[1])
        return int(reply[1])

    async def note(self, tenant: str, label: tuple[str, int], notes: Sequence[Part]) -> int:
        """Write a batch, labelled by store and number, unless it was; returns how many records were left out."""
        reply = await self._run(NOTE, tenant, self._quota, *label, REMEMBERED, *notes)
        return int(reply[1])

    async def erase_original(self, tenant: str, ref: str) -> bool:
        """Drop an original and leave a tombstone."""
        return bool(await self._run(ERASE, tenant, as_bytes(ref)))

    async def delete_session(self, tenant: str, session: str) -> bool:
        """Drop a session and the originals that nobody else holds."""
        return bool(await self._run(DELETE, tenant, as_bytes(session)))

    async def expire_step(self, tenant: str, now: float) -> tuple[int, bool]:
        """Drop some of what is idle; returns how much, and whether there may be more to do."""
        before = now - self._options.idle_ttl - self._options.slack
        gone, more = await self._run(EXPIRE, tenant, before, STEP_THINGS, STEP_WORK, STEP_TIPS)
        return int(gone), bool(more)

    async def claim(self, tenant: str, name: str, seconds: float) -> int | None:
        """Take a lock."""
        milliseconds = max(1, math.ceil(seconds * 1000))
        reply = await self._run(CLAIM, tenant, as_bytes(name), milliseconds)
        return None if reply[0] == b"held" else int(reply[1])

    async def release(self, tenant: str, name: str, token: int) -> None:
        """Let go of a lock."""
        await self._connection.run(RELEASE, self._keys.root(tenant), as_bytes(name), token)

    async def put_fact(self, tenant: str, key: str, value: bytes) -> None:
        """Set a fact."""
        await self._run(FACT, tenant, as_bytes(key), pack(value))

    async def put_erased(self, tenant: str, refs: Sequence[str]) -> None:
        """Leave tombstones, in place of what is there."""
        await self._run(REFUSE, tenant, *map(as_bytes, refs))

    async def put_session(self, session: Session, newest: int) -> None:
        """Set the row of a session, making it if it is new."""
        s = session
        figures = {name: getattr(s, name) for name in SessionUse.__struct_fields__ if name != "ledger"}
        latest = msgspec.json.encode(_latest(SessionUse(s.id, **figures)))
        counts = (s.calls, s.received_tokens, s.sent_tokens, s.reads)
        times = (repr(s.created), repr(s.last_used))
        await self._run(SESSION, s.tenant, as_bytes(s.id), *times, latest, *counts, newest)

    @property
    def _quota(self) -> Part:
        return "" if self._options.stored_bytes is None else self._options.stored_bytes

    async def _run(self, script: Script, tenant: str, *arguments: Part) -> Any:  # noqa: ANN401 - replies differ
        """Run a script that writes; the first write of a tenant puts it on the list of all."""
        root = self._keys.root(tenant)
        head = (repr(self._clock()), self._backstop, self._due)
        reply = await self._connection.run(script, root, *head, 0, *arguments)
        if isinstance(reply, list) and reply[0] == b"stranger":
            await self._connection.register(tenant)
            reply = await self._connection.run(script, root, *head, 1, *arguments)
        return reply


def encode_note(note: Note, codec: Codec) -> list[Part] | None:
    """Return a note as arguments of the script; None if it holds numbers that cannot be counted."""
    use = note.use
    counts = (use.calls, use.received_tokens, use.sent_tokens, use.reads)
    lengths = (mark.length for mark in note.marks)
    if any(abs(number) > LARGEST for number in (*counts, *lengths)):
        return None
    record = {message.index: message.data for message in note.record}
    context = context_of("record", note.tenant, use.ledger)
    return [
        as_bytes(use.ledger),
        repr(note.at),
        msgspec.json.encode(_latest(use)),
        *counts,
        len(note.marks),
        *_flat(note.marks),
        len(record),
        *(part for index, data in record.items() for part in (index, len(data), codec.seal(data, context))),
    ]


def _latest(use: SessionUse) -> Latest:
    texts = (storable(use.key), storable(use.model), storable(use.format), storable(use.preset))
    return Latest(*texts, use.messages, use.edits, use.compactions)


def _flat(marks: Sequence[Mark]) -> Iterator[Part]:
    for mark in marks:
        yield mark.key
        yield mark.length
