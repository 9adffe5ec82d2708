"""Locks of the embedded store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.store.sqlite_locks import claim, release
from proxy.store.sqlite_schema import connect_writer, prepare


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file."""
    with closing(connect_writer(tmp_path / "store.db")) as connection:
        prepare(connection)
        yield connection


def test_a_lock_has_one_holder(db: sqlite3.Connection) -> None:
    """Until it ends or is given back nobody else gets it, and tokens only grow."""
    lock = ("t", "n")
    assert claim(db, lock, 100.0, 10.0) == 1
    assert claim(db, lock, 109.0, 10.0) is None
    assert claim(db, ("u", "n"), 109.0, 10.0) == 1
    assert claim(db, lock, 110.0, 10.0) == 2
    release(db, lock, 1)
    assert claim(db, lock, 111.0, 10.0) is None
    release(db, lock, 2)
    assert claim(db, lock, 111.0, 10.0) == 3
    release(db, ("t", "unknown"), 1)
