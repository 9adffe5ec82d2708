"""What the embedded store writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import Conflict, Full
from proxy.store.base import Mark, StoreOptions
from proxy.store.codec import pack
from proxy.store.sqlite_changes import Append, Changes, Packed, Stored, set_tips, tenant_id, tip_halves
from proxy.store.sqlite_schema import connect_writer, prepare
from tests.store.suite import Clock, key, original


def entries(*data: bytes) -> tuple[Stored, ...]:
    """Make entries as they will lie in the file."""
    return tuple(Stored(pack(entry), len(entry)) for entry in data)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Open a fresh file."""
    with closing(connect_writer(tmp_path / "store.db")) as connection:
        prepare(connection)
        yield connection


def changes(quota: int | None = None) -> Changes:
    """Make the changes of a store."""
    return Changes(StoreOptions(stored_bytes=quota), Clock())


def packed(ref: str, ledger: str, data: bytes) -> Packed:
    """Make an original ready to be written."""
    return Packed(original(ref, ledger, data), pack(data))


@given(st.binary(min_size=16, max_size=16), st.integers(1, 1 << 40), st.integers(1, 1 << 40))
def test_tips_of_two_tenants_lie_apart(digest: bytes, one: int, other: int) -> None:
    """Both halves fit a 64-bit column, and equal keys of different tenants have different ids."""
    first, rest = tip_halves(digest, one)
    assert -(1 << 63) <= first < 1 << 63
    assert -(1 << 63) <= rest < 1 << 63
    assert (tip_halves(digest, other)[0] == first) == (one == other)


def test_a_tenant_keeps_its_number(db: sqlite3.Connection) -> None:
    """A tenant is numbered once."""
    assert tenant_id(db, "t") == tenant_id(db, "t") != tenant_id(db, "u")


def test_what_is_refused_has_changed_nothing(db: sqlite3.Connection) -> None:
    """Over the quota, and at the wrong position, not one row is written."""
    small = changes(quota=10)
    small.put_originals(db, "t", [packed("r", "a", b"x" * 8)])
    small.append(db, Append("t", "a", 0, entries(b"e"), ()))
    before = db.total_changes
    with pytest.raises(Full):
        small.put_originals(db, "t", [packed("s", "b", b"x"), packed("u", "b", b"xy")])
    with pytest.raises(Conflict) as caught:
        small.append(db, Append("t", "a", 2, entries(b"f"), (Mark(key("k"), 1),)))
    assert caught.value.version == 1
    assert db.total_changes == before


def test_entries_count_for_the_quota(db: sqlite3.Connection) -> None:
    """Entries are never refused, but what they take is no longer there for originals."""
    small = changes(quota=10)
    small.append(db, Append("t", "a", 0, entries(b"x" * 9), ()))
    small.append(db, Append("t", "a", 1, entries(b"x" * 9), ()))
    with pytest.raises(Full):
        small.put_originals(db, "t", [packed("r", "a", b"x")])
    small.put_originals(db, "t", [packed("empty", "a", b"")])


def test_a_body_lies_there_once(db: sqlite3.Connection) -> None:
    """Equal refs of one call, and of several ledgers, share one row of bytes."""
    changes().put_originals(db, "t", [packed("r", "a", b"1"), packed("r", "b", b"2")])
    changes().put_originals(db, "t", [packed("r", "c", b"3")])
    assert db.execute("SELECT data FROM body").fetchall() == [(pack(b"1"),)]
    assert db.execute("SELECT count(*) FROM hold").fetchone() == (3,)


def test_a_tip_of_a_dropped_ledger_is_free(db: sqlite3.Connection) -> None:
    """A key stays with its ledger while that lives, and may then be taken by another."""
    db.executemany(
        "INSERT INTO ledger (id, tenant, name, created, used, renewed) VALUES (?, 1, ?, 0, 0, 0)", [(1, "a"), (2, "b")]
    )
    set_tips(db, 1, 1, [Mark(key("k"), 3)])
    set_tips(db, 1, 2, [Mark(key("k"), 4)])
    assert db.execute("SELECT ledger, length FROM tip").fetchall() == [(1, 3)]
    db.execute("DELETE FROM ledger WHERE id = 1")
    set_tips(db, 1, 2, [Mark(key("k"), 4)])
    assert db.execute("SELECT ledger, length FROM tip").fetchall() == [(2, 4)]


def test_the_secret_is_made_once(db: sqlite3.Connection) -> None:
    """The first secret stays."""
    assert changes().secret(db, lambda: b"one") == b"one"
    assert changes().secret(db, lambda: b"two") == b"one"
