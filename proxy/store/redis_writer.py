"""How the Redis store writes behind, and how it lets go of what is idle: two tasks on the event loop.

A batch is cut into chunks, of which each is one script for one tenant. A chunk that got no answer is sent again with
the same number, and the server knows that number if it had written it; so nothing is counted twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import structlog
from msgspec import Struct

from proxy.errors import StoreError
from proxy.store.backlog import Backlog, Batch, Note, merged
from proxy.store.base import LARGE_BYTES, Clock, StoreOptions
from proxy.store.redis_changes import Changes, encode_note
from proxy.store.redis_errors import Refused
from proxy.store.redis_keys import as_bytes
from proxy.store.redis_places import Part, together
from proxy.store.redis_queries import Queries

GATHER = 0.075  # seconds that notes wait for company
RETRY = 0.5  # seconds between attempts to write a backlog that failed
CHUNK_NOTES = 200
CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_TOUCHES = 2000
SWEEP_STEPS = 100  # at most, for one tenant in one run of the background expiry

_log = structlog.get_logger(__name__)


class Chunk(Struct):
    """Notes and renewals of one tenant: arguments for the script, under a number of its own."""

    number: int
    notes: int = 0
    size_bytes: int = 0
    encoded: list[Part] = []
    touches: list[Part] = []

    @property
    def is_full(self) -> bool:
        """Whether it holds as much as one script should write."""
        return self.notes >= CHUNK_NOTES or self.size_bytes >= CHUNK_BYTES or len(self.touches) >= 2 * CHUNK_TOUCHES

    @property
    def parts(self) -> list[Part]:
        """The arguments."""
        return [self.notes, *self.encoded, *self.touches]


class Writer:
    """Writes the backlog of one store, and sweeps."""

    def __init__(self, changes: Changes, queries: Queries, backlog: Backlog, options: StoreOptions) -> None:
        self._changes = changes
        self._queries = queries
        self._backlog = backlog
        self._options = options
        self._name = secrets.token_hex(8)
        self._number = 0
        self._batch: Batch | None = None  # taken from the backlog and not written yet
        self._chunks: dict[str, list[Chunk]] | None = None  # what of it is still to be sent, per tenant
        self._waiting = asyncio.Event()
        self._lock = asyncio.Lock()
        self._healthy = True
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, clock: Clock) -> None:
        """Start the tasks, unless they run already."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._write_for_ever()), loop.create_task(self._sweep_for_ever(clock))]

    def wake(self) -> None:
        """Say that the backlog is no longer empty."""
        self._waiting.set()

    async def settle(self) -> None:
        """Wait until what was written behind so far is confirmed; raises StoreErrors."""
        if self._backlog and not await self._flush():
            await self._flush()

    async def stop(self) -> None:
        """Write what waits, once, and end the tasks."""
        self._is_stopping = True  # a client that was just done swallows a cancellation
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await self.settle()
        self._backlog.discard()

    # -- writing behind

    async def _write_for_ever(self) -> None:
        while not self._is_stopping:
            await self._waiting.wait()
            await asyncio.sleep(GATHER)
            self._waiting.clear()
            try:
                await self.settle()
            except Exception as error:  # noqa: BLE001 - the task outlives whatever happens
                self._report(error)
                self._waiting.set()
                await asyncio.sleep(RETRY)
            else:
                self._report(None)

    async def _flush(self) -> bool:
        """Write the batch begun before, or else all that waits; returns whether it was the latter."""
        async with self._lock:
            is_new = self._batch is None
            if self._batch is None:
                self._batch = self._backlog.take()
            if self._chunks is None:
                self._chunks = await self._cut(self._batch)
            await together(self._send(tenant, chunks) for tenant, chunks in self._chunks.items())
            self._batch = self._chunks = None
            self._backlog.settle()
            return is_new

    async def _cut(self, batch: Batch) -> dict[str, list[Chunk]]:
        """Make chunks, in a thread if there is much to compress."""
        if batch.size_bytes > LARGE_BYTES:
            return await asyncio.to_thread(self._chunks_of, batch)
        return self._chunks_of(batch)

    def _chunks_of(self, batch: Batch) -> dict[str, list[Chunk]]:
        chunks: dict[str, list[Chunk]] = {}
        for note in merged(batch.notes):
            encoded = encode_note(note, self._changes.codec)
            if encoded is None:
                self._backlog.dropped += 1  # nothing can be done with it, and it must not hold up the others
                continue
            chunk = self._open_chunk(chunks, note.tenant)
            chunk.notes += 1
            chunk.size_bytes += _size_of(note)
            chunk.encoded += encoded
        for (tenant, ref), at in batch.touches.items():
            self._open_chunk(chunks, tenant).touches += (as_bytes(ref), repr(at))
        return chunks

    def _open_chunk(self, chunks: dict[str, list[Chunk]], tenant: str) -> Chunk:
        """Return the chunk of a tenant that has room."""
        known = chunks.setdefault(tenant, [])
        if not known or known[-1].is_full:
            self._number += 1
            known.append(Chunk(self._number))
        return known[-1]

    async def _send(self, tenant: str, chunks: list[Chunk]) -> None:
        """Write the chunks of one tenant in order; those that are written are gone from the list."""
        while chunks:
            chunk = chunks[0]
            try:
                dropped = await self._changes.note(tenant, (self._name, chunk.number), chunk.parts)
            except Refused:
                dropped = chunk.notes
            self._backlog.dropped += dropped
            del chunks[0]

    def _report(self, error: Exception | None) -> None:
        """Log when the store fails and when it works again, once each."""
        if (error is None) != self._healthy:
            self._healthy = error is None
            if error is None:
                _log.info("store_works_again")
            else:
                _log.warning("store_fails", reason=str(error))

    # -- expiry

    async def _sweep_for_ever(self, clock: Clock) -> None:
        while not self._is_stopping:
            await asyncio.sleep(self._options.sweep_period)
            with contextlib.suppress(StoreError):  # whoever needs the store next learns why
                for tenant in await self._queries.tenants():
                    if not self._is_stopping:
                        await self._sweep(tenant, clock())

    async def _sweep(self, tenant: str, now: float) -> None:
        """Drop what is idle, and the tips of what was dropped, in a bounded number of steps."""
        for _ in range(SWEEP_STEPS):
            _, more = await self._changes.expire_step(tenant, now)
            if not more or self._is_stopping:
                return

    async def expire(self, now: float) -> int:
        """Drop all that is idle; returns how many sessions and originals went."""
        return sum(await self._queries.each(None, lambda tenant: self._expire(tenant, now)))

    async def _expire(self, tenant: str, now: float) -> int:
        total = 0
        while True:
            gone, _ = await self._changes.expire_step(tenant, now)
            if not gone:
                return total
            total += gone


def _size_of(note: Note) -> int:
    return sum(len(message.data) for message in note.record)
