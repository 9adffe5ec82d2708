"""The embedded store: one SQLite file in WAL mode, which several processes may share.

Writes go through one thread per process (`sqlite_writer`), reads of the hot path run on the event loop over a
connection of their own (`sqlite_reader`). What is only written behind is findable through the backlog until
it is in the file, so the look-up of tips asks the backlog first and the file second: a tip that leaves the
backlog in between is then already in the file.

Flushed to the disk before a call returns: entries of ledgers, the secret, erasures and deletions. Only handed
to the kernel, so that a power failure may undo the last moments: originals (the client sends them again),
facts and notes.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs

from proxy.errors import StoreError
from proxy.store import sqlite_queries as queries
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
from proxy.store.sealing import Codec, context_of
from proxy.store.sqlite_changes import Append, Packed, Stored, tenant_id
from proxy.store.sqlite_expiry import delete_session, erase_original, expire_step, refuse_refs
from proxy.store.sqlite_locks import claim, release
from proxy.store.sqlite_reader import Reader
from proxy.store.sqlite_sessions import put_session
from proxy.store.sqlite_tips import find_tips
from proxy.store.sqlite_writer import Writer


class SqliteStore:
    """A store in one file; see `Store` for what each call promises."""

    def __init__(self, path: Path, options: StoreOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._codec = Codec(options.encryption_keys)
        self._backlog = Backlog(options.slack)
        self._writer = Writer(path, options, clock, self._backlog)
        self._changes = self._writer.changes
        self._reader = Reader(lambda: path, lambda: self._writer.generation)

    async def open(self) -> None:
        """Start the writer and check the file."""
        self._writer.start()
        await self._writer.attempt(lambda _: None, durable=False)

    async def close(self) -> None:
        """Write what waits and close the file."""
        await self._writer.stop()
        self._reader.close()

    async def ping(self) -> None:
        """Write something harmless."""
        await self._writer.submit(self._changes.probe, durable=False)

    async def secret(self, create: Callable[[], bytes]) -> bytes:
        """Return the secret; the first process makes it, under the write lock."""
        return await self._writer.submit(lambda db: self._changes.secret(db, create))

    # -- originals

    async def put_originals(self, tenant: str, originals: Sequence[Original]) -> frozenset[str]:
        """Compress and store originals."""
        if not originals:
            return frozenset()
        if sum(len(original.data) for original in originals) > LARGE_BYTES:
            packed = await self._reader.away(lambda: self._pack(tenant, originals))
        else:
            packed = self._pack(tenant, originals)
        return await self._writer.submit(lambda db: self._changes.put_originals(db, tenant, packed), durable=False)

    def _pack(self, tenant: str, originals: Sequence[Original]) -> list[Packed]:
        return [Packed(o, self._codec.seal(o.data, context_of("original", tenant, o.ref))) for o in originals]

    async def get_original(self, tenant: str | None, ref: str) -> Original | Erased | None:
        """Read an original in a thread; a tenant's reading renews it."""
        found = await self._reader.read(lambda db: self._unpack(queries.get_original(db, tenant, ref)))
        if tenant is not None and isinstance(found, Original):
            await self.touch_originals(tenant, [ref])
        return found

    def _unpack(self, found: queries.Body | Erased | None) -> Original | Erased | None:
        if not isinstance(found, queries.Body):
            return found
        context = context_of("original", found.tenant, found.original.ref)
        return structs.replace(found.original, data=self._codec.open(found.data, context))

    async def missing_originals(self, tenant: str, refs: Sequence[str]) -> frozenset[str]:
        """Look refs up."""
        owner = self._reader.owner(tenant)
        if owner is None:
            return frozenset(refs)
        return await self._reader.read(lambda db: queries.missing_originals(db, owner, refs))

    async def erase_original(self, tenant: str | None, ref: str) -> bool:
        """Drop an original for good."""
        return await self._writer.submit(lambda db: erase_original(db, tenant, ref, self._clock()))

    async def list_originals(self, tenant: str | None, ledger: str | None, page: PageRequest) -> Page[Original]:
        """List originals without their bytes."""
        return await self._reader.read(lambda db: queries.list_originals(db, tenant, ledger, page))

    async def touch_originals(self, tenant: str, refs: Sequence[str]) -> None:
        """Queue renewals."""
        if self._backlog.touch(tenant, refs, self._clock()):
            self._writer.wake()

    # -- ledgers

    async def find_tips(self, tenant: str, keys: Sequence[bytes]) -> list[Tip]:
        """Look keys up in the backlog and in the file, on the event loop."""
        return find_tips(self._reader, self._backlog, tenant, keys)

    async def load_ledger(self, tenant: str, ledger: str, after: int = 0) -> list[bytes]:
        """Read entries on the event loop; much of it is unpacked in a thread."""
        owner = self._reader.owner(tenant)
        if owner is None:
            return []
        stored = queries.load_entries(self._reader, owner, ledger, after)
        if sum(map(len, stored)) > LARGE_BYTES:
            return await self._reader.away(lambda: self._open_entries(tenant, ledger, stored))
        return self._open_entries(tenant, ledger, stored)

    def _open_entries(self, tenant: str, ledger: str, stored: Sequence[bytes]) -> list[bytes]:
        context = context_of("entry", tenant, ledger)
        return [self._codec.open(entry, context) for entry in stored]

    async def append_ledger(
        self, tenant: str, ledger: str, at: int, entries: Sequence[bytes], marks: Sequence[Mark]
    ) -> int:
        """Compare and append in one transaction."""
        context = context_of("entry", tenant, ledger)
        stored = tuple(Stored(self._codec.seal(entry, context), len(entry)) for entry in entries)
        wanted = Append(tenant, ledger, at, stored, tuple(marks))
        return await self._writer.submit(lambda db: self._changes.append(db, wanted))

    def note(self, tenant: str, use: SessionUse, marks: Sequence[Mark], record: Sequence[Recorded]) -> None:
        """Queue a note."""
        kept = tuple(record) if self._options.record else ()
        if self._backlog.add(Note(tenant, use, tuple(marks), kept, self._clock())):
            self._writer.wake()

    # -- inspection

    async def load_record(self, tenant: str, ledger: str, start: int, stop: int) -> list[Recorded]:
        """Read recorded messages in a thread."""
        await self._writer.settle()
        owner = self._reader.owner(tenant)
        if owner is None:
            return []
        context = context_of("record", tenant, ledger)

        def load(db: sqlite3.Connection) -> list[Recorded]:
            stored = queries.load_record(db, owner, ledger, (start, stop))
            return [Recorded(message.index, self._codec.open(message.data, context)) for message in stored]

        return await self._reader.read(load)

    async def list_sessions(self, tenant: str | None, page: PageRequest) -> Page[Session]:
        """List sessions."""
        await self._writer.settle()
        return await self._reader.read(lambda db: queries.list_sessions(db, tenant, page))

    async def get_session(self, tenant: str | None, session: str) -> Session | None:
        """Read one session."""
        await self._writer.settle()
        return await self._reader.read(lambda db: queries.get_session(db, tenant, session))

    async def delete_session(self, tenant: str | None, session: str) -> bool:
        """Drop a session."""
        done = await self._writer.submit(lambda db: delete_session(db, tenant, session))
        self._writer.sweep_orphans()
        return done

    async def put_fact(self, tenant: str, key: str, value: bytes) -> None:
        """Set a fact."""
        await self._writer.submit(lambda db: self._changes.put_fact(db, tenant, key, value), durable=False)

    async def facts(self, tenant: str) -> dict[str, bytes]:
        """Read facts."""
        return await self._reader.read(lambda db: queries.facts(db, tenant))

    async def expire(self, now: float) -> int:
        """Drop what was idle, step by step."""
        before = now - self._options.idle_ttl - self._options.slack
        total = 0
        while step := await self._writer.submit(lambda db: expire_step(db, before), durable=False):
            total += step
        if total:
            self._writer.sweep_orphans()
        return total

    async def stats(self) -> StoreStats:
        """Read the totals."""
        with contextlib.suppress(StoreError):  # what is in the file can be told although it takes no writes
            await self._writer.settle()
        return await self._reader.read(lambda db: queries.stats(db, self._backlog.dropped))

    async def claim(self, tenant: str, name: str, seconds: float) -> int | None:
        """Take a lock, under the write lock of the file."""
        return await self._writer.submit(lambda db: claim(db, (tenant, name), self._clock(), seconds), durable=False)

    async def release(self, tenant: str, name: str, token: int) -> None:
        """Let go of a lock."""
        await self._writer.submit(lambda db: release(db, (tenant, name), token), durable=False)

    # -- moving

    async def tenants(self) -> list[str]:
        """List tenants."""
        await self._writer.settle()
        return await self._reader.read(queries.tenants)

    async def list_tips(self, tenant: str, ledgers: Sequence[str]) -> list[Tip]:
        """Read through all tips."""
        await self._writer.settle()
        owner = self._reader.owner(tenant)
        return [] if owner is None else await self._reader.read(lambda db: queries.list_tips(db, owner, ledgers))

    async def list_erased(self, tenant: str) -> list[str]:
        """List tombstones."""
        owner = self._reader.owner(tenant)
        return [] if owner is None else await self._reader.read(lambda db: queries.list_erased(db, owner))

    async def put_erased(self, tenant: str, refs: Sequence[str]) -> None:
        """Leave tombstones."""
        now = self._clock()
        await self._writer.submit(lambda db: refuse_refs(db, tenant_id(db, tenant), refs, now))

    async def put_session(self, session: Session, newest: int) -> None:
        """Set the row of a session."""
        await self._writer.submit(lambda db: put_session(db, session, newest), durable=False)
