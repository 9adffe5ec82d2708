"""What the embedded store reads: each function is one query, from a connection to structs of the protocol."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

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
from proxy.store.sqlite_changes import tenant_mix
from proxy.store.sqlite_reader import Reader, Row
from proxy.store.sqlite_schema import SLOT_BITS

WIDTHS = (4, 16)
"""How many keys one look-up asks for: fixed, so that the statements stay prepared."""

_FIND_TIPS = """
SELECT t.id, t.rest, l.name, t.length, l.version, l.newest FROM tip t JOIN ledger l ON l.id = t.ledger
WHERE t.id IN ({}) AND l.tenant = ?
"""
_FIND = {width: _FIND_TIPS.format(", ".join("?" * width)) for width in WIDTHS}
_LOAD_LEDGER = """
SELECT e.data FROM ledger l JOIN entry e ON e.slot BETWEEN (l.id << 24) + ? AND ((l.id + 1) << 24) - 1
WHERE l.name = ? AND l.tenant = ? ORDER BY e.slot
"""
_LOAD_RECORD = """
SELECT r.slot, r.data FROM ledger l JOIN record r ON r.slot BETWEEN (l.id << 24) + ? AND (l.id << 24) + ?
WHERE l.name = ? AND l.tenant = ? ORDER BY r.slot
"""
_ORIGINAL = """
SELECT o.id, o.ref, (
        SELECT l.name FROM hold h JOIN ledger l ON l.id = h.ledger WHERE h.original = o.id ORDER BY h.seq LIMIT 1),
    o.kind, o.tool, o.tokens, o.lines, o.size_bytes, o.created
FROM original o JOIN tenant t ON t.id = o.tenant
"""
_HELD = """
SELECT o.id, o.ref, l.name, o.kind, o.tool, o.tokens, o.lines, o.size_bytes, o.created
FROM ledger l JOIN tenant t ON t.id = l.tenant
    CROSS JOIN hold h ON h.ledger = l.id CROSS JOIN original o ON o.id = h.original  -- from the few to the many
