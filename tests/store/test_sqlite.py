"""The embedded store keeps the laws of every store, and what it promises about files, processes and failures."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.errors import ConfigError, Full, StoreError, Unavailable
from proxy.store.backlog import Batch
from proxy.store.base import Mark, PageRequest, Recorded, SessionUse, StoreOptions
from proxy.store.sqlite import SqliteStore
from proxy.store.sqlite_writer import Awaited
from tests.store.killing import check_killed_writers
from tests.store.machine import check_against_model
from tests.store.suite import Clock, Place, SharedLaws, key, original, until

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
JUNK = b"this is no database" * 100


class SqlitePlace:
    """A file in a folder of its own."""

    shared = True

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="store-"))

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> SqliteStore:
        """Make a store on the file."""
        return SqliteStore(self.folder / "var" / "ullage.db", options, clock)

    def discard(self) -> None:
        """Delete the file."""
        shutil.rmtree(self.folder)


def test_any_calls() -> None:
    """Calls in any order leave the store in the state of the model."""
    check_against_model(SqlitePlace)


class TestLaws(SharedLaws):
    """The laws of every store that outlives its process."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        """Give each test a place of its own."""
        place = SqlitePlace()
        yield place
        place.discard()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a file that does not exist yet."""
    return tmp_path / "store.db"


@pytest.fixture
def junk(path: Path) -> Path:
    """Write a file that is no database."""
    path.write_bytes(JUNK)
    return path


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    """Open a store on the file."""
    store = SqliteStore(path, StoreOptions(), Clock())
    await store.open()
    yield store
    await store.close()


def content(path: Path) -> bytes:
    """Return what is in a file."""
    return path.read_bytes()


def take_away(path: Path) -> None:
    """Delete a file with those that SQLite keeps beside it."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


# -- processes that die


@pytest.mark.parametrize("writers", [1, 2])
async def test_a_killed_process_loses_nothing_that_was_confirmed(path: Path, writers: int) -> None:
    """After kill -9 in the middle of writes, all that any process was told is stored is there and whole."""
    await check_killed_writers(f"sqlite:///{path}", writers)


# -- a file that cannot be written


async def test_a_locked_file_is_unavailable_until_it_is_free(store: SqliteStore, path: Path) -> None:
    """While another process holds the write lock, writes fail, reads work and notes wait; then all goes on."""
    await store.append_ledger("t", "a", 0, [b"e"], [Mark(key("k"), 1)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.note("t", SessionUse("a"), [Mark(key("l"), 2)], [])
        calls = [
            store.put_originals("t", [original("r", "a")]),
            store.append_ledger("t", "a", 1, [b"f"], []),
            store.secret(lambda: b"s"),
            store.ping(),
        ]
        async with asyncio.timeout(10):
            failures = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(failure) for failure in failures] == [Unavailable] * 4
        assert "locked" in str(failures[0])
        assert await store.load_ledger("t", "a") == [b"e"]
        assert [tip.length for tip in await store.find_tips("t", [key("k"), key("l")])] == [1, 2]
        assert (await store.stats()).originals == 0
        other.execute("ROLLBACK")
    assert await store.append_ledger("t", "a", 1, [b"f"], []) == 2
    session = await store.get_session("t", "a")
    assert session is not None
    assert session.calls == 1


async def test_notes_are_written_once_the_lock_is_gone(store: SqliteStore, path: Path) -> None:
    """What waited while the file was locked is written without anybody calling."""
    other = SqliteStore(path, StoreOptions(), Clock())
    await other.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        store.note("t", SessionUse("a"), [Mark(key("k"), 2)], [])
        with pytest.raises(Unavailable):
            await store.ping()
        lock.execute("ROLLBACK")
    await until(lambda: other.find_tips("t", [key("k")]), bool)
    await other.close()


async def test_a_full_disk_is_full_until_there_is_room(store: SqliteStore) -> None:
    """With no room left writes raise Full and leave nothing behind; with room again all goes on."""
    await limit_pages(store)
    with pytest.raises(Full, match="disk"):
        await store.put_originals("t", [original("r", "a", os.urandom(900_000))])
    # The connection was opened anew, and with it the limit of this test is gone, as if somebody had made room.
    assert await store.missing_originals("t", ["r"]) == {"r"}
    await store.put_originals("t", [original("r", "a", b"x" * 900_000)])
    assert (await store.stats()).stored_bytes == 900_000


async def test_a_failed_commit_keeps_the_notes(store: SqliteStore) -> None:
    """Notes that ran into a full disk are written by the next attempt."""
    await limit_pages(store)
    store.note("t", SessionUse("a"), [Mark(key("k"), 2)], [Recorded(0, os.urandom(900_000))])
    with pytest.raises(Full):
        await store.ping()
    assert [tip.length for tip in await store.find_tips("t", [key("k")])] == [2]
    assert [message.index for message in await store.load_record("t", "a", 0, 9)] == [0]
    assert (await store.stats()).dropped == 0


async def limit_pages(store: SqliteStore) -> None:
    """Let the writer's connection have hardly any page more than the file has."""

    def limit(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages + 3}")

    await store._writer.submit(limit)


