"""What the embedded store reads: each function is one query, from a connection to structs of the protocol."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from typing import Any

from proxy.store.base import (
    Erased,
    Original,
    Page,
    PageRequest,
    Recorded,
    Session,
    StoreStats,
    Tip,
    encode_cursor,
)
from proxy.store.codec import unpack
from proxy.store.sqlite_changes import tenant_mix
from proxy.store.sqlite_reader import Reader, Row
from proxy.store.sqlite_schema import SLOT_BITS

WIDTHS = (4, 16)
"""How many keys one look-up asks for: fixed, so that the statements stay prepared."""

_FIND_TIPS = {
    width: "SELECT t.id, t.rest, l.name, t.length, l.version, l.newest FROM tip t JOIN ledger l ON l.id = t.ledger "
    f"WHERE t.id IN ({', '.join('?' * width)}) AND l.tenant = ?"
    for width in WIDTHS
}
_LOAD_LEDGER = """
SELECT e.data FROM ledger l JOIN entry e ON e.slot BETWEEN (l.id << 24) + ? AND ((l.id + 1) << 24) - 1
WHERE l.name = ? AND l.tenant = ? ORDER BY e.slot
"""
_LOAD_RECORD = """
SELECT r.slot, r.data FROM ledger l JOIN record r ON r.slot BETWEEN (l.id << 24) + ? AND (l.id << 24) + ?
WHERE l.name = ? AND l.tenant = ? ORDER BY r.slot
"""
_FIRST_HOLDER = "SELECT l.name FROM hold h JOIN ledger l ON l.id = h.ledger WHERE h.original = o.id ORDER BY h.seq LIMIT 1"
_ORIGINAL = "o.ref, {holder}, o.kind, o.tool, o.tokens, o.lines, o.size_bytes, o.created"
_SESSION = """
SELECT l.id, l.name, t.name, l.key, l.created, l.used, l.model, l.format, l.preset, l.calls, l.messages,
    l.received_tokens, l.sent_tokens, l.edits, l.compactions, l.reads,
    (SELECT count(*) FROM hold WHERE ledger = l.id),
    l.entry_bytes + l.record_bytes + (
        SELECT coalesce(sum(o.size_bytes), 0) FROM hold h JOIN original o ON o.id = h.original WHERE h.ledger = l.id)
FROM ledger l JOIN tenant t ON t.id = l.tenant
"""
_STATS = """
SELECT (SELECT count(*) FROM original), (SELECT coalesce(sum(kept_bytes + record_bytes), 0) FROM tenant),
    (SELECT count(*) FROM ledger)