"""
_TOMBSTONE = "SELECT e.ref FROM erased e JOIN tenant t ON t.id = e.tenant"
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


class Body(Struct, frozen=True):
    """An original, whose it is, and its bytes as they lie in the file."""

    tenant: str
    original: Original
    data: bytes


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
        for number, rest, ledger, length, version, newest in reader.glance(_FIND[width], (*padded, owner)):
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


def load_record(connection: sqlite3.Connection, owner: int, ledger: str, span: tuple[int, int]) -> list[Recorded]:
    """Return messages as they lie in the file, from the first index of `span` up to, not including, the second."""
    start, stop = max(span[0], 0), min(span[1], 1 << SLOT_BITS)
    if start >= stop:
        return []
    mask = (1 << SLOT_BITS) - 1
    rows = connection.execute(_LOAD_RECORD, (start, stop - 1, ledger, owner))
    return [Recorded(slot & mask, data) for slot, data in rows]


def get_original(connection: sqlite3.Connection, tenant: str | None, ref: str) -> Body | Erased | None:
    """Return an original with its bytes as they lie in the file, or Erased, or None."""
    rows = _select(connection, _ORIGINAL, {"o.ref = ?": ref, "t.name = ?": tenant}, "LIMIT 1")
    for number, *about in rows:
        query = (
            "SELECT b.data, t.name FROM original o JOIN body b ON b.original = o.id JOIN tenant t ON t.id = o.tenant"
        )
        body, owner = connection.execute(f"{query} WHERE o.id = ?", (number,)).fetchone()
        return Body(owner, _original(about), body)
    erased = _select(connection, _TOMBSTONE, {"e.ref = ?": ref, "t.name = ?": tenant}, "LIMIT 1")
    return Erased(ref) if erased else None


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
    where = {"t.name = ?": tenant, "l.name = ?": ledger, "o.id < ?": page.position}
    rows = _select(
        connection, _ORIGINAL if ledger is None else _HELD, where, f"ORDER BY o.id DESC LIMIT {page.size + 1}"
    )
    return Page([_original(row[1:]) for row in rows[: page.size]], _next(rows, page.size))


def list_sessions(connection: sqlite3.Connection, tenant: str | None, page: PageRequest) -> Page[Session]:
    """Return sessions, last created first."""
    where = {"t.name = ?": tenant, "l.id < ?": page.position}
    rows = _select(connection, _SESSION, where, f"ORDER BY l.id DESC LIMIT {page.size + 1}")
    return Page([Session(*row[1:]) for row in rows[: page.size]], _next(rows, page.size))


def get_session(connection: sqlite3.Connection, tenant: str | None, session: str) -> Session | None:
    """Return a session; the administration gets the last created one of that id."""
    rows = _select(connection, _SESSION, {"l.name = ?": session, "t.name = ?": tenant}, "ORDER BY l.id DESC LIMIT 1")
    return Session(*rows[0][1:]) if rows else None


def tenants(connection: sqlite3.Connection) -> list[str]:
    """Return the names of all tenants."""
    return [name for (name,) in connection.execute("SELECT name FROM tenant")]


def owners_of(connection: sqlite3.Connection, ref: str) -> list[str]:
    """Return the tenants that store an original or have erased it."""
    query = (
        "SELECT t.name FROM original x JOIN tenant t ON t.id = x.tenant WHERE x.ref = ?1 "
        "UNION SELECT t.name FROM erased x JOIN tenant t ON t.id = x.tenant WHERE x.ref = ?1"
    )
    return [name for (name,) in connection.execute(query, (ref,))]


def list_tips(connection: sqlite3.Connection, owner: int, ledgers: Sequence[str]) -> list[Tip]:
    """Return all tips of some ledgers; reads through the tips of the file once, unless they have an index by ledger."""
    query = "SELECT id, version, newest FROM ledger WHERE name = ? AND tenant = ?"
    rows = [(name, connection.execute(query, (name, owner)).fetchone()) for name in dict.fromkeys(ledgers)]
    states = {row[0]: (name, row[1], row[2]) for name, row in rows if row is not None}
    found: list[Tip] = []
    query = "SELECT id, rest, ledger, length FROM tip WHERE ledger IN (SELECT value FROM json_each(?))"
    for number, rest, ledger, length in connection.execute(query, (str(list(states)),)):
        name, version, newest = states[ledger]
        found.append(Tip(struct.pack("<qq", number ^ tenant_mix(owner), rest), name, length, version, newest))
    return found


def list_erased(connection: sqlite3.Connection, owner: int) -> list[str]:
    """Return the refs that are refused."""
    return [ref for (ref,) in connection.execute("SELECT ref FROM erased WHERE tenant = ?", (owner,))]


def facts(connection: sqlite3.Connection, tenant: str) -> dict[str, bytes]:
    """Return what was learnt for a tenant."""
    query = "SELECT f.key, f.value FROM fact f JOIN tenant t ON t.id = f.tenant WHERE t.name = ?"
    return dict(connection.execute(query, (tenant,)).fetchall())


def stats(connection: sqlite3.Connection, dropped: int) -> StoreStats:
    """Return the totals."""
    originals, stored_bytes, sessions = connection.execute(_STATS).fetchone()
    return StoreStats(originals, stored_bytes, sessions, dropped)


def _select(connection: sqlite3.Connection, query: str, where: dict[str, Any], tail: str) -> list[Row]:
    """Return the rows under those conditions that have a value; all text is ours, all values are bound."""
    given = {condition: value for condition, value in where.items() if value is not None}
    conditions = f"WHERE {' AND '.join(given)}" if given else ""
    return connection.execute(f"{query} {conditions} {tail}", tuple(given.values())).fetchall()


def _next(rows: Sequence[Row], size: int) -> str | None:
    return encode_cursor(rows[size - 1][0]) if len(rows) > size else None


def _original(row: Sequence[Any], data: bytes = b"") -> Original:
    ref, ledger, kind, tool, tokens, lines, size_bytes, created = row
    return Original(ref, ledger or "", kind, tool, tokens, lines, size_bytes, created, data)
