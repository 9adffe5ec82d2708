"""The one thread of a process that writes to the embedded store.

Changes that somebody waits for are committed together: whatever arrived during one commit goes into the next.
What is written behind rides along, or is committed a moment after it came. A commit is flushed to the disk
(FULL) if one of its changes asks for that, else only handed to the kernel (NORMAL), which survives the death
of the process but not of the machine. Each awaited change has its own savepoint, so that a refused one leaves
the others alone; if the commit itself fails, all of them fail, the backlog waits for the next attempt, and
the thread goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from msgspec import Struct

from proxy.errors import ConfigError, ProxyError, Unavailable
from proxy.store.backlog import Backlog, Batch, Note
from proxy.store.base import Clock, Recorded, StoreOptions
from proxy.store.sealing import Codec, context_of
from proxy.store.sqlite_changes import Changes
from proxy.store.sqlite_expiry import BEFORE_ALL_TIPS, expire_step, sweep_tips
from proxy.store.sqlite_notes import write_batch
from proxy.store.sqlite_schema import begin, concerns_all, connect_writer, explain, prepare

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], T]

GATHER = 0.075  # seconds that notes wait for company
RETRY = 0.5  # seconds between attempts to write a backlog that failed
ANSWER = 5.0  # seconds after which a caller gives up on a disk that does not answer

_log = structlog.get_logger(__name__)


class Awaited(Struct):
    """A change that somebody waits for, and what came of it."""

    change: Change[Any]
    durable: bool
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
    """Runs changes in a thread of its own, over one connection that it opens, keeps and replaces as needed."""

    def __init__(self, path: Path, options: StoreOptions, clock: Clock, backlog: Backlog) -> None:
        self.changes = Changes(options, clock)
        self.generation = 0  # grows with every connection, so that readers follow to a file that was replaced
        self._path = path
        self._options = options
        self._clock = clock
        self._backlog = backlog
        self._codec = Codec(options.encryption_keys)
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._synchronous = ""
        self._queue: list[Awaited] = []
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._urgent = threading.Event()
        self._closing = False
        self._healthy = True
        self._sweep_due = time.monotonic() + options.sweep_period
        self._orphans_after: int | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    # -- called on the event loop

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        if self._thread.ident is None:
            self._thread.start()

    def wake(self) -> None:
        """Say that the backlog is no longer empty."""
        self._work.set()

    def sweep_orphans(self) -> None:
        """Have the tips of dropped ledgers deleted in the background."""
        self._orphans_after = BEFORE_ALL_TIPS

    async def submit(self, change: Change[T], *, durable: bool = True) -> T:
        """Run a change and wait until it is committed; raises what it raised, or a StoreError."""
        try:
            return await self.attempt(change, durable=durable)
        except ConfigError as error:
            raise Unavailable(error.message) from error

    async def attempt(self, change: Change[T], *, durable: bool = True) -> T:
        """Do the same, and let a ConfigError through: the file is not for this version."""
        loop = asyncio.get_running_loop()
        awaited = Awaited(change, durable, loop, loop.create_future())
        with self._lock:
            if self._closing or not self._thread.is_alive():
                raise Unavailable("the store is closed")
            self._queue.append(awaited)
        self._urgent.set()
        self._work.set()
        try:
            async with asyncio.timeout(ANSWER):
                value: T = await awaited.future
        except TimeoutError:
            raise Unavailable("the disk of the store does not answer") from None
        return value

    async def settle(self) -> None:
        """Wait until what was written behind so far is committed."""
        if self._backlog:
            await self.submit(lambda _: None, durable=False)

    async def stop(self) -> None:
        """Write what waits, once, and end the thread."""
        with self._lock:
            self._closing = True
        self._urgent.set()
        self._work.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, ANSWER)

    # -- the thread

    def _run(self) -> None:
        closing = False
        while not closing:
            if self._work.wait(self._pause()):
                self._urgent.wait(GATHER)
            self._work.clear()
            self._urgent.clear()
            with self._lock:
                closing = self._closing
                queue, self._queue = self._queue, []
            self._turn([awaited for awaited in queue if not awaited.future.cancelled()])
            if not closing and time.monotonic() >= self._sweep_due:
                self._housekeep()
        self._backlog.discard()
        self._disconnect()

    def _pause(self) -> float:
        """Seconds to sleep when nobody asks for anything."""
        pause = max(self._sweep_due - time.monotonic(), 0.0)
        return min(pause, RETRY) if self._backlog else pause

    def _turn(self, queue: Sequence[Awaited]) -> None:
        """Commit all that waits, and tell those who wait."""
        batch = self._backlog.take()
        try:
            if queue or batch:
                self._commit(queue, batch)
        except Exception as error:  # noqa: BLE001 - the thread outlives whatever happens; all who wait are told
            self._backlog.put_back()
            self._fail(queue, error)
        else:
            self._backlog.settle()
            if queue or batch:
                self._report(healthy=True)
        for loop in {awaited.loop for awaited in queue}:
            mine = [awaited for awaited in queue if awaited.loop is loop]
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it whoever waited
                loop.call_soon_threadsafe(_settle_all, mine)

    def _commit(self, queue: Sequence[Awaited], batch: Batch) -> None:
        db = self._connect()
        self._synchronise("FULL" if any(awaited.durable for awaited in queue) else "NORMAL")
        begin(db)
        dropped = write_batch(db, batch, self._options, self._seal) if batch else 0
        for awaited in queue:
            _try(db, awaited)
        db.execute("COMMIT")
        self._backlog.dropped += dropped

    def _seal(self, note: Note, message: Recorded) -> bytes:
        return self._codec.seal(message.data, context_of("record", note.tenant, note.use.ledger))

    def _fail(self, queue: Sequence[Awaited], error: Exception) -> None:
        """Undo, and let everybody know; a connection that only had to wait too long is kept."""
        meaning = error if isinstance(error, ConfigError) else explain(error)
        self._report(healthy=False, reason=meaning.message)
        for awaited in queue:
            awaited.error = meaning
        busy = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
        if busy and self._db is not None and not self._db.in_transaction:
            return
        self._disconnect()

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
        more = 0
        try:
            db = self._connect()
            self._synchronise("NORMAL")
            begin(db)
            more = expire_step(db, self._clock() - self._options.idle_ttl - self._options.slack)
            if more:
                self.sweep_orphans()
            elif self._orphans_after is not None:
                self._orphans_after = sweep_tips(db, self._orphans_after)
            db.execute("COMMIT")
        except (sqlite3.Error, OSError, ProxyError):
            self._disconnect()  # whoever needs the store next learns why
        more = more or self._orphans_after is not None
        self._sweep_due = time.monotonic() + (0.0 if more else self._options.sweep_period)

    # -- the connection

    def _connect(self) -> sqlite3.Connection:
        """Return the connection, opened anew if the file is not the one it was opened on."""
        if self._db is not None and self._file == _identity(self._path):
            return self._db
        self._disconnect()
        db = connect_writer(self._path)
        try:
            prepare(db)
            db.execute("PRAGMA busy_timeout=0")  # from now on `begin` is what waits
        except BaseException:
            db.close()
            raise
        self._db, self._file, self._synchronous = db, _identity(self._path), ""
        self.generation += 1
        return db

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()  # rolls back what is open

    def _synchronise(self, mode: str) -> None:
        if self._db is not None and mode != self._synchronous:
            self._db.execute(f"PRAGMA synchronous={mode}")
            self._synchronous = mode


def _try(db: sqlite3.Connection, awaited: Awaited) -> None:
    """Run one change in a savepoint; what it refuses concerns it alone."""
    db.execute("SAVEPOINT change")
    try:
        awaited.value = awaited.change(db)
    except Exception as error:
        if concerns_all(error):
            raise
        awaited.error = error if isinstance(error, ProxyError) else Unavailable(f"the store refuses this: {error}")
        db.execute("ROLLBACK TO change")
    db.execute("RELEASE change")


def _settle_all(queue: Sequence[Awaited]) -> None:
    for awaited in queue:
        awaited.settle()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - twice as fast as Path.stat, and once per commit
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
