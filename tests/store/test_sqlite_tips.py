"""The look-up of tips joins what is written with what waits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.store.backlog import Backlog, Note
from proxy.store.base import Mark, SessionUse, StoreOptions, Tip
from proxy.store.codec import pack
from proxy.store.sqlite_changes import Append, Changes, Stored
from proxy.store.sqlite_reader import Reader
from proxy.store.sqlite_schema import connect_writer, prepare
from proxy.store.sqlite_tips import find_tips
from tests.store.suite import Clock, key


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file."""
    with closing(connect_writer(tmp_path / "store.db")) as connection:
        prepare(connection)
        yield connection


def test_what_waits_comes_on_top(db: sqlite3.Connection, tmp_path: Path) -> None:
    """A waiting mark moves a tip of its own ledger, takes none from another, and shows the ledger's written state."""
    entries = (Stored(pack(b"e"), 1),)
    Changes(StoreOptions(), Clock()).append(db, Append("t", "a", 0, entries, (Mark(key("k"), 4),)))
    backlog = Backlog(60.0)
    reader = Reader(lambda: tmp_path / "store.db", lambda: 1)
    asked = [key(name) for name in "mlkx"]
    assert find_tips(reader, backlog, "t", asked) == [Tip(key("k"), "a", 4, 1, 4)]
    backlog.add(Note("t", SessionUse("a"), (Mark(key("k"), 6), Mark(key("l"), 7)), (), 0.0))
    backlog.add(Note("t", SessionUse("b"), (Mark(key("k"), 8), Mark(key("m"), 9)), (), 0.0))
    assert find_tips(reader, backlog, "t", asked) == [
        Tip(key("m"), "b", 9, 0, 9),
        Tip(key("l"), "a", 7, 1, 7),
        Tip(key("k"), "a", 6, 1, 7),
    ]
    assert find_tips(reader, backlog, "nobody", asked) == []
    reader.close()
