"""The one thread of a process that follows and writes the log of an object store.

A turn looks for commits of others, answers those who only wanted to be up to date, and then makes one commit of all
that waits: changes that somebody waits for, and the backlog once it has gathered for a moment. A change that is refused
leaves the others alone. If a commit fails, all who wait are told; whether its backlog was written after all shows when
the log is read again, so nothing is counted twice. Blobs that a commit made garbage are deleted before anybody hears of
it: erased means that the bytes are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog
from msgspec import Struct, structs

from proxy.errors import ConfigError, ProxyError, StoreError, Unavailable
from proxy.store.backlog import Backlog, Batch, Note, merged
from proxy.store.base import Clock, StoreOptions
from proxy.store.codec import storable
from proxy.store.objects_blobs import join_messages
from proxy.store.objects_bucket import Bucket
from proxy.store.objects_fold import crowds, fold
from proxy.store.objects_index import Applier, garbage, messages_of
from proxy.store.objects_log import AnyChange, Collected, Touch, Use, blob_key, encode, new_blob
from proxy.store.objects_replica import Replica
from proxy.store.objects_turn import Turn, count_use, expire_some
from proxy.store.sealing import Codec
from proxy.store.sqlite_expiry import BEFORE_ALL_TIPS, sweep_tips

T = TypeVar("T")

GATHER = 0.075  # seconds that notes wait for company
RETRY = 0.5  # seconds between attempts to write a backlog that failed
ANSWER = 5.0  # seconds after which a caller gives up
IMPATIENT = 0.4  # the same while the store is known not to answer
ID_BYTES = 16
MOST_GARBAGE = 1000  # blobs that are deleted together

_log = structlog.get_logger(__name__)


Wish = Callable[[Turn], T]


class Awaited(Struct):
    """A wish that somebody waits for (None: to be up to date), and what came of it."""

    wish: Wish[Any] | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    value: Any = None
    error: Exception | None = None

    def settle(self) -> None:
        """Tell the one who waits; runs on the event loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.value)
        else:
            self.future.set_exception(self.error)


