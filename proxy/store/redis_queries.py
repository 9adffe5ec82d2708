"""What the Redis store reads: replies of scripts as structs of the protocol, of one tenant or of all together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from proxy.store.base import (
    Erased,
    Original,
    Page,
    PageRequest,
    Recorded,
    Session,
    StoreStats,
    Tip,
    encode_cursor,
)
from proxy.store.codec import unpack
from proxy.store.redis_changes import About, Latest
from proxy.store.redis_connection import Connection
from proxy.store.redis_keys import as_bytes, as_text
from proxy.store.redis_places import together
from proxy.store.redis_scripts import FIND, GET, MISSING, ORIGINALS, RECORD, SESSIONS, TOTALS

T = TypeVar("T")

TENANTS = 32  # asked at a time, when all are
AT_ONCE = 1000  # tips that one command reads


class Found(Struct, frozen=True):
    """An original of a tenant as it lies on the server: its bytes are sealed."""

    tenant: str
    original: Original
    body: bytes


class Row(Struct, frozen=True):
    """One item of a list, with the number that orders it; None for one that the server has dropped by itself."""

    number: int
    item: Any


class Queries:
    """The queries, bound to one connection; each is one script per tenant."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._keys = connection.keys

    async def tenants(self, asker: str | None = None) -> list[str]:
        """Return the tenant that asks, or all for the administration."""
        if asker is not None:
            return [asker]
        key = self._keys.tenants
        return sorted(as_text(name) for name in await self._connection.command(key, "SMEMBERS", key))

    async def each(self, asker: str | None, ask: Callable[[str], Awaitable[T]]) -> list[T]:
        """Ask something of every tenant that the asker may see, some at a time."""
        tenants = await self.tenants(asker)
        answers: list[T] = []
        for start in range(0, len(tenants), TENANTS):
            answers += await together(ask(tenant) for tenant in tenants[start : start + TENANTS])
        return answers

    async def find_tips(
        self, tenant: str, keys: Sequence[bytes], ledgers: Sequence[str]
    ) -> tuple[dict[bytes, Tip], dict[str, tuple[int, int]]]:
        """Look keys up; returns their tips, and (entries, newest) of some ledgers, (0, 0) for those unknown."""
        names = [as_bytes(ledger) for ledger in ledgers]
        rows, states = await self._connection.run(FIND, self._keys.root(tenant), len(keys), *keys, *names)
        tips = {
            keys[at]: Tip(keys[at], as_text(ledger), length, version, newest)
            for at, ledger, length, version, newest in rows
        }
        return tips, {ledger: (state[0], state[1]) for ledger, state in zip(ledgers, states, strict=True)}

    async def load_entries(self, tenant: str, ledger: str, after: int) -> list[bytes]:
        """Return entries as they lie on the server."""
        key = self._keys.entries(tenant, ledger)
        return list(await self._connection.command(key, "LRANGE", key, after, -1))

    async def get_original(self, tenant: str, ref: str) -> Found | Erased | None:
        """Return an original, or its tombstone."""
        reply = await self._connection.run(GET, self._keys.root(tenant), as_bytes(ref))
        if isinstance(reply, int):
            return Erased(ref) if reply else None
        about, body, holder = reply
        return Found(tenant, _original(ref, as_text(holder), about), body)

    async def missing_originals(self, tenant: str, refs: Sequence[str]) -> frozenset[str]:
        """Return the refs that are neither stored nor erased."""
        names = [as_bytes(ref) for ref in refs]
        return frozenset(as_text(ref) for ref in await self._connection.run(MISSING, self._keys.root(tenant), *names))

    async def list_originals(self, asker: str | None, ledger: str | None, page: PageRequest) -> Page[Original]:
        """List originals, last stored first."""
        before = _before(page)

        async def ask(tenant: str) -> list[Row]:
            parts = (before, page.size + 1, as_bytes(ledger or ""))
            reply = await self._connection.run(ORIGINALS, self._keys.root(tenant), *parts)
            return [
                Row(int(number), _original(as_text(ref), as_text(holder), about))
                for number, ref, about, holder in reply
            ]

        return _page(await self.each(asker, ask), page)

    async def list_sessions(self, asker: str | None, page: PageRequest) -> Page[Session]:
        """List sessions, last created first."""
        before = _before(page)

        async def ask(tenant: str) -> list[Row]:
            reply = await self._connection.run(SESSIONS, self._keys.root(tenant), before, page.size + 1)
            return [Row(int(row[0]), _session(tenant, row)) for row in reply]

        return _page(await self.each(asker, ask), page)

    async def get_session(self, asker: str | None, session: str) -> Session | None:
        """Return a session; the administration gets the last created one of that id."""

        async def ask(tenant: str) -> list[Row]:
            reply = await self._connection.run(SESSIONS, self._keys.root(tenant), "", "", as_bytes(session))
            return [Row(int(row[0]), _session(tenant, row)) for row in reply]

        found = [row for rows in await self.each(asker, ask) for row in rows]
        item: Session | None = max(found, key=lambda row: row.number).item if found else None
        return item

    async def load_record(self, tenant: str, ledger: str, span: tuple[int, int]) -> list[Recorded]:
        """Return the messages from the first index of `span` up to, not including, the second, still sealed."""
        reply = await self._connection.run(RECORD, self._keys.root(tenant), as_bytes(ledger), *span)
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [Recorded(int(index), stored.partition(b" ")[2]) for index, stored in pairs]

    async def facts(self, tenant: str) -> dict[str, bytes]:
        """Return what was learnt for a tenant."""
        key = self._keys.facts(tenant)
        reply = await self._connection.command(key, "HGETALL", key)
        return {as_text(name): unpack(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}

    async def list_tips(self, tenant: str, ledgers: Sequence[str]) -> list[Tip]:
        """Return all tips of some ledgers; reads through all of the tenant's."""
        root = self._keys.root(tenant)
        numbers = await self._connection.command(root, "ZMSCORE", f"{root}:ls", *map(as_bytes, ledgers))
        wanted = {b"%d" % int(number) for number in numbers if number is not None}
        keys: dict[bytes, None] = {}
        cursor = b"0"
        while True:
            cursor, found = await self._connection.command(root, "HSCAN", f"{root}:t", cursor, "COUNT", AT_ONCE)
            keys.update(
                {key: None for key, tip in zip(found[::2], found[1::2], strict=True) if tip.split()[0] in wanted}
            )
            if cursor == b"0":
                break
        tips: dict[bytes, Tip] = {}
        for batch in _batches(list(keys)):
            tips |= (await self.find_tips(tenant, batch, []))[0]
        return list(tips.values())

    async def list_erased(self, tenant: str) -> list[str]:
        """Return the refs that have a tombstone."""
        root = self._keys.root(tenant)
        return [as_text(ref) for ref in await self._connection.command(root, "HKEYS", f"{root}:x")]

    async def stats(self, dropped: int) -> StoreStats:
        """Return the totals."""

        async def ask(tenant: str) -> list[int]:
            return [int(number) for number in await self._connection.run(TOTALS, self._keys.root(tenant))]

        totals = await self.each(None, ask)
        originals, stored_bytes, sessions = (
            (sum(column) for column in zip(*totals, strict=True)) if totals else (0, 0, 0)
        )
        return StoreStats(originals, stored_bytes, sessions, dropped)


def _batches(keys: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(keys), AT_ONCE):
        yield keys[start : start + AT_ONCE]


def _before(page: PageRequest) -> str:
    """Return the end of the numbers that a page may hold; raises BadRequest for a wrong cursor."""
    return "+inf" if page.position is None else f"({page.position}"


def _page(lists: Sequence[Sequence[Row]], page: PageRequest) -> Page[Any]:
    """Merge what several tenants have; a page does not end between two things with the same number."""
    rows = sorted((row for rows in lists for row in rows), key=lambda row: -row.number)
    chosen, rest = rows[: page.size], rows[page.size :]
    following = None
    if rest:
        chosen = [row for row in chosen if row.number != rest[0].number] or chosen
        following = encode_cursor(chosen[-1].number)
    return Page([row.item for row in chosen if row.item is not None], following)


def _original(ref: str, ledger: str, stored: bytes) -> Original:
    _, size, encoded = stored.split(b" ", 2)
    about = msgspec.json.decode(encoded, type=About)
    return Original(ref, ledger, about.kind, about.tool, about.tokens, about.lines, int(size), about.created)


def _session(tenant: str, row: Sequence[Any]) -> Session | None:
    _, name, used, counted, originals, fields = row
    created, use, *counters = fields
    if created is None:
        return None
    calls, received, sent, reads, held = (int(counter or 0) for counter in counters)
    latest = msgspec.json.decode(use, type=Latest) if use else Latest()
    return Session(
        id=as_text(name),
        tenant=tenant,
        key=latest.key,
        created=float(created),
        last_used=float(used or created),
        model=latest.model,
        format=latest.format,
        preset=latest.preset,
        calls=calls,
        messages=latest.messages,
        received_tokens=received,
        sent_tokens=sent,
        edits=latest.edits,
        compactions=latest.compactions,
        reads=reads,
        originals=originals,
        stored_bytes=int(counted) + held,
    )
