"""How the embedded store writes what was written behind."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from proxy.store.backlog import Batch, Note
from proxy.store.base import Mark, Recorded, SessionUse, StoreOptions
from proxy.store.codec import pack, unpack
from proxy.store.sqlite_notes import write_batch
from proxy.store.sqlite_schema import SLOT_BITS, connect_writer, prepare
from tests.store.suite import key


@contextmanager
def fresh() -> Iterator[sqlite3.Connection]:
    """Open a file for a while."""
    with tempfile.TemporaryDirectory() as folder, closing(connect_writer(Path(folder) / "store.db")) as db:
        prepare(db)
        yield db


def seal(_: Note, message: Recorded) -> bytes:
    """Store a message unencrypted."""
    return pack(message.data)


def batch(*notes: Note) -> Batch:
    """Make a batch of notes."""
    made = Batch()
    for note in notes:
        made.add(note)
    return made


RECORDS = st.lists(st.lists(st.builds(Recorded, st.integers(-1, 5), st.binary(max_size=9)), max_size=4), max_size=4)


@given(RECORDS)
def test_the_room_of_a_record_is_exact(records: list[list[Recorded]]) -> None:
    """Whatever is recorded over what, the room is that of the messages that are there."""
    expected: dict[int, bytes] = {}
    with fresh() as db:
        for record in records:
            write_batch(db, batch(Note("t", SessionUse("a"), (), tuple(record), 0.0)), StoreOptions(), seal)
            expected |= {message.index: message.data for message in record if message.index >= 0}
        rows = {slot - (1 << SLOT_BITS): unpack(data) for slot, data in db.execute("SELECT slot, data FROM record")}
        assert rows == expected
        room = sum(map(len, expected.values()))
        assert db.execute("SELECT coalesce(sum(record_bytes), 0) FROM ledger").fetchone() == (room,)
        assert db.execute("SELECT coalesce(sum(record_bytes), 0) FROM tenant").fetchone() == (room,)


def test_one_bad_note_does_not_spoil_the_batch() -> None:
    """What cannot be written is dropped and counted, its neighbours are written."""
    bad = Note("t", SessionUse("bad", received_tokens=1 << 70), (), (), 0.0)
    odd = Note("t", SessionUse("odd"), (Mark(b"short", 1),), (), 0.0)
    good = Note("t", SessionUse("good"), (Mark(key("k"), 1),), (), 0.0)
    with fresh() as db:
        assert write_batch(db, batch(bad, odd, good), StoreOptions(), seal) == 2
        assert ("good",) in db.execute("SELECT name FROM ledger").fetchall()
        assert db.execute("SELECT length FROM tip").fetchall() == [(1,)]


def test_the_quota_of_a_record_spans_the_batch() -> None:
    """Sessions of one tenant share its room within one batch, and other tenants have their own."""
    notes = [Note(t, SessionUse(s), (), (Recorded(0, b"x" * 6),), 0.0) for t, s in ("ta", "tb", "ua")]
    with fresh() as db:
        assert write_batch(db, batch(*notes), StoreOptions(stored_bytes=10), seal) == 1
        assert db.execute("SELECT record_bytes FROM tenant").fetchall() == [(6,), (6,)]
        assert db.execute("SELECT count(*) FROM ledger").fetchone() == (3,)


def test_renewal_is_coarse_and_use_is_exact() -> None:
    """The indexed time moves only after the slack, the shown one with every note; neither goes back."""
    options = StoreOptions(idle_ttl=160.0)
    seen = []
    with fresh() as db:
        for at in (100.0, 105.0, 111.0, 103.0):
            write_batch(db, batch(Note("t", SessionUse("a"), (), (), at)), options, seal)
            seen.append(db.execute("SELECT created, renewed, used FROM ledger").fetchone())
    assert seen == [(100, 100, 100), (100, 100, 105), (100, 111, 111), (100, 111, 111)]


def test_touches_reach_the_right_tenant() -> None:
    """An original is renewed by its own tenant's use, and never made younger."""
    renewed = "SELECT tenant, renewed FROM original ORDER BY tenant"
    with fresh() as db:
        db.execute("INSERT INTO tenant (name) VALUES ('t'), ('u')")
        for tenant in (1, 2):
            about = (tenant, "r", "result", None, 1, 1, 1, 0.0, 50.0)
            db.execute("INSERT INTO original VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)", about)
        write_batch(db, Batch(touches={("t", "r"): 60.0, ("u", "r"): 40.0, ("x", "r"): 99.0}), StoreOptions(), seal)
        assert db.execute(renewed).fetchall() == [(1, 60.0), (2, 50.0)]
