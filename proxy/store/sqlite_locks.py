"""Locks of the embedded store: a row of `meta` for each, with the token of its last holder and when it ends.

A row stays when its lock is given back, so that the tokens of one name only grow.
"""

from __future__ import annotations

import sqlite3
import struct

from proxy.store.sealing import context_of

_STATE = struct.Struct("<qd")
Lock = tuple[str, str]
"""Whose it is and what it is called."""


def claim(connection: sqlite3.Connection, lock: Lock, now: float, seconds: float) -> int | None:
    """Take a lock; returns its new token, None if it is held."""
    token, until = _state(connection, lock)
    if until > now:
        return None
    _write(connection, lock, token + 1, now + seconds)
    return token + 1


def release(connection: sqlite3.Connection, lock: Lock, token: int) -> None:
    """Give a lock back, unless another token holds it."""
    if _state(connection, lock)[0] == token:
        _write(connection, lock, token, 0.0)


def _state(connection: sqlite3.Connection, lock: Lock) -> tuple[int, float]:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (_name(lock),)).fetchone()
    if row is None:
        return 0, 0.0
    token, until = _STATE.unpack(row[0])
    return token, until


def _write(connection: sqlite3.Connection, lock: Lock, token: int, until: float) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_name(lock), _STATE.pack(token, until)))


def _name(lock: Lock) -> str:
    return f"lock {context_of('lock', *lock).hex()}"
