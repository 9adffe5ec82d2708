"""How files of the embedded store are opened, and what errors mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from proxy.errors import ConfigError, Full, StoreError, Unavailable
from proxy.store import sqlite_schema
from proxy.store.sqlite_schema import (
    SCHEMA,
    concerns_all,
    connect_reader,
    connect_writer,
    explain,
    prepare,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a file in a folder that does not exist yet."""
    return tmp_path / "new" / "store.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a fresh file of the present schema."""
    with closing(connect_writer(path)) as connection:
        prepare(connection)
        yield connection


def version(db: sqlite3.Connection) -> int:
    """Return the schema that a file says it has."""
    return int(db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()[0])


def test_a_new_file_has_the_present_schema(db: sqlite3.Connection) -> None:
    """The file is in WAL mode and carries its number; opening it again changes nothing."""
    assert version(db) == SCHEMA
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    prepare(db)
    assert not db.in_transaction


def test_a_newer_file_is_refused(db: sqlite3.Connection) -> None:
    """What a later version wrote is not touched, and the message says what to do."""
    db.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (SCHEMA + 1,))
    with pytest.raises(ConfigError, match=f"schema {SCHEMA + 1}, this version knows {SCHEMA}; start the newer ullage"):
        prepare(db)
    assert version(db) == SCHEMA + 1


def test_an_older_file_is_migrated_step_by_step(db: sqlite3.Connection) -> None:
    """Every step between the file's schema and the wanted one runs, in order."""
    steps = {
        SCHEMA: lambda db: db.execute("ALTER TABLE ledger ADD COLUMN colour TEXT"),
        SCHEMA + 1: lambda db: db.execute("UPDATE ledger SET colour = 'red'"),
    }
    db.execute("INSERT INTO ledger (tenant, name, created, used, renewed) VALUES (1, 'a', 0, 0, 0)")
    prepare(db, schema=SCHEMA + 2, migrations=steps)
    assert version(db) == SCHEMA + 2
    assert db.execute("SELECT colour FROM ledger").fetchall() == [("red",)]


def test_the_first_schema_gains_locks(db: sqlite3.Connection) -> None:
    """A file of schema 1 gets the table of locks that a new file has, and keeps what it holds."""
    made = db.execute("SELECT sql FROM sqlite_master WHERE name = 'claim'").fetchall()
    db.execute("DROP TABLE claim")
    db.execute("UPDATE meta SET value = 1 WHERE name = 'schema'")
    db.execute("INSERT INTO meta VALUES ('secret', 'kept')")
    prepare(db)
    assert version(db) == SCHEMA
    assert db.execute("SELECT sql FROM sqlite_master WHERE name = 'claim'").fetchall() == made != []
    assert db.execute("SELECT value FROM meta WHERE name = 'secret'").fetchall() == [("kept",)]


def test_a_failed_migration_changes_nothing(db: sqlite3.Connection) -> None:
    """If one step fails the file stays as it was, with its old number."""

    def fail(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE half (done TEXT)")
        db.execute("SELECT * FROM nowhere")

    with pytest.raises(sqlite3.OperationalError):
        prepare(db, schema=SCHEMA + 1, migrations={SCHEMA: fail})
    assert version(db) == SCHEMA
    assert db.execute("SELECT 1 FROM sqlite_master WHERE name = 'half'").fetchone() is None


def test_a_missing_step_is_wrong_configuration(db: sqlite3.Connection) -> None:
    """A file that is too old for this version is refused, not half migrated."""
    with pytest.raises(ConfigError, match="cannot bring up"):
        prepare(db, schema=SCHEMA + 2, migrations={SCHEMA + 1: lambda _: None})
    assert version(db) == SCHEMA


def test_a_database_without_our_tables_is_not_ours(path: Path) -> None:
    """A file of another program is refused, even if it has a table of a name of ours."""
    with closing(connect_writer(path)) as db:
        db.execute("CREATE TABLE ledger (amount REAL)")
        with pytest.raises(ConfigError, match="not a store of ullage"):
            prepare(db)


def test_an_old_sqlite_is_wrong_configuration(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library without what the statements need is named at the start, not met as a syntax error later."""
    monkeypatch.setattr(sqlite_schema, "OLDEST_SQLITE", (99, 0))
    with pytest.raises(ConfigError, match="is needed"):
        prepare(db)


def test_many_may_create_one_file(path: Path) -> None:
    """Processes that start together on a file that does not exist yet do not get into each other's way."""

    def create(_: int) -> int:
        with closing(connect_writer(path)) as db:
            prepare(db)
            return version(db)

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(create, range(16))) == {SCHEMA}


def test_a_reader_writes_nothing(db: sqlite3.Connection, path: Path) -> None:
    """A reading connection can change nothing, and creates no file."""
    with closing(connect_reader(path)) as reader, pytest.raises(sqlite3.OperationalError):
        reader.execute("DELETE FROM meta")
    with pytest.raises(sqlite3.OperationalError):
        connect_reader(path.parent / "other.db")
    assert not (path.parent / "other.db").exists()


def failure(code: int) -> sqlite3.OperationalError:
    """Make an error of the database with a result code."""
    error = sqlite3.OperationalError("what the library says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "meaning", "text"),
    [
        (failure(sqlite3.SQLITE_FULL), Full, "disk"),
        (failure(sqlite3.SQLITE_BUSY), Unavailable, "locked"),
        (failure(sqlite3.SQLITE_BUSY | 1 << 8), Unavailable, "locked"),
        (failure(sqlite3.SQLITE_LOCKED), Unavailable, "locked"),
        (failure(sqlite3.SQLITE_IOERR), Unavailable, "what the library says"),
        (sqlite3.DatabaseError("malformed"), Unavailable, "malformed"),
        (PermissionError(13, "Permission denied"), Unavailable, "Permission denied"),
        (Full("of a tenant"), Full, "of a tenant"),
        (TypeError("a mistake of ours"), Unavailable, "a mistake of ours"),
    ],
)
def test_errors_become_store_errors(error: Exception, meaning: type[StoreError], text: str) -> None:
    """Whatever fails below, callers see a store error that tells what is wrong."""
    explained = explain(error)
    assert type(explained) is meaning
    assert text in explained.message


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (failure(sqlite3.SQLITE_IOERR), True),
        (sqlite3.DatabaseError("malformed"), True),
        (sqlite3.InternalError("?"), True),
        (sqlite3.DataError("too large"), False),
        (sqlite3.ProgrammingError("type not supported"), False),
        (sqlite3.IntegrityError("not null"), False),
        (UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates"), False),
        (TypeError("?"), False),
    ],
)
def test_whom_an_error_concerns(error: Exception, verdict: bool) -> None:
    """Errors of the database end a whole commit, errors of values only the change that brought them."""
    assert concerns_all(error) is verdict
