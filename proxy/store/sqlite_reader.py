"""Reading connections of the embedded store.

Readers of WAL wait for nobody, so the two look-ups of the hot path run on the event loop over a connection of
their own; everything that may take longer runs in a few threads. A connection is used by one reader at a time
and thrown away after an error; after the writer has opened the file anew (its generation has grown) so do the
readers.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from proxy.errors import Unavailable
from proxy.store.sqlite_schema import GLANCE, connect_reader, explain

T = TypeVar("T")
Row = tuple[Any, ...]

THREADS = 2
ANSWER = 5.0  # seconds after which a caller gives up on a disk that does not answer


class Reader:
    """Gives out rows of the file at `path()`; `generation` tells which opening of it is the current one."""

    def __init__(self, path: Callable[[], Path], generation: Callable[[], int]) -> None:
        self._path = path
        self._generation = generation
        self._glance: tuple[int, sqlite3.Connection] | None = None
        self._idle: list[tuple[int, sqlite3.Connection]] = []
        self._owners: dict[str, int] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store-reader")

    def owner(self, tenant: str) -> int | None:
        """Return the number of a tenant, None if it never stored anything. Numbers never change, so they are kept."""
        if self._glance is None or self._glance[0] != self._generation():
            self._owners.clear()
        known = self._owners.get(tenant)
        if known is None:
            rows = self.glance("SELECT id FROM tenant WHERE name = ?", (tenant,))
            if not rows:
                return None
            known = self._owners[tenant] = rows[0][0]
        return known

    def glance(self, query: str, parameters: Sequence[object]) -> list[Row]:
        """Return the rows of a short query, at once; only for the event loop's thread."""
        if self._closed:
            raise Unavailable("the store is closed")
        current = self._generation()
        try:
            if self._glance is None or self._glance[0] != current:
                self._drop_glance()
                self._glance = (current, connect_reader(self._path(), GLANCE))
            return self._glance[1].execute(query, parameters).fetchall()
        except (sqlite3.Error, OSError) as error:
            self._drop_glance()
            raise explain(error) from error

    def _drop_glance(self) -> None:
        if self._glance is not None:
            _close(self._glance[1])
            self._glance = None

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run something that reads in a thread, over a connection of its own."""
        return await self.away(lambda: self._read(work))

    async def away(self, work: Callable[[], T]) -> T:
        """Run something that takes long in a thread; raises Unavailable if it takes too long."""
        if self._closed:
            raise Unavailable("the store is closed")
        try:
            async with asyncio.timeout(ANSWER):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            raise Unavailable("the disk of the store does not answer") from None

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            generation, connection = self._borrow()
        except (sqlite3.Error, OSError) as error:
            raise explain(error) from error
        try:
            connection.execute("BEGIN")  # all that one call reads is of one moment
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException as error:
            _close(connection)
            if isinstance(error, sqlite3.Error | OSError):
                raise explain(error) from error
            raise
        with self._lock:
            self._idle.append((generation, connection))
        return result

    def _borrow(self) -> tuple[int, sqlite3.Connection]:
        """Take an idle connection to the current file, or open one."""
        current = self._generation()
        while True:
            with self._lock:
                if not self._idle:
                    break
                generation, connection = self._idle.pop()
            if generation == current:
                return generation, connection
            _close(connection)
        return current, connect_reader(self._path())

    def close(self) -> None:
        """Let go of the threads and of all connections."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._drop_glance()
        with self._lock:
            for _, connection in self._idle:
                _close(connection)
            self._idle.clear()


def _close(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        connection.close()
