"""The tables of the embedded store, how a file of them is opened, and what its errors mean.

Why the tables look as they do:

- A *slot* is `ledger id << 24 | position`: entries and the record lie in order in one B-tree, without an
  index beside.
- A tip's id is the first half of its digest mixed with the tenant, `rest` the second half, compared on every
  look-up. So a look-up is one step in an integer B-tree, and a new tip dirties one page. There is no index by
  ledger: tips of a dropped ledger are invisible at once (a look-up joins the ledger) and swept later, in
  slices.
- Bytes of originals lie apart from what is known about them, so that renewing an original does not rewrite
  it.
- `renewed` is written coarsely (see `StoreOptions.slack`) and indexed; `used` is exact and not.
- Ids are never used twice (AUTOINCREMENT), since tips of a dropped ledger may still lie about.
- Freed pages are overwritten (`secure_delete`): what was erased cannot be found in the file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from proxy.errors import ConfigError, Full, StoreError, Unavailable

SCHEMA = 2
PATIENCE = 0.45  # seconds to wait for another process's transaction
POLL = 0.002  # seconds between attempts to begin one
GLANCE = 0.05  # the same for reads on the event loop, where hardly anything can make them wait
SLOT_BITS = 24
OLDEST_SQLITE = (3, 35)

TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE tenant (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
    kept_bytes INTEGER NOT NULL DEFAULT 0, record_bytes INTEGER NOT NULL DEFAULT 0);
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY AUTOINCREMENT, tenant INTEGER NOT NULL, name TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 0, newest INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL, used REAL NOT NULL, renewed REAL NOT NULL,
    key TEXT, model TEXT NOT NULL DEFAULT '', format TEXT NOT NULL DEFAULT '', preset TEXT NOT NULL DEFAULT '',
    calls INTEGER NOT NULL DEFAULT 0, messages INTEGER NOT NULL DEFAULT 0,
    received_tokens INTEGER NOT NULL DEFAULT 0, sent_tokens INTEGER NOT NULL DEFAULT 0,
    edits INTEGER NOT NULL DEFAULT 0, compactions INTEGER NOT NULL DEFAULT 0, reads INTEGER NOT NULL DEFAULT 0,
    entry_bytes INTEGER NOT NULL DEFAULT 0, record_bytes INTEGER NOT NULL DEFAULT 0,
    UNIQUE (name, tenant));
CREATE INDEX ledger_tenant ON ledger (tenant);
CREATE INDEX ledger_renewed ON ledger (renewed);
CREATE TABLE entry (slot INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE record (slot INTEGER PRIMARY KEY, size_bytes INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE tip (
    id INTEGER PRIMARY KEY, rest INTEGER NOT NULL, ledger INTEGER NOT NULL, length INTEGER NOT NULL);
CREATE TABLE original (
    id INTEGER PRIMARY KEY AUTOINCREMENT, tenant INTEGER NOT NULL, ref TEXT NOT NULL, kind TEXT NOT NULL,
    tool TEXT, tokens INTEGER NOT NULL, lines INTEGER NOT NULL, size_bytes INTEGER NOT NULL,
    created REAL NOT NULL, renewed REAL NOT NULL, UNIQUE (ref, tenant));
CREATE INDEX original_tenant ON original (tenant);
CREATE INDEX original_renewed ON original (renewed);
CREATE TABLE body (original INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE hold (
    seq INTEGER PRIMARY KEY, original INTEGER NOT NULL, ledger INTEGER NOT NULL, UNIQUE (original, ledger));
CREATE INDEX hold_ledger ON hold (ledger, original);
CREATE TABLE erased (ref TEXT, tenant INTEGER, at REAL NOT NULL, PRIMARY KEY (ref, tenant)) WITHOUT ROWID;
CREATE TABLE fact (tenant INTEGER, key TEXT, value BLOB NOT NULL, PRIMARY KEY (tenant, key)) WITHOUT ROWID;
"""
CLAIMS = """
CREATE TABLE claim (
    token INTEGER PRIMARY KEY AUTOINCREMENT, tenant INTEGER NOT NULL, name TEXT NOT NULL, until REAL NOT NULL,
    UNIQUE (tenant, name))
"""