class Writer:
    """Runs wishes in a thread of its own, over the replica of the index."""

    def __init__(self, bucket: Bucket, options: StoreOptions, clock: Clock, backlog: Backlog) -> None:
        self.codec = Codec(options.encryption_keys)
        self.replica = Replica(bucket, self.codec)
        self._bucket = bucket
        self._options = options
        self._clock = clock
        self._backlog = backlog
        self._applier = Applier(options)
        self._queue: list[Awaited] = []
        self._doubt: bytes | None = None  # id of the commit of which it is not known whether it was made
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._notes_due: float | None = None
        self._verify_due = False
        self._closing = False
        self._healthy = True
        self._sweep_due = time.monotonic() + options.sweep_period
        self._orphans_after: int | None = None
        self._snapshot: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    # -- called on the event loop

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        if self._thread.ident is None:
            self._thread.start()

    def wake(self) -> None:
        """Say that the backlog is no longer empty."""
        if self._notes_due is None:
            self._notes_due = time.monotonic() + GATHER
        self._work.set()

    async def submit(self, wish: Wish[T]) -> T:
        """Do something and wait until it is committed; raises what it raised, or a StoreError."""
        value: T = await self._ask(wish)
        return value

    async def refresh(self) -> None:
        """Wait until the copy of the index holds all that was committed anywhere before."""
        await self._ask(None)

    async def settle(self) -> None:
        """Wait until that is so, and what was written behind so far is committed."""
        await self._ask((lambda _: None) if self._backlog else None)

    async def check(self) -> None:
        """Have the copy made anew if it is no longer one of this place."""
        self._verify_due = True
        await self._ask(None)

    async def _ask(self, wish: Wish[Any] | None) -> Any:  # noqa: ANN401  # what the wish returns
        loop = asyncio.get_running_loop()
        awaited = Awaited(wish, loop, loop.create_future())
        with self._lock:
            if self._closing or not self._thread.is_alive():
                raise Unavailable("the store is closed")
            self._queue.append(awaited)
        self._work.set()
        try:
            async with asyncio.timeout(ANSWER if self._healthy else IMPATIENT):
                return await awaited.future
        except TimeoutError:
            raise Unavailable("the store does not answer in time; is it reachable from here?") from None

    async def stop(self) -> None:
        """Write what waits, once, and end the thread."""
        with self._lock:
            self._closing = True
        self._work.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 2 * ANSWER)

    # -- the thread

    def _run(self) -> None:
        closing = False
        while not closing:
            self._work.wait(self._pause())
            self._work.clear()
            with self._lock:
                closing = self._closing
                queue, self._queue = self._queue, []
            self._turn([awaited for awaited in queue if not awaited.future.cancelled()], closing=closing)
            if not closing and time.monotonic() >= self._sweep_due:
                self._housekeep()
        self._backlog.discard()
        if self._snapshot is not None:
            self._snapshot.join(ANSWER)
        self.replica.close()

    def _pause(self) -> float:
        """Seconds to sleep when nobody asks for anything."""
        until = self._sweep_due if self._notes_due is None else min(self._notes_due, self._sweep_due)
        return max(until - time.monotonic(), 0.0)

    def _turn(self, queue: Sequence[Awaited], *, closing: bool) -> None:
        """Get up to date, commit all that waits, and tell those who wait."""
        wishes = [awaited for awaited in queue if awaited.wish is not None]
        try:
            due = closing or bool(wishes) or (self._notes_due is not None and time.monotonic() >= self._notes_due)
            if queue or (due and self._backlog):
                if self._verify_due:
                    self._verify_due = False
                    self.replica.verify()
                self.replica.catch_up()
                self._resolve_doubt()
                _tell([awaited for awaited in queue if awaited.wish is None])
                if due:
                    self._notes_due = None
                    self._commit(wishes)
                self._report(healthy=True)
        except Exception as error:  # noqa: BLE001 - the thread outlives whatever happens; all who wait are told
            self._fail(queue, error)
        _tell(queue)

    def _resolve_doubt(self) -> None:
        """Settle or put back the batch of a commit whose fate was not known."""
        if self._doubt is not None:
            if self._doubt in self.replica.seen:
                self._backlog.settle()
            else:
                self._backlog.put_back()
            self._doubt = None
        self.replica.seen.clear()

    def _commit(self, wishes: Sequence[Awaited]) -> None:
        batch = self._backlog.take()
        attempt = os.urandom(ID_BYTES)
        self._doubt = attempt
        dropped, uses = self._uses(batch)
        left_out: list[Use] = []

        def perform(db: sqlite3.Connection) -> list[AnyChange]:
            turn = Turn(db, self._applier)
            left_out[:] = [use for use in uses if not count_use(turn, use)]
            if batch.touches:
                turn.do(Touch(tuple((tenant, ref, at) for (tenant, ref), at in batch.touches.items())))
            for awaited in wishes:
                _try(turn, awaited)
            return turn.changes

        made = self.replica.commit(perform, attempt)
        self._doubt = None
        self._backlog.settle()
        self._backlog.dropped += dropped + len(left_out)
        if made:
            self._after_commit(wishes, [use.blob for use in left_out if use.blob])

    def _uses(self, batch: Batch) -> tuple[int, list[Use]]:
        """Turn notes into changes, putting their messages into blobs; returns how many could not be, and the rest."""
        dropped, uses = 0, []
        blobs: dict[str, bytes] = {}
        for note in merged(batch.notes):
            use, messages = self._use(note)
            try:
                encode(use)
            except Exception:  # noqa: BLE001 - whatever its values are, it must not hold up the others
                dropped += 1
                continue
            uses.append(use)
            if messages:
                blobs[blob_key(use.blob)] = messages
        self._bucket.put_all(blobs)
        return dropped, uses

    def _use(self, note: Note) -> tuple[Use, bytes]:
        texts = {name: storable(getattr(note.use, name)) for name in ("key", "model", "format", "preset")}
        messages = messages_of(note.record)
        owner = ("session", note.tenant, note.use.ledger)
        use = Use(
            tenant=note.tenant,
            use=structs.replace(note.use, **texts),
            marks=note.marks,
            messages=tuple((message.index, len(message.data)) for message in messages),
            blob=new_blob(*owner) if messages else b"",
            at=note.at,
            slack=self._options.slack,
        )
        return use, join_messages(self.codec, owner, [message.data for message in messages]) if messages else b""

    def _after_commit(self, wishes: Sequence[Awaited], strays: Sequence[bytes]) -> None:
        try:
            self._bucket.delete([blob_key(blob) for blob in strays])
            self._collect()
        except StoreError as error:
            for awaited in wishes:  # the log has forgotten it, but its bytes still lie there
                awaited.error = awaited.error or error
        if self.replica.is_snapshot_due() and (self._snapshot is None or not self._snapshot.is_alive()):
            self._snapshot = threading.Thread(target=self._write_snapshot, name="store-snapshot", daemon=True)
            self._snapshot.start()

    def _collect(self) -> bool:
        """Delete blobs that are garbage; returns whether there were any."""
        blobs = garbage(self.replica.catch_up(), MOST_GARBAGE)
        if blobs:
            self._bucket.delete([blob_key(blob) for blob in blobs if blob])
            self._do(lambda turn: turn.do(Collected(tuple(blobs))))
        return bool(blobs)

    def _fold(self, db: sqlite3.Connection) -> bool:
        """Join small blobs of long sessions; returns whether there were any."""
        folded = 0
        for crowd in crowds(db):
            with contextlib.suppress(StoreError):  # the others may still be joined
                change, blob = fold(db, self._bucket, self.codec, crowd)
                self._bucket.put_all(blob)
                self._do(partial(Turn.do, change=change))
                folded += 1
        return folded > 0

    def _do(self, wish: Wish[Any]) -> Any:  # noqa: ANN401  # what the wish returns
        """Commit something that nobody waits for."""
        result = None

        def perform(db: sqlite3.Connection) -> list[AnyChange]:
            nonlocal result
            turn = Turn(db, self._applier)
            result = wish(turn)
            return turn.changes

        self.replica.commit(perform, os.urandom(ID_BYTES))
        return result

    def _write_snapshot(self) -> None:
        try:
            self.replica.write_snapshot()
        except (StoreError, sqlite3.Error, OSError) as error:
            _log.warning("store_snapshot_failed", reason=str(error))

    def _fail(self, queue: Sequence[Awaited], error: Exception) -> None:
        """Let everybody know, and try to write the backlog again after a while."""
        if isinstance(error, ConfigError):
            meaning: ProxyError = Unavailable(error.message)
        else:
            meaning = error if isinstance(error, StoreError) else Unavailable(f"the store failed: {error}")
        self._report(healthy=False, reason=meaning.message)
        self._notes_due = time.monotonic() + RETRY if self._backlog else None
        for awaited in queue:
            awaited.error = meaning

    def _report(self, *, healthy: bool, reason: str = "") -> None:
        """Log when the store fails and when it works again, once each."""
        if healthy != self._healthy:
            self._healthy = healthy
            if healthy:
                _log.info("store_works_again")
            else:
                _log.warning("store_fails", reason=reason)

    def _housekeep(self) -> None:
        """Drop some of what was idle for too long; come back at once if there may be more."""
        more = False
        try:
            db = self.replica.catch_up()
            more = bool(self._do(lambda turn: expire_some(turn, self._options, self._clock()))) or self._collect()
            more = more or self._fold(db)
            if more:
                self._orphans_after = BEFORE_ALL_TIPS
            elif self._orphans_after is not None:  # each copy sweeps its own: tips without a ledger are invisible
                self._orphans_after = sweep_tips(db, self._orphans_after)
        except Exception as error:  # noqa: BLE001 - the thread outlives whatever happens
            _log.debug("store_housekeeping_failed", reason=str(error))  # whoever needs the store next learns why
        more = more or self._orphans_after is not None
        self._sweep_due = time.monotonic() + (0.0 if more else self._options.sweep_period)


def _try(turn: Turn, awaited: Awaited) -> None:
    """Do one wish; what it refuses concerns it alone."""
    kept = len(turn.changes)
    awaited.value = awaited.error = None
    turn.db.execute("SAVEPOINT wish")
    try:
        awaited.value = awaited.wish(turn) if awaited.wish is not None else None
    except Exception as error:  # noqa: BLE001 - as it says
        awaited.error = error if isinstance(error, ProxyError) else Unavailable(f"the store refuses this: {error}")
        turn.db.execute("ROLLBACK TO wish")
        del turn.changes[kept:]
    turn.db.execute("RELEASE wish")


def _tell(queue: Sequence[Awaited]) -> None:
    """Tell those who wait what came of it, on their loops."""
    for loop in {awaited.loop for awaited in queue}:
        mine = [awaited for awaited in queue if awaited.loop is loop]
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it whoever waited
            loop.call_soon_threadsafe(_settle_all, mine)


def _settle_all(queue: Sequence[Awaited]) -> None:
    for awaited in queue:
        awaited.settle()
