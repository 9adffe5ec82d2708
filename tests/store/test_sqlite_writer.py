"""The thread that writes."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.errors import NotFound, Unavailable
from proxy.store import sqlite_writer as module
from proxy.store.backlog import Backlog, Note
from proxy.store.base import Mark, SessionUse, StoreOptions
from proxy.store.sqlite_writer import Writer
from tests.store.suite import Clock, key, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def writer(tmp_path: Path) -> AsyncIterator[Writer]:
    """Start a writer on a new file."""
    options = StoreOptions()
    writer = Writer(tmp_path / "store.db", options, Clock(), Backlog(options.slack))
    writer.start()
    yield writer
    await writer.stop()


def put(name: str) -> module.Change[None]:
    """Make a change that leaves a trace."""

    def change(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO meta VALUES (?, 1)", (name,))

    return change


def names(db: sqlite3.Connection) -> set[str]:
    """Return the traces."""
    return {name for (name,) in db.execute("SELECT name FROM meta")} - {"schema"}


async def test_a_refused_change_leaves_the_others_alone(writer: Writer) -> None:
    """Of changes committed together one that is refused, or is a mistake, is undone, and the others are not."""

    def refuse(db: sqlite3.Connection) -> None:
        put("refused")(db)
        raise NotFound("no such thing")

    def mistake(db: sqlite3.Connection) -> None:
        put("mistaken")(db)
        db.execute("SELECT ?", ("\ud800",))

    def twice(db: sqlite3.Connection) -> None:
        put("twice")(db)
        put("twice")(db)

    changes = [put("a"), refuse, mistake, twice, put("b")]
    results = await asyncio.gather(*(writer.submit(change) for change in changes), return_exceptions=True)
    assert [type(result) for result in results] == [type(None), NotFound, Unavailable, Unavailable, type(None)]
    assert await writer.submit(names) == {"a", "b"}


async def test_a_broken_database_fails_all_and_the_thread_goes_on(writer: Writer) -> None:
    """An error that concerns the file undoes the whole commit; the next one works."""

    def breaks(db: sqlite3.Connection) -> None:
        put("broken")(db)
        raise sqlite3.OperationalError("disk I/O error")

    hold = threading.Event()
    first = asyncio.ensure_future(writer.submit(lambda _: hold.wait()))
    await asyncio.sleep(0.05)  # what comes now waits, and is committed together
    rest = [asyncio.ensure_future(writer.submit(change)) for change in (put("a"), breaks, put("b"))]
    await asyncio.sleep(0)
    hold.set()
    await first
    results = await asyncio.gather(*rest, return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 3
    assert await writer.submit(names) == set()
    await writer.submit(put("c"))
    assert await writer.submit(names) == {"c"}


async def test_what_nobody_waits_for_any_more_is_not_begun(writer: Writer) -> None:
    """A change whose caller has gone before its turn is left out."""
    hold = threading.Event()
    first = asyncio.ensure_future(writer.submit(lambda _: hold.wait()))
    await asyncio.sleep(0.05)
    gone = asyncio.ensure_future(writer.submit(put("gone")))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    hold.set()
    await first
    assert await writer.submit(names) == set()


async def test_a_disk_that_hangs_does_not_hang_callers(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller gives up after a while, whatever the disk does."""
    monkeypatch.setattr(module, "ANSWER", 0.1)
    hold = threading.Event()
    with pytest.raises(Unavailable, match="does not answer"):
        await writer.submit(lambda _: hold.wait())
    hold.set()
    monkeypatch.setattr(module, "ANSWER", 5.0)
    await writer.submit(put("a"))


async def test_a_writer_that_was_stopped_takes_nothing(writer: Writer) -> None:
    """After the end changes are refused, at once."""
    await writer.stop()
    with pytest.raises(Unavailable, match="closed"):
        await writer.submit(put("a"))


async def test_tips_of_dropped_ledgers_are_swept(writer: Writer) -> None:
    """The background deletes tips that lead nowhere, and keeps the others."""
    backlog = writer._backlog
    for ledger in ("a", "b"):
        marks = tuple(Mark(key(f"{ledger}{i}"), i) for i in range(5))
        backlog.add(Note("t", SessionUse(ledger), marks, (), Clock().now))
    await writer.settle()
    await writer.submit(lambda db: db.execute("DELETE FROM ledger WHERE name = 'a'"))
    writer.sweep_orphans()
    writer._sweep_due = 0.0
    await until(lambda: writer.submit(lengths), lambda found: len(found) == 5)
    await until(lambda: writer.submit(lengths), lambda _: writer._orphans_after is None)
    assert await writer.submit(lengths) == [0, 1, 2, 3, 4]


def lengths(db: sqlite3.Connection) -> list[int]:
    """Return the lengths of all tips, of whatever ledger."""
    return sorted(length for (length,) in db.execute("SELECT length FROM tip"))
