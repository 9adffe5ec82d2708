"""The store in a bucket (S3, Google, Azure) or a plain folder: blobs of bytes, and a log of what is known about them.

Every change is a conditional put of the next commit of one log (`objects_log`), so calls of all processes on one
place have one order: quotas are exact, ledgers have one winner, lists are the same for all. Each process keeps a copy
of the index that the log describes (`objects_replica`) and looks for newer commits before it answers from it: one
small request for all that is asked for at the same time. Bytes go into blobs first and then into the log by name.

What a process writes behind goes into one commit about every tenth of a second. One place takes some tens of commits
per second, so a few busy processes may share it; more of them want another store in front (`tier`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import structs

from proxy.errors import Conflict, Full, StoreError, Unavailable
from proxy.store import sqlite_queries as queries
from proxy.store.backlog import Backlog, Note
from proxy.store.base import (
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
from proxy.store.codec import storable
from proxy.store.objects_blobs import Blobs
from proxy.store.objects_bucket import ANSWER, Bucket
from proxy.store.objects_index import room_left, unknown_refs
from proxy.store.objects_log import (
    Append,
    Claim,
    Delete,
    Erase,
    PutFact,
    PutOriginals,
    PutSecret,
    PutSession,
    Refuse,
    Release,
    blob_folder,
)
from proxy.store.objects_sweep import sweep_blobs
from proxy.store.objects_turn import Turn, expire_some
from proxy.store.objects_writer import Writer
from proxy.store.sqlite_locks import is_held
from proxy.store.sqlite_reader import Reader
from proxy.store.sqlite_tips import find_tips

MOST_ATTEMPTS = 3  # to store originals that somebody else drops at the same time


class ObjectsStore:
    """A store in a bucket or a folder; see `Store` for what each call promises."""

    def __init__(self, url: str, options: StoreOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._bucket = Bucket(url)
        self._backlog = Backlog(options.slack)
        self._writer = Writer(self._bucket, options, clock, self._backlog)
        replica = self._writer.replica
        self._reader = Reader(lambda: replica.path, lambda: replica.generation)
        self._blobs = Blobs(self._bucket, self._writer.codec)

    async def open(self) -> None:
        """Check that the place is ours, and read its log."""
        self._writer.start()
        try:
            async with asyncio.timeout(ANSWER):
                await asyncio.to_thread(self._writer.replica.check_schema)
        except TimeoutError:
            raise Unavailable(f"the store at {self._bucket.place} does not answer in time") from None
        await self._writer.refresh()

    async def close(self) -> None:
        """Write what waits and let go of the copy of the index."""
        await self._writer.stop()
        self._reader.close()

    async def ping(self) -> None:
        """Write something harmless, and see whether the log is still the one that we know."""
        await self._bucket.aput({"probe": b"ullage"})
        await self._writer.check()

    async def secret(self, create: Callable[[], bytes]) -> bytes:
        """Return the secret; the first commit that holds one decides."""

        def wish(turn: Turn) -> bytes:
            row = turn.db.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
            return bytes(row[0]) if row is not None else bytes(turn.do(PutSecret(create())))

        return await self._writer.submit(wish)

    # -- originals

    async def put_originals(self, tenant: str, originals: Sequence[Original]) -> frozenset[str]:
        """Write the bytes of those that are not known, then say in the log that they are there."""
        if not originals:
            return frozenset()
        described = tuple(structs.replace(o, tool=storable(o.tool), data=b"") for o in originals)
        blobs: dict[str, bytes] = {}
        try:
            for _ in range(MOST_ATTEMPTS):
                lacking = await self._lacking(tenant, originals)
                blobs |= await self._blobs.put_originals(tenant, [o for o in lacking if o.ref not in blobs])
                wish = partial(_put, tenant=tenant, originals=described, blobs=blobs, now=self._clock())
                refused = await self._writer.submit(wish)
                if refused is not None:
                    return refused
        except (StoreError, asyncio.CancelledError) as error:
            if isinstance(error, Full):  # after anything else the log may mention them all the same
                await self._blobs.discard(blobs.values())
            raise
        raise Unavailable("originals were dropped while they were stored")

    async def _lacking(self, tenant: str, originals: Sequence[Original]) -> list[Original]:
        """Return the originals of which bytes have to be written; raises Full if these do not fit."""
        lacking, fits = await self._reader.read(lambda db: self._look(db, tenant, originals))
        if not fits:  # as far as this copy of the index knows
            await self._writer.refresh()
            lacking, fits = await self._reader.read(lambda db: self._look(db, tenant, originals))
        if not fits:
            raise Full("the tenant has used up what it may store")
        return lacking

    def _look(self, db: sqlite3.Connection, tenant: str, originals: Sequence[Original]) -> tuple[list[Original], bool]:
        """Return the originals that are not known, and whether there is room for them."""
        lacking = list(unknown_refs(db, tenant, originals).values())
        quota = self._options.stored_bytes
        if quota is None or not lacking:
            return lacking, True
        return lacking, sum(original.size_bytes for original in lacking) <= room_left(db, tenant, quota)

    async def get_original(self, tenant: str | None, ref: str) -> Original | Erased | None:
        """Read an original; a tenant's reading renews it."""
        for _ in range(2):  # a blob may go between the look at the index and its reading, but not twice
            await self._writer.refresh()
            found = await self._reader.read(lambda db: queries.get_original(db, tenant, ref))
            if not isinstance(found, queries.Body):
                return found
            data = await self._blobs.original(found.tenant, ref, found.data)
            if data is not None:
                if tenant is not None:
                    await self.touch_originals(tenant, [ref])
                return structs.replace(found.original, data=data)
        raise Unavailable(f"the store at {self._bucket.place} has lost the bytes of an original")

    async def missing_originals(self, tenant: str, refs: Sequence[str]) -> frozenset[str]:
        """Look refs up."""
        await self._writer.refresh()
        owner = self._reader.owner(tenant)
        if owner is None:
            return frozenset(refs)
        return await self._reader.read(lambda db: queries.missing_originals(db, owner, refs))

    async def erase_original(self, tenant: str | None, ref: str) -> bool:
        """Drop an original for good, with every blob that was ever written for it."""
        owners = await self._owners(tenant, ref)
        done: bool = await self._writer.submit(lambda turn: turn.do(Erase(tenant, ref, self._clock())))
        await self._purge(owners, ref)
        return done

    async def _owners(self, tenant: str | None, ref: str) -> list[str]:
        if tenant is not None:
            return [tenant]
        await self._writer.refresh()
        return await self._reader.read(lambda db: queries.owners_of(db, ref))

    async def _purge(self, owners: Sequence[str], ref: str) -> None:
        """Delete the blobs of refs that are refused now, those of failed attempts to store them, too."""
        for owner in owners:
            if isinstance(await self._reader.read(partial(queries.get_original, tenant=owner, ref=ref)), Erased):
                await asyncio.to_thread(self._bucket.delete_below, blob_folder("original", owner, ref))

    async def list_originals(self, tenant: str | None, ledger: str | None, page: PageRequest) -> Page[Original]:
        """List originals without their bytes."""
        await self._writer.refresh()
        return await self._reader.read(lambda db: queries.list_originals(db, tenant, ledger, page))

    async def touch_originals(self, tenant: str, refs: Sequence[str]) -> None:
        """Queue renewals."""
        if self._backlog.touch(tenant, refs, self._clock()):
            self._writer.wake()

    # -- ledgers

    async def find_tips(self, tenant: str, keys: Sequence[bytes]) -> list[Tip]:
        """Look keys up in the backlog and in the index."""
        await self._writer.refresh()
        return await self.glance_tips(tenant, keys)

    async def glance_tips(self, tenant: str, keys: Sequence[bytes]) -> list[Tip]:
        """Do the same in this copy of the index as it is; part of what a tier asks for (`Copied`)."""
        return find_tips(self._reader, self._backlog, tenant, keys)

    async def load_ledger(self, tenant: str, ledger: str, after: int = 0) -> list[bytes]:
        """Read entries."""

        async def look() -> list[bytes]:
            owner = self._reader.owner(tenant)
            return [] if owner is None else queries.load_entries(self._reader, owner, ledger, after)

        await self._writer.refresh()
        rows = await look()
        values = await self._blobs.values(tenant, ledger, rows)
        if values is None:  # the session went in between, unless it is still there
            await self._writer.refresh()
            values = await self._blobs.values(tenant, ledger, await look())
        if values is None:
            raise Unavailable(f"the store at {self._bucket.place} has lost entries of a ledger")
        return values

    async def append_ledger(
        self, tenant: str, ledger: str, at: int, entries: Sequence[bytes], marks: Sequence[Mark]
    ) -> int:
        """Write the entries, then say in the log that they follow, if they do."""
        await self._expect(tenant, ledger, at)
        blob = await self._blobs.put_entries(tenant, ledger, entries)
        sizes = tuple(len(entry) for entry in entries)
        change = Append(tenant, ledger, at, sizes, blob, tuple(marks), self._clock())
        try:
            version: int = await self._writer.submit(lambda turn: turn.do(change))
        except Conflict:
            await self._blobs.discard([blob] if blob else [])
            raise
        return version

    async def _expect(self, tenant: str, ledger: str, at: int) -> None:
        """Raise Conflict if it can be told beforehand, before entries are written in vain."""
        if self._version(tenant, ledger) != at:
            await self._writer.refresh()
            version = self._version(tenant, ledger)
            if version != at:
                raise Conflict(f"the ledger holds {version} entries, not {at}", version=version)

    def _version(self, tenant: str, ledger: str) -> int:
        owner = self._reader.owner(tenant)
        return 0 if owner is None else queries.ledger_state(self._reader, owner, ledger)[0]

    def note(self, tenant: str, use: SessionUse, marks: Sequence[Mark], record: Sequence[Recorded]) -> None:
        """Queue a note."""
        kept = tuple(record) if self._options.record else ()
        if self._backlog.add(Note(tenant, use, tuple(marks), kept, self._clock())):
            self._writer.wake()

    # -- inspection

    async def load_record(self, tenant: str, ledger: str, start: int, stop: int) -> list[Recorded]:
        """Read recorded messages."""
        for _ in range(2):  # as with originals
            await self._writer.settle()
            owner = self._reader.owner(tenant)
            if owner is None:
                return []
            load = partial(queries.load_record, owner=owner, ledger=ledger, span=(start, stop))
            rows = await self._reader.read(load)
            values = await self._blobs.values(tenant, ledger, [row.data for row in rows])
            if values is not None:
                return [Recorded(row.index, value) for row, value in zip(rows, values, strict=True)]
        raise Unavailable(f"the store at {self._bucket.place} has lost a part of a record")

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
        done: bool = await self._writer.submit(lambda turn: turn.do(Delete(tenant, session)))
        return done

    async def put_fact(self, tenant: str, key: str, value: bytes) -> None:
        """Set a fact."""
        await self._writer.submit(lambda turn: turn.do(PutFact(tenant, key, value)))

    async def facts(self, tenant: str) -> dict[str, bytes]:
        """Read facts."""
        await self._writer.refresh()
        return await self._reader.read(lambda db: queries.facts(db, tenant))

    async def claim(self, tenant: str, name: str, seconds: float) -> int | None:
        """Take a lock: the order of the log decides."""
        change = Claim(tenant, name, self._clock(), seconds)

        def wish(turn: Turn) -> int | None:
            if is_held(turn.db, (tenant, name), change.at):  # who only asks writes nothing
                return None
            token: int = turn.do(change)
            return token

        return await self._writer.submit(wish)

    async def release(self, tenant: str, name: str, token: int) -> None:
        """Let go of a lock."""
        await self._writer.submit(lambda turn: turn.do(Release(tenant, name, token)))

    async def expire(self, now: float) -> int:
        """Drop what was idle, step by step, and the blobs that failed attempts left behind long ago."""
        total = 0
        while step := await self._writer.submit(lambda turn: expire_some(turn, self._options, now)):
            total += step
        await sweep_blobs(self._bucket, self._reader)
        return total

    async def stats(self) -> StoreStats:
        """Read the totals."""
        with contextlib.suppress(StoreError):  # what is in the copy can be told although the place does not answer
            await self._writer.settle()
        return await self._reader.read(lambda db: queries.stats(db, self._backlog.dropped))

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
        await self._writer.refresh()
        owner = self._reader.owner(tenant)
        return [] if owner is None else await self._reader.read(lambda db: queries.list_erased(db, owner))

    async def put_erased(self, tenant: str, refs: Sequence[str]) -> None:
        """Leave tombstones."""
        change = Refuse(tenant, tuple(refs), self._clock())
        await self._writer.submit(lambda turn: turn.do(change))

    async def put_session(self, session: Session, newest: int) -> None:
        """Set the row of a session."""
        await self._writer.submit(lambda turn: turn.do(PutSession(session, newest)))


def _put(
    turn: Turn, tenant: str, originals: tuple[Original, ...], blobs: dict[str, bytes], now: float
) -> frozenset[str] | None:
    """Say that originals are stored; None if the bytes of one are lacking, since it was dropped meanwhile."""
    if not unknown_refs(turn.db, tenant, originals).keys() <= blobs.keys():
        return None
    refused: frozenset[str] = turn.do(PutOriginals(tenant, originals, blobs, now))
    return refused