async def test_a_read_only_file_is_unavailable(store: SqliteStore) -> None:
    """A file that may be read but not written takes no ping."""
    await store._writer.submit(lambda db: db.execute("PRAGMA query_only=ON"))
    with pytest.raises(Unavailable):
        await store.ping()
    await store.ping()  # over a new connection


async def test_a_file_that_is_no_database(junk: Path) -> None:
    """Junk is refused and left alone; a store that was opened on it works once it is out of the way."""
    store = SqliteStore(junk, StoreOptions(), Clock())
    with pytest.raises(StoreError, match="not a database"):
        await store.open()
    with pytest.raises(Unavailable):
        await store.find_tips("t", [key("k")])
    assert content(junk) == JUNK
    take_away(junk)
    await store.put_originals("t", [original("r", "a")])
    assert await store.get_original("t", "r") == original("r", "a")
    await store.close()


async def test_a_folder_that_cannot_be_made(junk: Path) -> None:
    """A path through a file is unavailable, and works as soon as the file is gone."""
    store = SqliteStore(junk / "store.db", StoreOptions(), Clock())
    with pytest.raises(Unavailable):
        await store.open()
    take_away(junk)
    await store.open()
    await store.ping()
    await store.close()


async def test_a_file_that_is_deleted(store: SqliteStore, path: Path) -> None:
    """A file taken away under the store is made anew: nothing is confirmed into a file that nobody can open again."""
    await store.put_originals("t", [original("r", "a")])
    take_away(path)
    await store.put_originals("t", [original("s", "a")])
    assert content(path)
    assert await store.missing_originals("t", ["r", "s"]) == {"r"}


async def test_somebody_elses_database(path: Path) -> None:
    """A database of another program is refused as wrong configuration, and not touched."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE cats (name TEXT)")
    store = SqliteStore(path, StoreOptions(), Clock())
    with pytest.raises(ConfigError, match="not a store of ullage"):
        await store.open()
    with pytest.raises(Unavailable):
        await store.ping()
    await store.close()


async def test_a_closed_store_says_so() -> None:
    """Calls before the opening and after the end raise Unavailable; a note raises nothing."""
    place = SqlitePlace()
    store = place.store(StoreOptions(), Clock())
    with pytest.raises(Unavailable):
        await store.ping()
    await store.open()
    await store.close()
    store.note("t", SessionUse("a"), [], [])
    with pytest.raises(Unavailable, match="closed"):
        await store.put_originals("t", [original("r", "a")])
    with pytest.raises(Unavailable, match="closed"):
        await store.find_tips("t", [key("k")])
    with pytest.raises(Unavailable, match="closed"):
        await store.list_sessions(None, PageRequest())
    await store.close()
    place.discard()


# -- what lies in the file


async def test_erased_bytes_are_not_in_the_file(store: SqliteStore, path: Path) -> None:
    """What was erased or deleted cannot be found in the file any more."""
    secrets = [os.urandom(40_000) for _ in range(3)]
    for number, secret in enumerate(secrets):
        await store.put_originals("t", [original(f"r{number}", f"s{number}", secret)])
    await store.erase_original("t", "r0")
    await store.delete_session("t", "s1")
    await store.close()
    data = content(path)
    pieces = [any(secret[at : at + 64] in data for at in range(0, 40_000, 1000)) for secret in secrets]
    assert pieces == [False, False, True]


async def test_the_same_content_takes_its_room_once(store: SqliteStore, path: Path) -> None:
    """Putting one original again and again does not let the file grow."""
    data = os.urandom(100_000)
    for number in range(20):
        await store.put_originals("t", [original("r", f"s{number}", data)])
    await store.close()
    assert len(content(path)) < 300_000


async def test_commits_are_flushed_where_that_was_promised(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of ledgers, the secret, erasures and deletions wait for the disk; originals, facts and notes do not."""
    seen: list[int] = []
    commit = store._writer._commit

    def watched(queue: list[Awaited], batch: Batch) -> None:
        commit(queue, batch)
        assert store._writer._db is not None
        seen.append(store._writer._db.execute("PRAGMA synchronous").fetchone()[0])

    monkeypatch.setattr(store._writer, "_commit", watched)
    await store.append_ledger("t", "a", 0, [b"e"], [])
    await store.secret(lambda: b"s")
    await store.erase_original("t", "r")
    await store.delete_session("t", "a")
    await store.put_originals("t", [original("r", "a")])
    await store.put_fact("t", "f", b"v")
    store.note("t", SessionUse("a"), [], [])
    await store.stats()
    normal, full = 1, 2
    assert seen == [full] * 4 + [normal] * 3