"""


def find_tips(reader: Reader, owner: int, keys: Sequence[bytes]) -> dict[bytes, Tip]:
    """Look up keys on the event loop."""
    found: dict[bytes, Tip] = {}
    for start in range(0, len(keys), WIDTHS[-1]):
        some = keys[start : start + WIDTHS[-1]]
        width = next(width for width in WIDTHS if len(some) <= width)
        halves = struct.unpack(f"<{2 * len(some)}q", b"".join(some))
        mix = tenant_mix(owner)
        ids = [half ^ mix for half in halves[::2]]
        known = {number: (key, rest) for number, key, rest in zip(ids, some, halves[1::2], strict=True)}
        padded = ids + ids[-1:] * (width - len(ids))
        for number, rest, ledger, length, version, newest in reader.glance(
            _FIND_TIPS[width], (*padded, owner)
        ):
            key, wanted = known[number]
            if rest == wanted:
                found[key] = Tip(key, ledger, length, version, newest)
    return found


def ledger_state(reader: Reader, owner: int, ledger: str) -> tuple[int, int]:
    """Return (entries, newest) of a ledger, (0, 0) for none; on the event loop."""
    query = "SELECT version, newest FROM ledger WHERE name = ? AND tenant = ?"
    rows = reader.glance(query, (ledger, owner))
    return (rows[0][0], rows[0][1]) if rows else (0, 0)


def load_entries(reader: Reader, owner: int, ledger: str, after: int) -> list[bytes]:
    """Return entries as they lie in the file; on the event loop."""
    return [data for (data,) in reader.glance(_LOAD_LEDGER, (after, ledger, owner))]


def load_record(
    connection: sqlite3.Connection, owner: int, ledger: str, span: tuple[int, int]
) -> list[Recorded]:
    """Return the recorded messages from the first index of `span` up to, not including, the second."""
    start, stop = max(span[0], 0), min(span[1], 1 << SLOT_BITS)
    if start >= stop:
        return []
    mask = (1 << SLOT_BITS) - 1
    rows = connection.execute(_LOAD_RECORD, (start, stop - 1, ledger, owner))
    return [Recorded(slot & mask, unpack(data)) for slot, data in rows]


def get_original(connection: sqlite3.Connection, tenant: str | None, ref: str) -> Original | Erased | None:
    """Return an original with its bytes, or its tombstone."""
    row = connection.execute(
        f"SELECT {_ORIGINAL.format(holder=f'({_FIRST_HOLDER})')}, b.data FROM original o "
        "JOIN tenant t ON t.id = o.tenant JOIN body b ON b.original = o.id "
        "WHERE o.ref = ?1 AND (?2 IS NULL OR t.name = ?2) LIMIT 1",
        (ref, tenant),
    ).fetchone()
    if row is not None:
        return _original(row[:-1], unpack(row[-1]))
    erased = connection.execute(
        "SELECT 1 FROM erased e JOIN tenant t ON t.id = e.tenant "
        "WHERE e.ref = ?1 AND (?2 IS NULL OR t.name = ?2) LIMIT 1",
        (ref, tenant),
    ).fetchone()
    return None if erased is None else Erased(ref)


def missing_originals(connection: sqlite3.Connection, owner: int, refs: Sequence[str]) -> frozenset[str]:
    """Return the refs that are neither stored nor erased."""
    query = (
        "SELECT 1 FROM original WHERE ref = ?1 AND tenant = ?2 "
        "UNION ALL SELECT 1 FROM erased WHERE ref = ?1 AND tenant = ?2"
    )
    return frozenset(ref for ref in refs if connection.execute(query, (ref, owner)).fetchone() is None)


def list_originals(
    connection: sqlite3.Connection, tenant: str | None, ledger: str | None, page: PageRequest
) -> Page[Original]:
    """Return originals, last stored first; with a ledger, those that it holds."""
    holder = f"({_FIRST_HOLDER})" if ledger is None else "l.name"
    tables = "original o JOIN tenant t ON t.id = o.tenant"
    if ledger is not None:
        tables += " JOIN hold h ON h.original = o.id JOIN ledger l ON l.id = h.ledger"
    where = {"t.name = ?": tenant, "l.name = ?": ledger, "o.id < ?": page.position}
    query = f"SELECT o.id, {_ORIGINAL.format(holder=holder)} FROM {tables}"
    rows = _page(connection, query, where, page.size)
    return Page([_original(row[1:]) for row in rows[: page.size]], _next(rows, page.size))


def list_sessions(connection: sqlite3.Connection, tenant: str | None, page: PageRequest) -> Page[Session]:
    """Return sessions, last created first."""
    where = {"t.name = ?": tenant, "l.id < ?": page.position}
    rows = _page(connection, _SESSION, where, page.size)
    return Page([Session(*row[1:]) for row in rows[: page.size]], _next(rows, page.size))


def get_session(connection: sqlite3.Connection, tenant: str | None, session: str) -> Session | None:
    """Return a session; the administration gets the last created one of that id."""
    rows = _page(connection, _SESSION, {"l.name = ?": session, "t.name = ?": tenant}, 1)
    return Session(*rows[0][1:]) if rows else None


def facts(connection: sqlite3.Connection, tenant: str) -> dict[str, bytes]:
    """Return what was learnt for a tenant."""
    query = "SELECT f.key, f.value FROM fact f JOIN tenant t ON t.id = f.tenant WHERE t.name = ?"
    return dict(connection.execute(query, (tenant,)).fetchall())


def stats(connection: sqlite3.Connection, dropped: int) -> StoreStats:
    """Return the totals."""
    originals, stored_bytes, sessions = connection.execute(_STATS).fetchone()
    return StoreStats(originals, stored_bytes, sessions, dropped)


def _page(connection: sqlite3.Connection, query: str, where: dict[str, Any], size: int) -> list[Row]:
    """Return one row more than asked for, newest first, under those conditions that have a value."""
    given = {condition: value for condition, value in where.items() if value is not None}
    newest = "o" if "FROM original o" in query else "l"
    conditions = f" WHERE {' AND '.join(given)}" if given else ""
    query = f"{query}{conditions} ORDER BY {newest}.id DESC LIMIT ?"
    return connection.execute(query, (*given.values(), size + 1)).fetchall()


def _next(rows: Sequence[Row], size: int) -> str | None:
    return encode_cursor(rows[size - 1][0]) if len(rows) > size else None


def _original(row: Row, data: bytes = b"") -> Original:
    ref, ledger, kind, tool, tokens, lines, size_bytes, created = row
    return Original(ref, ledger or "", kind, tool, tokens, lines, size_bytes, created, data)
