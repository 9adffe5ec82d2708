"""The reading connections of the embedded store."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.errors import Unavailable
from proxy.store import sqlite_reader as module
from proxy.store.sqlite_reader import Reader
from proxy.store.sqlite_schema import connect_writer, prepare

pytestmark = pytest.mark.anyio


class File:
    """A file that can be replaced by another, with a reader that is told so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        self.reader = Reader(lambda: path, lambda: self.generation)

    def create(self, *tenants: str) -> None:
        """Make the file anew."""
        for file in self.path.parent.glob(f"{self.path.name}*"):
            file.unlink()
        with closing(connect_writer(self.path)) as db:
            prepare(db)
            db.executemany("INSERT INTO tenant (name) VALUES (?)", [(name,) for name in tenants])
        self.generation += 1


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    """Name a file that does not exist yet."""
    file = File(tmp_path / "store.db")
    yield file
    file.reader.close()


def tenants(db: sqlite3.Connection) -> list[str]:
    """Return the tenants in a file."""
    return [name for (name,) in db.execute("SELECT name FROM tenant ORDER BY id")]


async def test_readers_follow_to_a_new_file(file: File) -> None:
    """After the writer has opened another file, all connections and remembered numbers are of that one."""
    file.create("t", "u")
    assert (file.reader.owner("t"), file.reader.owner("u")) == (1, 2)
    assert await file.reader.read(tenants) == ["t", "u"]
    file.create("u")
    assert (file.reader.owner("t"), file.reader.owner("u")) == (None, 1)
    assert await file.reader.read(tenants) == ["u"]


async def test_a_missing_file_is_unavailable_until_it_is_there(file: File) -> None:
    """Neither kind of reading makes a file, and both work as soon as there is one."""
    with pytest.raises(Unavailable):
        file.reader.owner("t")
    with pytest.raises(Unavailable):
        await file.reader.read(tenants)
    file.create("t")
    assert file.reader.owner("t") == 1
    assert await file.reader.read(tenants) == ["t"]


async def test_a_failed_reading_spoils_nothing(file: File) -> None:
    """After an error, of the file or of ours, the next reading works."""
    file.create("t")
    with pytest.raises(Unavailable, match="no such table"):
        file.reader.glance("SELECT * FROM nowhere", ())
    with pytest.raises(Unavailable, match="no such table"):
        await file.reader.read(lambda db: db.execute("SELECT * FROM nowhere"))
    with pytest.raises(ZeroDivisionError):
        await file.reader.read(lambda db: db.total_changes // 0)
    assert file.reader.owner("t") == 1
    assert await file.reader.read(tenants) == ["t"]


async def test_one_reading_sees_one_moment(file: File) -> None:
    """What is written during a reading does not show in it."""
    file.create("t")

    def twice(db: sqlite3.Connection) -> tuple[list[str], list[str]]:
        before = tenants(db)
        with closing(connect_writer(file.path)) as other:
            other.execute("INSERT INTO tenant (name) VALUES ('late')")
        return before, tenants(db)

    assert await file.reader.read(twice) == (["t"], ["t"])
    assert await file.reader.read(tenants) == ["t", "late"]


async def test_readings_at_once(file: File) -> None:
    """Any number of readings may be asked for together."""
    file.create("t")
    found = await asyncio.gather(*(file.reader.read(tenants) for _ in range(20)))
    assert found == [["t"]] * 20


async def test_what_takes_too_long_is_given_up(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that does not end does not hold its caller."""
    monkeypatch.setattr(module, "ANSWER", 0.1)
    hold = threading.Event()
    with pytest.raises(Unavailable, match="does not answer"):
        await file.reader.away(hold.wait)
    hold.set()


async def test_a_closed_reader_says_so(file: File) -> None:
    """After the end every reading is refused."""
    file.create("t")
    file.reader.close()
    with pytest.raises(Unavailable, match="closed"):
        file.reader.owner("t")
    with pytest.raises(Unavailable, match="closed"):
        await file.reader.read(tenants)
