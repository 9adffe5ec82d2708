"""The index of an object store: what is known of everything in it except the bytes, in an embedded database.

Each process keeps a copy in a folder of its own and applies the commits of the log to it, in order. The tables are
those of the embedded store; where that has bytes this has names: `body.data` is the name of a blob, `entry.data` and
`record.data` are the name of a blob and a position in it. A blob of a session belongs to its ledger (`piece`) and is
garbage once that is gone; the blob of an original once that is.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from proxy.store.backlog import Note
from proxy.store.base import Original, Recorded, StoreOptions
from proxy.store.objects_log import (
    NAME_BYTES,
    AnyChange,
    Append,
    Claim,
    Collected,
    Delete,
    Drop,
    Erase,
    Fold,
    PutFact,
    PutOriginals,
    PutSecret,
    PutSession,
    Refuse,
    Release,
    Touch,
    Use,
)
from proxy.store.sqlite_changes import Append as LedgerAppend
from proxy.store.sqlite_changes import Changes, Packed, Stored, tenant_id
from proxy.store.sqlite_expiry import delete_session, drop_things, erase_original, refuse_refs
from proxy.store.sqlite_locks import claim, release
from proxy.store.sqlite_notes import close_accounts, open_account, renew_originals, write_note
from proxy.store.sqlite_schema import connect_writer, prepare
from proxy.store.sqlite_sessions import put_session

ENTRIES, RECORD = 0, 1
"""What a blob of a session holds."""

BLOB_BYTES = 2 * NAME_BYTES
_PLACE = struct.Struct(f"<{BLOB_BYTES}sI")
_UNLIMITED = StoreOptions()
_MOVE = {
    ENTRIES: "UPDATE entry SET data = ? WHERE slot = ? AND data = ?",
    RECORD: "UPDATE record SET data = ? WHERE slot = ? AND data = ?",
}

_TABLES = """
CREATE TABLE piece (
    ledger INTEGER NOT NULL, blob BLOB NOT NULL, kind INTEGER NOT NULL, is_loose INTEGER NOT NULL,
    PRIMARY KEY (ledger, blob)) WITHOUT ROWID;
