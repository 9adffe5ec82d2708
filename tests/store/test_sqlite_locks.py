"""Locks of the embedded store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.store.sqlite_locks import claim, is_held, release
from proxy.store.sqlite_schema import connect_writer, prepare


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file."""
    with closing(connect_writer(tmp_path / "store.db")) as connection:
        prepare(connection)
        yield connection


def test_a_lock_has_one_holder(db: sqlite3.Connection) -> None:
    """Until it ends or is let go nobody else gets it, and tokens only grow."""
    lock = ("t", "n")
    first = claim(db, lock, 100.0, 10.0)
    assert first is not None
    assert claim(db, lock, 109.0, 10.0) is None
    assert [is_held(db, lock, now) for now in (109.0, 110.0)] == [True, False]
    assert not is_held(db, ("u", "n"), 109.0)
    assert claim(db, ("u", "n"), 109.0, 10.0) is not None
    second = claim(db, lock, 110.0, 10.0)
    assert second is not None
    assert second > first
    release(db, lock, first)
    release(db, ("u", "n"), second)
    release(db, ("t", "unknown"), second)
    assert claim(db, lock, 111.0, 10.0) is None
    release(db, lock, second)
    third = claim(db, lock, 111.0, 10.0)
    assert third is not None
    assert third > second


def test_locks_that_have_ended_leave_nothing(db: sqlite3.Connection) -> None:
    """Every claim takes away those whose time is over, whatever their name, and numbers are not used twice."""
    tokens = [claim(db, ("t", f"lock{number}"), float(number), 1.0) or 0 for number in range(5)]
    assert tokens == sorted(set(tokens))
    assert db.execute("SELECT name FROM claim").fetchall() == [("lock4",)]