Migration = Callable[[sqlite3.Connection], None]


def _add_claims(connection: sqlite3.Connection) -> None:
    connection.execute(CLAIMS)


MIGRATIONS: Mapping[int, Migration] = {1: _add_claims}
"""For each older schema, the step to the next one; each runs inside the transaction that also raises the number."""


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open a file for writing, creating it with its folder; the schema is not looked at yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    try:
        _use_wal(connection)
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA journal_size_limit=8388608")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def connect_reader(path: Path, patience: float = PATIENCE) -> sqlite3.Connection:
    """Open an existing file for reading only."""
    address = f"file:{quote(str(path))}?mode=rw"  # not mode=ro: a reader of WAL takes part in its index
    connection = sqlite3.connect(address, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only=ON")
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL; two processes that create one file together make this fail without waiting, so wait here."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def begin(connection: sqlite3.Connection) -> None:
    """Begin to write, waiting for others as long as is bearable.

    SQLite's own waiting sleeps longer and longer, up to a tenth of a second; beside a process that writes all the time
    it starves. So this asks often, and the connection's own patience must be none.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(POLL)
        else:
            return


def prepare(
    connection: sqlite3.Connection, *, schema: int = SCHEMA, migrations: Mapping[int, Migration] = MIGRATIONS
) -> None:
    """Create the tables, or bring older ones up to date; raises ConfigError for a file that is not ours to touch."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        found = sqlite3.sqlite_version
        raise ConfigError(f"store.url: Python uses SQLite {found}; 3.35 or newer is needed", param="store.url")
    if _schema_of(connection) == schema:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        older = _schema_of(connection)
        if older is None:
            _create(connection, schema)
        else:
            _migrate(connection, older, schema, migrations)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _schema_of(connection: sqlite3.Connection) -> int | None:
    """Return the schema of a file, None if it is empty; raises ConfigError for somebody else's database."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    row = None
    if {"meta", "ledger", "original"} <= tables:
        row = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    if row is None:
        raise ConfigError(
            "store.url: the file is an SQLite database, but not a store of ullage; choose another file",
            param="store.url",
        )
    return int(row[0])


def _create(connection: sqlite3.Connection, schema: int) -> None:
    for statement in TABLES.split(";"):
        connection.execute(statement)
    _add_claims(connection)
    connection.execute("INSERT INTO meta VALUES ('schema', ?)", (schema,))


def _migrate(connection: sqlite3.Connection, found: int, schema: int, migrations: Mapping[int, Migration]) -> None:
    if found > schema:
        message = (
            f"store.url: the file has schema {found}, this version knows {schema}; "
            "start the newer ullage that wrote it, or choose another file"
        )
        raise ConfigError(message, param="store.url")
    for step in range(found, schema):
        if step not in migrations:
            raise ConfigError(
                f"store.url: the file has schema {found}, which this version cannot bring up to {schema}",
                param="store.url",
            )
        migrations[step](connection)
    connection.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (schema,))


def concerns_all(error: Exception) -> bool:
    """Whether an error is about the database rather than about the values of one statement."""
    broken = (sqlite3.OperationalError, sqlite3.InternalError, sqlite3.NotSupportedError)
    return isinstance(error, broken) or type(error) is sqlite3.DatabaseError


def explain(error: Exception) -> StoreError:
    """Return what an error of the database means for callers."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, OSError):
        return Unavailable(f"the store cannot use its file: {error.strerror or error}")
    code = _primary(error)
    if code == sqlite3.SQLITE_FULL:
        return Full("the disk of the store is full")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable("the store is locked by another process")
    return Unavailable(f"the store failed: {error}")


def _primary(error: Exception) -> int:
    """Return the primary result code; errors of the Python side have none."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