CREATE TABLE garbage (blob BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TRIGGER body_gone AFTER DELETE ON body BEGIN INSERT OR IGNORE INTO garbage VALUES (old.data); END;
CREATE TRIGGER ledger_gone AFTER DELETE ON ledger BEGIN
    INSERT OR IGNORE INTO garbage SELECT blob FROM piece WHERE ledger = old.id;
    DELETE FROM piece WHERE ledger = old.id;
END;
CREATE INDEX tip_ledger ON tip (ledger);
INSERT INTO meta VALUES ('position', 0);
"""


def connect(path: Path, *, fresh: bool) -> sqlite3.Connection:
    """Open a copy of the index; a fresh one is empty."""
    connection = connect_writer(path)
    connection.execute("PRAGMA synchronous=OFF")  # it can always be made again
    prepare(connection)  # a snapshot may be of an older schema
    if fresh:
        connection.executescript(_TABLES)
    return connection


def position(connection: sqlite3.Connection) -> int:
    """Return the number of the last commit that is in the index."""
    return int(connection.execute("SELECT value FROM meta WHERE name = 'position'").fetchone()[0])


def set_position(connection: sqlite3.Connection, number: int) -> None:
    """Write down the number of the last commit that is in the index."""
    connection.execute("UPDATE meta SET value = ? WHERE name = 'position'", (number,))


def garbage(connection: sqlite3.Connection, most: int) -> list[bytes]:
    """Return some blobs that nothing refers to any more."""
    return [blob for (blob,) in connection.execute("SELECT blob FROM garbage LIMIT ?", (most,))]


def is_used(connection: sqlite3.Connection, blob: bytes, owner: tuple[str, str, str]) -> bool:
    """Whether something refers to a blob of an original or a session: (kind, tenant, ref or ledger)."""
    kind, tenant, name = owner
    query = {
        "original": "SELECT 1 FROM body b JOIN original x ON x.id = b.original JOIN tenant t ON t.id = x.tenant "
        "WHERE x.ref = ? AND t.name = ? AND b.data = ?",
        "session": "SELECT 1 FROM piece p JOIN ledger x ON x.id = p.ledger JOIN tenant t ON t.id = x.tenant "
        "WHERE x.name = ? AND t.name = ? AND p.blob = ?",
    }[kind]
    return connection.execute(query, (name, tenant, blob)).fetchone() is not None


def place_of(stored: bytes) -> tuple[bytes, int]:
    """Return blob and position that a row holds in place of bytes."""
    blob, at = _PLACE.unpack(stored)
    return blob, at


class Applier:
    """Applies changes to an index; refusals (quota, position) are raised before anything is changed."""

    def __init__(self, options: StoreOptions = _UNLIMITED) -> None:
        """Take the options of whoever decides; a change that was decided on is applied without limits."""
        self._options = options
        self._now = 0.0
        self._changes = Changes(options, lambda: self._now)
        self._doing: dict[type, Callable[[sqlite3.Connection, Any], Any]] = {
            PutSecret: lambda db, change: self._changes.secret(db, lambda: change.value),
            PutOriginals: self._put_originals,
            Erase: lambda db, change: erase_original(db, change.tenant, change.ref, change.at),
            Refuse: lambda db, change: refuse_refs(db, tenant_id(db, change.tenant), change.refs, change.at),
            Append: self._append,
            Use: self._use,
            Fold: _fold,
            Touch: lambda db, change: renew_originals(db, {(t, ref): at for t, ref, at in change.uses}),
            PutSession: lambda db, change: put_session(db, change.session, change.newest),
            Delete: lambda db, change: delete_session(db, change.tenant, change.session),
            Drop: lambda db, change: drop_things(db, change.ledgers, change.originals),
            PutFact: lambda db, change: self._changes.put_fact(db, change.tenant, change.key, change.value),
            Claim: lambda db, change: claim(db, (change.tenant, change.name), change.at, change.seconds),
            Release: lambda db, change: release(db, (change.tenant, change.name), change.token),
            Collected: _collected,
        }

    def apply(self, connection: sqlite3.Connection, change: AnyChange) -> Any:  # noqa: ANN401  # each has its own
        """Apply a change inside an open transaction; returns what it comes to."""
        self._now = getattr(change, "at", 0.0)
        return self._doing[type(change)](connection, change)

    def _put_originals(self, connection: sqlite3.Connection, change: PutOriginals) -> frozenset[str]:
        packed = [Packed(o, change.blobs.get(o.ref, b"")) for o in change.originals]
        refused = self._changes.put_originals(connection, change.tenant, packed)
        for ref, blob in change.blobs.items():
            if not is_used(connection, blob, ("original", change.tenant, ref)):
                connection.execute("INSERT OR IGNORE INTO garbage VALUES (?)", (blob,))
        return refused

    def _append(self, connection: sqlite3.Connection, change: Append) -> int:
        entries = tuple(Stored(_PLACE.pack(change.blob, i), size) for i, size in enumerate(change.sizes))
        wanted = LedgerAppend(change.tenant, change.ledger, change.position, entries, change.marks)
        version = self._changes.append(connection, wanted)
        if change.sizes:
            self._hold(connection, (change.tenant, change.ledger), change.blob, ENTRIES)
        return version

    def _use(self, connection: sqlite3.Connection, change: Use) -> int:
        """Count a note; returns 1 if its messages do not fit and have to be left out."""
        account = open_account(connection, change.tenant, self._options)
        record = {index: Stored(_PLACE.pack(change.blob, i), size) for i, (index, size) in enumerate(change.messages)}
        note = Note(change.tenant, change.use, change.marks, (), change.at)
        left_out = write_note(connection, account, note, record, change.slack)
        close_accounts(connection, [account])
        if record and not left_out:
            self._hold(connection, (change.tenant, change.use.ledger), change.blob, RECORD)
        return left_out

    @staticmethod
    def _hold(connection: sqlite3.Connection, ledger: tuple[str, str], blob: bytes, kind: int) -> None:
        """Let a blob live as long as a ledger: (tenant, name)."""
        connection.execute(
            "INSERT OR IGNORE INTO piece SELECT l.id, ?1, ?2, 1 FROM ledger l JOIN tenant t ON t.id = l.tenant "
            "WHERE t.name = ?3 AND l.name = ?4",
            (blob, kind, *ledger),
        )


def unknown_refs(connection: sqlite3.Connection, tenant: str, originals: Sequence[Original]) -> dict[str, Original]:
    """Return the originals that are neither stored nor erased, the first of each ref."""
    query = (
        "SELECT 1 FROM original x JOIN tenant t ON t.id = x.tenant WHERE x.ref = ?1 AND t.name = ?2 "
        "UNION ALL SELECT 1 FROM erased x JOIN tenant t ON t.id = x.tenant WHERE x.ref = ?1 AND t.name = ?2"
    )
    found: dict[str, Original] = {}
    for original in originals:
        if original.ref not in found and connection.execute(query, (original.ref, tenant)).fetchone() is None:
            found[original.ref] = original
    return found


def room_left(connection: sqlite3.Connection, tenant: str, quota: int) -> int:
    """Return how many bytes of originals a tenant may still store."""
    row = connection.execute("SELECT kept_bytes FROM tenant WHERE name = ?", (tenant,)).fetchone()
    return quota - (row[0] if row else 0)


def messages_of(record: Sequence[Recorded]) -> list[Recorded]:
    """Return the last of the messages of each index."""
    return list({message.index: message for message in record}.values())


def without_record(change: Use) -> Use:
    """Return the same change without messages."""
    return structs.replace(change, messages=(), blob=b"")


def _fold(connection: sqlite3.Connection, change: Fold) -> None:
    """Point the rows that are still as they were at the new blob; rows that changed have blobs of their own."""
    query = "SELECT count(*) FROM piece WHERE ledger = ? AND blob = ?"
    there = sum(connection.execute(query, (change.ledger, blob)).fetchone()[0] for blob in change.old)
    if there < len(change.old):  # the session is gone, or somebody else was quicker
        connection.execute("INSERT OR IGNORE INTO garbage VALUES (?)", (change.blob,))
        return
    moves = [(_PLACE.pack(change.blob, i), slot, held) for i, (slot, held) in enumerate(change.rows)]
    connection.executemany(_MOVE[change.kind], moves)
    connection.execute("INSERT INTO piece VALUES (?, ?, ?, 0)", (change.ledger, change.blob, change.kind))
    for blob in change.old:
        connection.execute("DELETE FROM piece WHERE ledger = ? AND blob = ?", (change.ledger, blob))
        connection.execute("INSERT OR IGNORE INTO garbage VALUES (?)", (blob,))


def _collected(connection: sqlite3.Connection, change: Collected) -> None:
    connection.executemany("DELETE FROM garbage WHERE blob = ?", [(blob,) for blob in change.blobs])
