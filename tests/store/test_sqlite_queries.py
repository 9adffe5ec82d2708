"""What the embedded store reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.store import sqlite_queries as queries
from proxy.store.base import Erased, Mark, PageRequest, StoreOptions
from proxy.store.codec import pack
from proxy.store.sqlite_changes import Append, Changes, Packed, Stored
from proxy.store.sqlite_expiry import erase_original
from proxy.store.sqlite_reader import Reader
from proxy.store.sqlite_schema import SLOT_BITS, connect_writer, prepare
from tests.store.suite import Clock, key, original


def entries(*data: bytes) -> tuple[Stored, ...]:
    """Make entries as they will lie in the file."""
    return tuple(Stored(pack(entry), len(entry)) for entry in data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a file."""
    return tmp_path / "store.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file."""
    with closing(connect_writer(path)) as connection:
        prepare(connection)
        yield connection


@pytest.fixture
def reader(db: sqlite3.Connection, path: Path) -> Iterator[Reader]:
    """Read the file."""
    reader = Reader(lambda: path, lambda: 1)
    yield reader
    reader.close()


@pytest.fixture
def changes() -> Changes:
    """Change the file."""
    return Changes(StoreOptions(), Clock())


def test_half_a_key_is_no_key(db: sqlite3.Connection, reader: Reader, changes: Changes) -> None:
    """A key that shares its first half with a known one is unknown."""
    known, alike = b"12345678" + b"a" * 8, b"12345678" + b"b" * 8
    changes.append(db, Append("t", "a", 0, entries(b"e"), (Mark(known, 1),)))
    owner = reader.owner("t")
    assert owner is not None
    assert list(queries.find_tips(reader, owner, [alike])) == []
    assert list(queries.find_tips(reader, owner, [known])) == [known]


@pytest.mark.parametrize("count", [1, 4, 5, 16, 17, 40])
def test_any_number_of_keys(db: sqlite3.Connection, reader: Reader, changes: Changes, count: int) -> None:
    """Look-ups of any width find exactly the known keys."""
    marks = tuple(Mark(key(f"k{i}"), i) for i in range(0, 40, 2))
    changes.append(db, Append("t", "a", 0, entries(b"e"), marks))
    found = queries.find_tips(reader, 1, [key(f"k{i}") for i in range(count)])
    assert sorted(tip.length for tip in found.values()) == list(range(0, count, 2))


def test_the_state_of_a_ledger(db: sqlite3.Connection, reader: Reader, changes: Changes) -> None:
    """Version and newest of a ledger, and zeros for one that is not there."""
    changes.append(db, Append("t", "a", 0, entries(b"e", b"f"), (Mark(key("k"), 7),)))
    assert queries.ledger_state(reader, 1, "a") == (2, 7)
    assert queries.ledger_state(reader, 1, "b") == (0, 0)


@pytest.mark.parametrize("span", [(3, 3), (5, 2), (-9, 0), (1 << SLOT_BITS, 1 << 60), (-(1 << 70), 1 << 70)])
def test_no_span_is_too_odd(db: sqlite3.Connection, changes: Changes, span: tuple[int, int]) -> None:
    """Empty, reversed and huge spans of a record give what is in them: nothing here, and nothing of a neighbour."""
    for name in ("a", "b", "c"):
        changes.append(db, Append("t", name, 0, entries(b"e"), ()))
    db.execute("INSERT INTO record VALUES (?, 1, ?)", ((3 << SLOT_BITS) + 1, pack(b"x")))
    assert queries.load_record(db, 1, "b", span) == []


def test_of_equal_refs_the_living_one_is_shown(db: sqlite3.Connection, changes: Changes) -> None:
    """The administration sees an original that one tenant still has, although another erased its own."""
    for tenant in ("t", "u"):
        changes.put_originals(db, tenant, [Packed(original("r", "a"), pack(b"data"))])
    erase_original(db, "t", "r", 0.0)
    shown = queries.get_original(db, None, "r")
    assert isinstance(shown, queries.Body)
    assert (shown.tenant, shown.original.ref, shown.data) == ("u", "r", pack(b"data"))
    assert queries.get_original(db, "t", "r") == Erased("r")


def test_lists_of_nobody(db: sqlite3.Connection) -> None:
    """Unknown tenants and sessions have empty lists."""
    assert queries.list_sessions(db, "nobody", PageRequest()).data == []
    assert queries.list_originals(db, None, "none", PageRequest()).data == []
    assert queries.get_session(db, None, "none") is None
    assert queries.facts(db, "nobody") == {}
    assert queries.missing_originals(db, 9, ["r"]) == {"r"}
    assert queries.stats(db, 3).dropped == 3
