"""The store on Redis: one server, a master watched by Sentinels, or a cluster, shared by any number of gateways.

All that must be true together is one script on the keys of one tenant (see `lua/prelude.lua` for what lies where), and
each look-up of the hot path is one round trip. What is only written behind is findable through the backlog, as in the
embedded store; other changes are made after what was noted before them. Confirmed means that the server has executed
it: whether that outlives the server's own death is for its `appendfsync`, and for how far its replicas are behind.

Times are those of the injected clock. Beside them everything but secret, tombstones and facts has an expiry of the
server's own, which is later than any sweep and drops what no gateway is left to sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import structlog
from msgspec import structs
from redis.exceptions import RedisError

from proxy.errors import Full, StoreError
from proxy.store.backlog import Backlog, Note
from proxy.store.base import (
    LARGE_BYTES,
    Clock,
    Erased,
    Mark,
    Original,
    Page,
    PageRequest,
    Recorded,
    Session,
    SessionUse,
    StoreOptions,
    StoreStats,
    Tip,
)
from proxy.store.redis_address import Address
from proxy.store.redis_changes import Changes
from proxy.store.redis_connection import Connection
from proxy.store.redis_errors import explain, lasting
from proxy.store.redis_keys import PING_SPREAD
from proxy.store.redis_places import together
from proxy.store.redis_queries import Found, Queries
from proxy.store.redis_server import inspect
from proxy.store.redis_writer import Writer
from proxy.store.sealing import context_of

PING_SECONDS = 60

_log = structlog.get_logger(__name__)


class RedisStore:
    """A store on Redis; see `Store` for what each call promises."""

    def __init__(self, address: Address, options: StoreOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._backlog = Backlog(options.slack)
        self._connection = Connection(address)
        self._keys = self._connection.keys
        self._changes = Changes(self._connection, options, clock)
        self._codec = self._changes.codec
        self._queries = Queries(self._connection)
        self._writer = Writer(self._changes, self._queries, self._backlog, options)

    async def open(self) -> None:
        """Connect, start the background tasks, and warn of servers that may forget."""
        self._writer.start(self._clock)
        try:
            await self._connection.attempt()
        except (RedisError, OSError) as error:
            raise lasting(error) or explain(error) from error
        for finding in await self.findings():
            _log.warning("store_may_forget", finding=finding)

    async def findings(self) -> list[str]:
        """Return what is wrong with the servers, one sentence each; raises ConfigError if one is too old."""
        return await inspect(self._connection)

    async def close(self) -> None:
        """Write what waits and disconnect."""
        await self._writer.stop()
        await self._connection.close()

    async def ping(self) -> None:
        """Write something harmless to every server that takes writes."""
        keys = self._connection.spread([self._keys.ping(number) for number in range(PING_SPREAD)])
        await together(self._connection.command(key, "SET", key, 1, "EX", PING_SECONDS) for key in keys)

    async def secret(self, create: Callable[[], bytes]) -> bytes:
        """Return the secret; of several that are made at once the first one stays."""
        key = self._keys.secret
        known = await self._connection.command(key, "GET", key)
        if known is None:
            await self._connection.command(key, "SET", key, create(), "NX")
            known = await self._connection.command(key, "GET", key)
        return bytes(known)

    # -- originals

    async def put_originals(self, tenant: str, originals: Sequence[Original]) -> frozenset[str]:
        """Compress and store originals."""
        if not originals:
            return frozenset()
        if sum(len(original.data) for original in originals) > LARGE_BYTES:
            bodies = await asyncio.to_thread(self._seal, tenant, originals)
        else:
            bodies = self._seal(tenant, originals)
        await self._writer.settle()
        return await self._changes.put_originals(tenant, originals, bodies)

    def _seal(self, tenant: str, originals: Sequence[Original]) -> list[bytes]:
        return [self._codec.seal(o.data, context_of("original", tenant, o.ref)) for o in originals]

    async def get_original(self, tenant: str | None, ref: str) -> Original | Erased | None:
        """Read an original; a tenant's reading renews it."""
        answers = await self._queries.each(tenant, lambda owner: self._queries.get_original(owner, ref))
        found = [answer for answer in answers if isinstance(answer, Found)]
        if not found:
            return next((answer for answer in answers if isinstance(answer, Erased)), None)
        if tenant is not None:
            await self.touch_originals(tenant, [ref])
        known = found[0]
        (data,) = await self._open([known.body], context_of("original", known.tenant, ref))
        return structs.replace(known.original, data=data)

    async def _open(self, sealed: Sequence[bytes], context: bytes) -> list[bytes]:
        """Return values, opened in a thread if that takes long."""
        if sum(map(len, sealed)) > LARGE_BYTES:
            return await asyncio.to_thread(lambda: [self._codec.open(value, context) for value in sealed])
        return [self._codec.open(value, context) for value in sealed]

    async def missing_originals(self, tenant: str, refs: Sequence[str]) -> frozenset[str]:
        """Look refs up."""
        return await self._queries.missing_originals(tenant, refs) if refs else frozenset()

    async def erase_original(self, tenant: str | None, ref: str) -> bool:
        """Drop an original for good."""
        return any(await self._queries.each(tenant, lambda owner: self._changes.erase_original(owner, ref)))

    async def list_originals(self, tenant: str | None, ledger: str | None, page: PageRequest) -> Page[Original]:
        """List originals without their bytes."""
        return await self._queries.list_originals(tenant, ledger, page)

    async def touch_originals(self, tenant: str, refs: Sequence[str]) -> None:
        """Queue renewals."""
        if self._backlog.touch(tenant, refs, self._clock()):
            self._writer.wake()

    # -- ledgers

    async def find_tips(self, tenant: str, keys: Sequence[bytes]) -> list[Tip]:
        """Look keys up in the backlog and then on the server."""
        if not keys:
            return []
        waiting = self._backlog.find(tenant, keys)  # first: what has left the backlog by then is on the server
        ledgers = list(dict.fromkeys(ledger for lengths in waiting.values() for ledger in lengths))
        tips, states = await self._queries.find_tips(tenant, keys, ledgers)
        for key, lengths in waiting.items():
            ledger = tips[key].ledger if key in tips else next(iter(lengths))
            if ledger in lengths:
                tips[key] = Tip(key, ledger, lengths[ledger], *states[ledger])
        return [self._completed(tenant, tips[key]) for key in keys if key in tips]

    def _completed(self, tenant: str, tip: Tip) -> Tip:
        """Add what waits to be written about the ledger of a tip."""
        newest = max(tip.newest, self._backlog.newest(tenant, tip.ledger))
        return Tip(tip.key, tip.ledger, tip.length, tip.version, newest)

    async def load_ledger(self, tenant: str, ledger: str, after: int = 0) -> list[bytes]:
        """Read entries; much of it is unpacked in a thread."""
        stored = await self._queries.load_entries(tenant, ledger, after)
        return await self._open(stored, context_of("entry", tenant, ledger))

    async def append_ledger(
        self, tenant: str, ledger: str, at: int, entries: Sequence[bytes], marks: Sequence[Mark]
    ) -> int:
        """Compare and append in one script."""
        await self._writer.settle()
        return await self._changes.append(tenant, ledger, at, entries, marks)

    def note(self, tenant: str, use: SessionUse, marks: Sequence[Mark], record: Sequence[Recorded]) -> None:
        """Queue a note."""
        kept = tuple(record) if self._options.record else ()
        if self._backlog.add(Note(tenant, use, tuple(marks), kept, self._clock())):
            self._writer.wake()

    # -- locks

    async def claim(self, tenant: str, name: str, seconds: float) -> int | None:
        """Take a lock; its time is the server's."""
        return await self._changes.claim(tenant, name, seconds)

    async def release(self, tenant: str, name: str, token: int) -> None:
        """Let go of a lock."""
        await self._changes.release(tenant, name, token)

    # -- inspection

    async def load_record(self, tenant: str, ledger: str, start: int, stop: int) -> list[Recorded]:
        """Read recorded messages."""
        await self._writer.settle()
        sealed = await self._queries.load_record(tenant, ledger, (start, stop))
        data = await self._open([message.data for message in sealed], context_of("record", tenant, ledger))
        return [Recorded(message.index, value) for message, value in zip(sealed, data, strict=True)]

    async def list_sessions(self, tenant: str | None, page: PageRequest) -> Page[Session]:
        """List sessions."""
        await self._writer.settle()
        return await self._queries.list_sessions(tenant, page)

    async def get_session(self, tenant: str | None, session: str) -> Session | None:
        """Read one session."""
        await self._writer.settle()
        return await self._queries.get_session(tenant, session)

    async def delete_session(self, tenant: str | None, session: str) -> bool:
        """Drop a session."""
        await self._settle_if_room()
        return any(await self._queries.each(tenant, lambda owner: self._changes.delete_session(owner, session)))

    async def _settle_if_room(self) -> None:
        """Write what waits, unless only dropping makes room for that."""
        with contextlib.suppress(Full):
            await self._writer.settle()

    async def put_fact(self, tenant: str, key: str, value: bytes) -> None:
        """Set a fact."""
        await self._changes.put_fact(tenant, key, value)

    async def facts(self, tenant: str) -> dict[str, bytes]:
        """Read facts."""
        return await self._queries.facts(tenant)

    async def expire(self, now: float) -> int:
        """Drop what was idle, step by step."""
        await self._settle_if_room()
        return await self._writer.expire(now)

    async def stats(self) -> StoreStats:
        """Read the totals."""
        with contextlib.suppress(StoreError):  # what is on the server can be told although it takes no writes
            await self._writer.settle()
        return await self._queries.stats(self._backlog.dropped)

    # -- moving

    async def tenants(self) -> list[str]:
        """List tenants."""
        await self._writer.settle()
        return await self._queries.tenants()

    async def list_tips(self, tenant: str, ledgers: Sequence[str]) -> list[Tip]:
        """Read through all tips."""
        await self._writer.settle()
        return await self._queries.list_tips(tenant, ledgers) if ledgers else []

    async def list_erased(self, tenant: str) -> list[str]:
        """List tombstones."""
        return await self._queries.list_erased(tenant)

    async def put_erased(self, tenant: str, refs: Sequence[str]) -> None:
        """Leave tombstones."""
        await self._writer.settle()
        if refs:
            await self._changes.put_erased(tenant, refs)

    async def put_session(self, session: Session, newest: int) -> None:
        """Set the row of a session."""
        await self._writer.settle()
        await self._changes.put_session(session, newest)
