"""Locks of the embedded store, and of the index of an object store: a row of `claim` for each that is held.

The number of a row is the token of its holder; numbers are not used twice, so the tokens of one name only grow although
the rows of locks that have ended go.
"""

from __future__ import annotations

import sqlite3

from proxy.store.sqlite_changes import tenant_id

_CLAIM = "INSERT INTO claim (tenant, name, until) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING token"
Lock = tuple[str, str]
"""Whose it is and what it is called."""


def claim(connection: sqlite3.Connection, lock: Lock, now: float, seconds: float) -> int | None:
    """Take a lock; returns its token, None if it is held."""
    tenant, name = lock
    connection.execute("DELETE FROM claim WHERE until <= ?", (now,))
    row = connection.execute(_CLAIM, (tenant_id(connection, tenant), name, now + seconds)).fetchone()
    return None if row is None else int(row[0])


def is_held(connection: sqlite3.Connection, lock: Lock, now: float) -> bool:
    """Tell whether somebody has a lock."""
    query = "SELECT 1 FROM claim c JOIN tenant t ON t.id = c.tenant WHERE t.name = ? AND c.name = ? AND c.until > ?"
    return connection.execute(query, (*lock, now)).fetchone() is not None


def release(connection: sqlite3.Connection, lock: Lock, token: int) -> None:
    """Let go of a lock that is still held with that token."""
    tenant, name = lock
    query = "DELETE FROM claim WHERE token = ? AND tenant = ? AND name = ?"
    connection.execute(query, (token, tenant_id(connection, tenant), name))
