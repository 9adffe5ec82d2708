"""How things leave the embedded store: erased or deleted by somebody, or idle for too long.

Sessions go with all that hangs on them; an original goes when its last holder is deleted or when it was idle
itself. Expiry works in small steps, so that the file is never locked for long; each function is the inside of
a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from proxy.store.sqlite_schema import SLOT_BITS

STEP_THINGS = 100
STEP_BYTES = 8 * 1024 * 1024
STEP_TIPS = 10_000
BEFORE_ALL_TIPS = -(1 << 63)

_IDLE_LEDGERS = "SELECT id, entry_bytes + record_bytes FROM ledger WHERE renewed < ? LIMIT ?"
_IDLE_ORIGINALS = "SELECT id, size_bytes FROM original WHERE renewed < ? LIMIT ?"
_SLICE = "SELECT max(id) FROM (SELECT id FROM tip WHERE id > ? ORDER BY id LIMIT ?)"
_SWEEP = "DELETE FROM tip WHERE id > ? AND id <= ? AND ledger NOT IN (SELECT id FROM ledger)"


def erase_original(connection: sqlite3.Connection, tenant: str | None, ref: str, now: float) -> bool:
    """Drop an original and leave a tombstone, for one tenant or for all that have it; False if nobody has."""
    rows = connection.execute(
        "SELECT o.id, o.tenant FROM original o JOIN tenant t ON t.id = o.tenant "
        "WHERE o.ref = ?1 AND (?2 IS NULL OR t.name = ?2)",
        (ref, tenant),
    ).fetchall()
    _drop_originals(connection, [number for number, _ in rows])
    connection.executemany("INSERT OR IGNORE INTO erased VALUES (?, ?, ?)", [(ref, owner, now) for _, owner in rows])
    return bool(rows)


def refuse_refs(connection: sqlite3.Connection, owner: int, refs: Sequence[str], now: float) -> None:
    """Leave tombstones for refs of one tenant, in place of what is stored under them."""
    for ref in refs:
        rows = connection.execute("SELECT id FROM original WHERE ref = ? AND tenant = ?", (ref, owner)).fetchall()
        _drop_originals(connection, [number for (number,) in rows])
        connection.execute("INSERT OR IGNORE INTO erased VALUES (?, ?, ?)", (ref, owner, now))


def delete_session(connection: sqlite3.Connection, tenant: str | None, session: str) -> bool:
    """Drop a session and the originals that nobody else holds; False if there is none."""
    rows = connection.execute(
        "SELECT l.id FROM ledger l JOIN tenant t ON t.id = l.tenant WHERE l.name = ?1 AND (?2 IS NULL OR t.name = ?2)",
        (session, tenant),
    ).fetchall()
    for (ledger,) in rows:
        alone = connection.execute(
            "SELECT original FROM hold h WHERE ledger = ?1 AND NOT EXISTS "
            "(SELECT 1 FROM hold o WHERE o.original = h.original AND o.ledger != ?1)",
            (ledger,),
        ).fetchall()
        _drop_originals(connection, [number for (number,) in alone])
        _drop_ledger(connection, ledger)
    return bool(rows)


def expire_step(connection: sqlite3.Connection, before: float) -> int:
    """Drop some of what was last used before a time; returns how much, 0 when nothing is left."""
    ledgers, originals = idle_things(connection, before)
    drop_things(connection, ledgers, originals)
    return len(ledgers) + len(originals)


def idle_things(connection: sqlite3.Connection, before: float) -> tuple[list[int], list[int]]:
    """Return the numbers of some ledgers and some originals that were last used before a time."""
    ledgers = connection.execute(_IDLE_LEDGERS, (before, STEP_THINGS)).fetchall()
    originals = connection.execute(_IDLE_ORIGINALS, (before, STEP_THINGS)).fetchall()
    return _some(ledgers), _some(originals)


def drop_things(connection: sqlite3.Connection, ledgers: Sequence[int], originals: Sequence[int]) -> None:
    """Drop ledgers and originals by number."""
    for ledger in ledgers:
        _drop_ledger(connection, ledger)
    _drop_originals(connection, originals)


def _some(rows: Sequence[tuple[int, int]]) -> list[int]:
    """Return the numbers of the first things that together are not too large, at least of one."""
    numbers: list[int] = []
    room = STEP_BYTES
    for number, size_bytes in rows:
        if numbers and size_bytes > room:
            break
        room -= size_bytes
        numbers.append(number)
    return numbers


def sweep_tips(connection: sqlite3.Connection, after: int) -> int | None:
    """Delete orphaned tips from one slice of all; returns where it ends, None after the last one."""
    (last,) = connection.execute(_SLICE, (after, STEP_TIPS)).fetchone()
    if last is None:
        return None
    connection.execute(_SWEEP, (after, last))
    return int(last)


def _drop_ledger(connection: sqlite3.Connection, ledger: int) -> None:
    """Drop a ledger with entries, record and holds; its tips are invisible from now on."""
    span = (ledger << SLOT_BITS, ((ledger + 1) << SLOT_BITS) - 1)
    connection.execute("DELETE FROM entry WHERE slot BETWEEN ? AND ?", span)
    connection.execute("DELETE FROM record WHERE slot BETWEEN ? AND ?", span)
    connection.execute("DELETE FROM hold WHERE ledger = ?", (ledger,))
    connection.execute(
        "UPDATE tenant SET kept_bytes = kept_bytes - gone.kept, record_bytes = record_bytes - gone.record "
        "FROM (SELECT tenant, entry_bytes AS kept, record_bytes AS record FROM ledger WHERE id = ?) gone "
        "WHERE tenant.id = gone.tenant",
        (ledger,),
    )
    connection.execute("DELETE FROM ledger WHERE id = ?", (ledger,))


def _drop_originals(connection: sqlite3.Connection, numbers: Sequence[int]) -> None:
    for number in numbers:
        connection.execute(
            "UPDATE tenant SET kept_bytes = kept_bytes - gone.size_bytes "
            "FROM (SELECT tenant, size_bytes FROM original WHERE id = ?) gone WHERE tenant.id = gone.tenant",
            (number,),
        )
        connection.execute("DELETE FROM body WHERE original = ?", (number,))
        connection.execute("DELETE FROM hold WHERE original = ?", (number,))
        connection.execute("DELETE FROM original WHERE id = ?", (number,))
