"""What the embedded store writes: each method is the inside of a transaction that the writer opens and ends.

Checks come before the first write, so that a refused change has changed nothing.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Sequence

from msgspec import Struct

from proxy.errors import Conflict, Full
from proxy.store.base import Clock, Mark, Original, StoreOptions
from proxy.store.codec import storable
from proxy.store.sqlite_schema import SLOT_BITS

_HALVES = struct.Struct("<qq")

# A key stays with its first ledger, unless that was dropped and the tip is only not swept yet.
_SET_TIP = """
INSERT INTO tip (id, rest, ledger, length) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET rest = excluded.rest, ledger = excluded.ledger, length = excluded.length
WHERE tip.ledger = excluded.ledger OR NOT EXISTS (SELECT 1 FROM ledger WHERE ledger.id = tip.ledger)
"""
_USE_LEDGER = """
INSERT INTO ledger (tenant, name, created, used, renewed) VALUES (?1, ?2, ?3, ?3, ?3)
ON CONFLICT (name, tenant) DO UPDATE SET used = max(used, excluded.used), renewed = max(renewed, excluded.renewed)
RETURNING id
"""
_PUT_ORIGINAL = """
INSERT INTO original (tenant, ref, kind, tool, tokens, lines, size_bytes, created, renewed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id
"""


class Stored(Struct, frozen=True):
    """A value as it will lie in the file, and how large it is for quotas."""

    data: bytes
    size_bytes: int


class Packed(Struct, frozen=True):
    """An original and its bytes as they will lie in the file."""

    original: Original
    body: bytes


class Append(Struct, frozen=True):
    """What `Store.append_ledger` was asked for."""

    tenant: str
    ledger: str
    at: int
    entries: tuple[Stored, ...]
    marks: tuple[Mark, ...]


def tip_halves(key: bytes, tenant: int) -> tuple[int, int]:
    """Return id and rest of a tip; the tenant is mixed in, so that equal keys of two tenants do not meet."""
    first, rest = _HALVES.unpack(key)
    return first ^ tenant_mix(tenant), rest


def tenant_mix(tenant: int) -> int:
    """Return what distinguishes a tenant's tips: its number, spread over 62 bits."""
    return (tenant * 0x9E3779B97F4A7C15) & 0x3FFFFFFFFFFFFFFF


def tenant_id(connection: sqlite3.Connection, name: str) -> int:
    """Return the number of a tenant, giving it one if it is new."""
    row = connection.execute("SELECT id FROM tenant WHERE name = ?", (name,)).fetchone()
    if row is None:
        row = connection.execute("INSERT INTO tenant (name) VALUES (?) RETURNING id", (name,)).fetchone()
    return int(row[0])


class Changes:
    """The changes, bound to the options of one store."""

    def __init__(self, options: StoreOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock

    def secret(self, connection: sqlite3.Connection, create: Callable[[], bytes]) -> bytes:
        """Return the secret, made now if there is none."""
        row = connection.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
        if row is not None:
            return bytes(row[0])
        made = create()
        connection.execute("INSERT INTO meta VALUES ('secret', ?)", (made,))
        return made

    def probe(self, connection: sqlite3.Connection) -> None:
        """Write something harmless."""
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('probe', ?)", (self._clock(),))

    def put_fact(self, connection: sqlite3.Connection, tenant: str, key: str, value: bytes) -> None:
        """Set a fact."""
        owner = tenant_id(connection, tenant)
        connection.execute("INSERT OR REPLACE INTO fact VALUES (?, ?, ?)", (owner, key, value))

    # -- originals

    def put_originals(self, connection: sqlite3.Connection, tenant: str, packed: Sequence[Packed]) -> frozenset[str]:
        """Store what is new, renew what is known, hold all of it; returns the refs that are erased."""
        owner = tenant_id(connection, tenant)
        erased = frozenset(p.original.ref for p in packed if _is_erased(connection, owner, p.original.ref))
        wanted = [p for p in packed if p.original.ref not in erased]
        known = {p.original.ref: _original_id(connection, owner, p.original.ref) for p in wanted}
        new: dict[str, Packed] = {}
        for p in wanted:
            if known[p.original.ref] is None:
                new.setdefault(p.original.ref, p)
        self._charge(connection, owner, sum(p.original.size_bytes for p in new.values()))
        now = self._clock()
        for ref, made in new.items():
            known[ref] = _insert_original(connection, owner, made, now)
        for ref, number in known.items():
            if ref not in new:
                connection.execute("UPDATE original SET renewed = max(renewed, ?) WHERE id = ?", (now, number))
        held = [p.original for p in wanted if p.original.ledger]
        holders = {o.ledger: 0 for o in held}
        for name in holders:
            holders[name] = use_ledger(connection, owner, name, now)
        connection.executemany(
            "INSERT OR IGNORE INTO hold (original, ledger) VALUES (?, ?)",
            [(known[o.ref], holders[o.ledger]) for o in held],
        )
        return erased

    def _charge(self, connection: sqlite3.Connection, owner: int, size_bytes: int) -> None:
        """Count originals to their tenant, or raise Full."""
        quota = self._options.stored_bytes
        if quota is not None and size_bytes:
            row = connection.execute("SELECT kept_bytes FROM tenant WHERE id = ?", (owner,)).fetchone()
            if row[0] + size_bytes > quota:
                raise Full("the tenant has used up what it may store")
        connection.execute("UPDATE tenant SET kept_bytes = kept_bytes + ? WHERE id = ?", (size_bytes, owner))

    # -- ledgers

    def append(self, connection: sqlite3.Connection, wanted: Append) -> int:
        """Append to a ledger that is as long as the caller thinks; returns its new length."""
        owner = tenant_id(connection, wanted.tenant)
        row = connection.execute(
            "SELECT version FROM ledger WHERE name = ? AND tenant = ?", (wanted.ledger, owner)
        ).fetchone()
        version = row[0] if row else 0
        if version != wanted.at:
            raise Conflict(f"the ledger holds {version} entries, not {wanted.at}", version=version)
        ledger = use_ledger(connection, owner, wanted.ledger, self._clock())
        base = (ledger << SLOT_BITS) + wanted.at
        connection.executemany(
            "INSERT INTO entry VALUES (?, ?)",
            [(base + i, entry.data) for i, entry in enumerate(wanted.entries)],
        )
        set_tips(connection, owner, ledger, wanted.marks)
        return _grow_ledger(connection, owner, ledger, wanted)


def _is_erased(connection: sqlite3.Connection, owner: int, ref: str) -> bool:
    found = connection.execute("SELECT 1 FROM erased WHERE ref = ? AND tenant = ?", (ref, owner)).fetchone()
    return found is not None


def _original_id(connection: sqlite3.Connection, owner: int, ref: str) -> int | None:
    row = connection.execute("SELECT id FROM original WHERE ref = ? AND tenant = ?", (ref, owner)).fetchone()
    return None if row is None else int(row[0])


def _insert_original(connection: sqlite3.Connection, owner: int, made: Packed, now: float) -> int:
    o = made.original
    about = (o.ref, o.kind, storable(o.tool), o.tokens, o.lines, o.size_bytes, o.created)
    number = int(connection.execute(_PUT_ORIGINAL, (owner, *about, now)).fetchone()[0])
    connection.execute("INSERT INTO body VALUES (?, ?)", (number, made.body))
    return number


def use_ledger(connection: sqlite3.Connection, owner: int, name: str, now: float) -> int:
    """Renew a ledger, making it if it is new; returns its number."""
    return int(connection.execute(_USE_LEDGER, (owner, name, now)).fetchone()[0])


def set_tips(connection: sqlite3.Connection, owner: int, ledger: int, marks: Sequence[Mark]) -> None:
    """Point keys at a ledger, except those that belong to another one."""
    rows = [(*tip_halves(mark.key, owner), ledger, mark.length) for mark in marks]
    connection.executemany(_SET_TIP, rows)


def _grow_ledger(connection: sqlite3.Connection, owner: int, ledger: int, done: Append) -> int:
    version = done.at + len(done.entries)
    size_bytes = sum(entry.size_bytes for entry in done.entries)
    newest = max((mark.length for mark in done.marks), default=0)
    connection.execute(
        "UPDATE ledger SET version = ?, newest = max(newest, ?), entry_bytes = entry_bytes + ? WHERE id = ?",
        (version, newest, size_bytes, ledger),
    )
    connection.execute("UPDATE tenant SET kept_bytes = kept_bytes + ? WHERE id = ?", (size_bytes, owner))
    return version
