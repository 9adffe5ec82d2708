"""The index of an object store: what changes do to it, and what becomes garbage."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from proxy.errors import Conflict, Full
from proxy.store.base import Mark, SessionUse, StoreOptions
from proxy.store.objects_index import (
    Applier,
    connect,
    garbage,
    position,
    room_left,
    set_position,
    unknown_refs,
    without_record,
)
from proxy.store.objects_log import AnyChange, Append, Claim, Collected, Delete, Erase, PutOriginals, Use, new_blob
from tests.store.suite import key, original


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Open an empty index."""
    with closing(connect(tmp_path / "index.db", fresh=True)) as connection:
        yield connection


def put(ref: str, blob: bytes | None, ledger: str = "a") -> PutOriginals:
    """Make a change that stores an original."""
    described = structs.replace(original(ref, ledger), data=b"")
    return PutOriginals("t", (described,), {} if blob is None else {ref: blob}, 1.0)


def append(at: int, blob: bytes) -> Append:
    """Make a change that appends two entries."""
    return Append("t", "a", at, (3, 4), blob, (Mark(key("k"), 1),), 1.0)


def test_a_copy_of_an_older_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    """A snapshot may be from before there were locks; it keeps where it stands."""
    with closing(connect(tmp_path / "index.db", fresh=True)) as connection:
        set_position(connection, 7)
        connection.execute("DROP TABLE claim")
        connection.execute("UPDATE meta SET value = 1 WHERE name = 'schema'")
    with closing(connect(tmp_path / "index.db", fresh=False)) as connection:
        assert Applier().apply(connection, Claim("t", "lock", 1.0, 2.0)) == 1
        assert position(connection) == 7


def dump(connection: sqlite3.Connection) -> list[str]:
    """Return all that an index holds."""
    return list(connection.iterdump())


def test_equal_changes_make_equal_indexes(db: sqlite3.Connection, tmp_path: Path) -> None:
    """What is decided with limits is applied elsewhere without them, to the same effect."""
    use = Use("t", SessionUse("a"), (), ((0, 500),), new_blob("session", "t", "a"), 3.0, 60.0)
    changes: list[AnyChange] = [put("r", new_blob("original", "t", "r")), append(0, new_blob("session", "t", "a"))]
    decider = Applier(StoreOptions(stored_bytes=100))
    for change in changes:
        decider.apply(db, change)
    assert decider.apply(db, use) == 1
    changes.append(without_record(use))
    with closing(connect(tmp_path / "other.db", fresh=True)) as other:
        for change in changes:
            Applier().apply(other, change)
        assert dump(other) == dump(db)


def test_refused_changes_change_nothing(db: sqlite3.Connection) -> None:
    """Neither a full quota nor a wrong position leaves a trace."""
    before = dump(db)
    with pytest.raises(Full):
        Applier(StoreOptions(stored_bytes=3)).apply(db, put("r", new_blob("original", "t", "r")))
    with pytest.raises(Conflict):
        Applier().apply(db, append(2, new_blob("session", "t", "a")))
    db.execute("DELETE FROM tenant")
    db.execute("DELETE FROM sqlite_sequence")
    assert dump(db) == before


def test_what_nothing_refers_to_is_garbage(db: sqlite3.Connection) -> None:
    """Blobs become garbage with what they belong to, or at once if they were not needed; then they are forgotten."""
    first, second, entries = (new_blob("x", "t", name) for name in "rse")
    applier = Applier()
    applier.apply(db, put("r", first))
    applier.apply(db, put("r", second))
    assert garbage(db, 9) == [second]
    applier.apply(db, append(0, entries))
    applier.apply(db, Erase("t", "r", 2.0))
    assert set(garbage(db, 9)) == {first, second}
    applier.apply(db, Delete("t", "a"))
    assert set(garbage(db, 9)) == {first, second, entries}
    applier.apply(db, Collected((first, entries)))
    assert garbage(db, 9) == [second]


def test_what_is_asked_before_a_put(db: sqlite3.Connection) -> None:
    """Stored and erased refs need no bytes; the room that is left follows what is stored."""
    applier = Applier()
    for ref in ("stored", "erased"):
        applier.apply(db, put(ref, new_blob("original", "t", ref)))
    applier.apply(db, Erase("t", "erased", 2.0))
    asked = [original(ref, "a") for ref in ("stored", "erased", "new", "new")]
    assert list(unknown_refs(db, "t", asked)) == ["new"]
    assert set(unknown_refs(db, "u", asked)) == {"stored", "erased", "new"}
    assert (room_left(db, "t", 100), room_left(db, "u", 100)) == (100 - len(original("r", "a").data), 100)


def test_the_position(db: sqlite3.Connection) -> None:
    """An index knows of which commit it is."""
    assert position(db) == 0
    set_position(db, 7)
    assert position(db) == 7
