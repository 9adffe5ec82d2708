"""The making of one commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.store.base import SessionUse, StoreOptions
from proxy.store.objects_index import Applier, connect
from proxy.store.objects_log import Append, Drop, PutFact, Use
from proxy.store.objects_turn import Turn, count_use, expire_some

LIMITED = StoreOptions(idle_ttl=16.0, stored_bytes=10)


@pytest.fixture
def turn(tmp_path: Path) -> Iterator[Turn]:
    """Begin a commit on an empty index."""
    with closing(connect(tmp_path / "index.db", fresh=True)) as db:
        db.execute("BEGIN")
        yield Turn(db, Applier(LIMITED))


def use_of(size: int, tokens: int = 0) -> Use:
    """Make a note with one message."""
    return Use("t", SessionUse("a", received_tokens=tokens), (), ((0, size),), b"b" * 32, 1.0, 1.0)


def count(turn: Turn, table: str) -> int:
    """Return how many rows a table has."""
    return int(turn.db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608  # our own names


def test_what_cannot_be_written_down_is_not_applied(turn: Turn) -> None:
    """A value that has no form in the log leaves no trace in the index."""
    with pytest.raises(UnicodeEncodeError):
        turn.do(PutFact("t", "\ud800", b""))
    assert (turn.changes, count(turn, "fact")) == ([], 0)


def test_a_note_is_counted_as_far_as_it_fits(turn: Turn) -> None:
    """Messages over the quota are left out of the commit too, impossible figures alone are dropped."""
    assert count_use(turn, use_of(9))
    assert not count_use(turn, use_of(20))
    assert not count_use(turn, use_of(1, tokens=1 << 80))
    assert [change.messages for change in turn.changes if isinstance(change, Use)] == [((0, 9),), ()]
    assert count(turn, "record") == 1


def test_what_is_idle_is_named(turn: Turn) -> None:
    """A commit says which ledgers go, so that every copy drops the same ones."""
    turn.do(Append("t", "a", 0, (), b"", (), 1.0))
    assert expire_some(turn, LIMITED, 17.0) == 0
    assert expire_some(turn, LIMITED, 19.0) == 1
    assert turn.changes[-1] == Drop((1,), ())
    assert isinstance(turn.db, sqlite3.Connection)
    assert count(turn, "ledger") == 0
