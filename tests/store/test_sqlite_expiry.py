"""How things leave the embedded store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.store import sqlite_expiry
from proxy.store.base import Mark, StoreOptions
from proxy.store.codec import pack
from proxy.store.sqlite_changes import Append, Changes, Packed, Stored
from proxy.store.sqlite_expiry import BEFORE_ALL_TIPS, delete_session, erase_original, expire_step, sweep_tips
from proxy.store.sqlite_schema import connect_writer, prepare
from tests.store.suite import Clock, key, original

TABLES = ("ledger", "entry", "record", "tip", "original", "body", "hold")


def entries(*data: bytes) -> tuple[Stored, ...]:
    """Make entries as they will lie in the file."""
    return tuple(Stored(pack(entry), len(entry)) for entry in data)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file with two sessions of ten entries, five tips and three originals each."""
    with closing(connect_writer(tmp_path / "store.db")) as connection:
        prepare(connection)
        changes = Changes(StoreOptions(), Clock())
        for name in ("a", "b"):
            marks = tuple(Mark(key(f"{name}{i}"), i) for i in range(5))
            changes.append(connection, Append("t", name, 0, entries(b"entry") * 10, marks))
            packed = [Packed(original(f"{name}{i}", name), pack(b"data")) for i in range(3)]
            changes.put_originals(connection, "t", packed)
        yield connection


def counts(db: sqlite3.Connection) -> dict[str, int]:
    """Return how many rows each table has, without the empty ones."""
    query = "SELECT count(*) FROM {}"
    found = {table: db.execute(query.format(table)).fetchone()[0] for table in TABLES}
    return {table: number for table, number in found.items() if number}


def sweep(db: sqlite3.Connection) -> int:
    """Sweep all tips; returns in how many slices."""
    slices, after = 0, sweep_tips(db, BEFORE_ALL_TIPS)
    while after is not None:
        slices, after = slices + 1, sweep_tips(db, after)
    return slices


def room(db: sqlite3.Connection) -> tuple[int, int]:
    """Return what is counted to the tenant."""
    kept, record = db.execute("SELECT kept_bytes, record_bytes FROM tenant").fetchone()
    return kept, record


def test_a_deleted_session_leaves_nothing(db: sqlite3.Connection) -> None:
    """Rows and room of a deleted session are gone from every table, its tips after the sweep."""
    assert delete_session(db, "t", "a")
    assert not delete_session(db, "t", "a")
    sweep(db)
    assert counts(db) == {"ledger": 1, "entry": 10, "tip": 5, "original": 3, "body": 3, "hold": 3}
    assert room(db) == (10 * 5 + 3 * 4, 0)
    assert delete_session(db, None, "b")
    sweep(db)
    assert counts(db) == {}
    assert room(db) == (0, 0)


def test_an_erased_original_leaves_a_tombstone(db: sqlite3.Connection) -> None:
    """The bytes and the holds go, the ref stays known."""
    assert erase_original(db, "t", "a0", 5.0)
    assert not erase_original(db, "t", "a0", 6.0)
    assert not erase_original(db, None, "unknown", 6.0)
    assert db.execute("SELECT ref, tenant, at FROM erased").fetchall() == [("a0", 1, 5.0)]
    assert counts(db)["body"] == 5
    assert room(db) == (2 * 10 * 5 + 5 * 4, 0)


def test_expiry_goes_by_steps(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes at least one of each kind and not much more than its size, until nothing is left."""
    monkeypatch.setattr(sqlite_expiry, "STEP_BYTES", 8)
    steps = []
    while step := expire_step(db, Clock().now + 1):
        steps.append(step)
    assert steps == [3, 3, 2]
    sweep(db)
    assert counts(db) == {}


def test_what_is_in_use_stays(db: sqlite3.Connection) -> None:
    """Nothing that was used at the time or later is dropped; an original may outlive its session."""
    assert expire_step(db, Clock().now) == 0
    db.execute("UPDATE ledger SET renewed = renewed - 10 WHERE name = 'a'")
    assert expire_step(db, Clock().now) == 1
    assert counts(db)["original"] == 6
    assert counts(db)["hold"] == 3


def test_a_sweep_goes_by_slices(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tip is looked at once, whatever its id, and only orphans go."""
    monkeypatch.setattr(sqlite_expiry, "STEP_TIPS", 3)
    db.execute("DELETE FROM ledger WHERE name = 'a'")
    assert sweep(db) == 4
    assert counts(db)["tip"] == 5
    assert sweep(db) == 2
