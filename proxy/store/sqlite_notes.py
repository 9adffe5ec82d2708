"""How the embedded store writes what was written behind: many notes in one transaction, in few statements each.

The room of a record is counted before its messages are in; what they replace is found and subtracted afterwards, which
costs next to nothing while a record only grows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from proxy.store.backlog import Batch, Note, merged
from proxy.store.base import Recorded, StoreOptions
from proxy.store.codec import storable
from proxy.store.sqlite_changes import Stored, set_tips, tenant_id
from proxy.store.sqlite_schema import SLOT_BITS, concerns_all

_NOTE = """
INSERT INTO ledger (tenant, name, created, used, renewed, newest, record_bytes, key, model, format, preset,
    messages, edits, compactions, received_tokens, sent_tokens, reads, calls)
VALUES (?1, ?2, ?3, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
ON CONFLICT (name, tenant) DO UPDATE SET
    used = max(used, excluded.used), newest = max(newest, excluded.newest),
    record_bytes = record_bytes + excluded.record_bytes,
    key = excluded.key, model = excluded.model, format = excluded.format, preset = excluded.preset,
    messages = excluded.messages, edits = excluded.edits, compactions = excluded.compactions,
    received_tokens = received_tokens + excluded.received_tokens,
    sent_tokens = sent_tokens + excluded.sent_tokens,
    reads = reads + excluded.reads, calls = calls + excluded.calls
RETURNING id, renewed
"""
_RENEW_ORIGINAL = """
UPDATE original SET renewed = max(renewed, ?)
WHERE ref = ? AND tenant = (SELECT id FROM tenant WHERE name = ?)
"""


Seal = Callable[[Note, Recorded], bytes]
"""Turns a recorded message into what lies in the file."""


class Account(Struct):
    """A tenant within one batch: its number, what its record may still take (None: all), what it has taken."""

    owner: int
    room: int | None
    taken: int = 0

    def grant(self, size_bytes: int) -> bool:
        """Whether so much more still fits."""
        return self.room is None or self.taken + size_bytes <= self.room


def write_batch(connection: sqlite3.Connection, batch: Batch, options: StoreOptions, seal: Seal) -> int:
    """Write notes and renewals; returns how many could not be written for what they are, or for want of room."""
    dropped = 0
    accounts: dict[str, Account] = {}
    for note in merged(batch.notes):
        try:
            account = accounts.get(note.tenant) or open_account(connection, note.tenant, options)
            accounts[note.tenant] = account
            record = {m.index: Stored(seal(note, m), len(m.data)) for m in note.record}
            dropped += write_note(connection, account, note, record, options.slack)
        except Exception as error:
            if concerns_all(error):
                raise
            dropped += 1  # nothing can be done with it, and it must not hold up the others
    close_accounts(connection, accounts.values())
    renew_originals(connection, batch.touches)
    return dropped


def renew_originals(connection: sqlite3.Connection, touches: Mapping[tuple[str, str], float]) -> None:
    """Write when originals, each named by (tenant, ref), were used."""
    connection.executemany(_RENEW_ORIGINAL, [(at, ref, tenant) for (tenant, ref), at in touches.items()])


def close_accounts(connection: sqlite3.Connection, accounts: Iterable[Account]) -> None:
    """Write down what was taken."""
    connection.executemany(
        "UPDATE tenant SET record_bytes = record_bytes + ? WHERE id = ?",
        [(account.taken, account.owner) for account in accounts if account.taken],
    )


def open_account(connection: sqlite3.Connection, tenant: str, options: StoreOptions) -> Account:
    """Return the account of a tenant as it stands."""
    owner = tenant_id(connection, tenant)
    if options.stored_bytes is None:
        return Account(owner, None)
    query = "SELECT kept_bytes + record_bytes FROM tenant WHERE id = ?"
    (used,) = connection.execute(query, (owner,)).fetchone()
    return Account(owner, options.stored_bytes - used)


def write_note(
    connection: sqlite3.Connection, account: Account, note: Note, record: Mapping[int, Stored], slack: float
) -> int:
    """Write one note with its messages, by index; returns 1 if these had to be left out."""
    use, at = note.use, note.at
    record = {index: message for index, message in record.items() if 0 <= index < 1 << SLOT_BITS}
    size_bytes = sum(message.size_bytes for message in record.values())
    fits = account.grant(size_bytes)
    newest = max((mark.length for mark in note.marks), default=0)
    texts = [storable(text) for text in (use.key, use.model, use.format, use.preset)]
    latest = (use.messages, use.edits, use.compactions)
    counts = (use.received_tokens, use.sent_tokens, use.reads, use.calls)
    about = (newest, size_bytes if fits else 0, *texts, *latest, *counts)
    ledger, renewed = connection.execute(_NOTE, (account.owner, use.ledger, at, *about)).fetchone()
    if at - renewed > slack:
        connection.execute("UPDATE ledger SET renewed = ? WHERE id = ?", (at, ledger))
    set_tips(connection, account.owner, ledger, note.marks)
    if record and fits:
        account.taken += size_bytes - _write_record(connection, ledger, record)
    return 0 if fits else 1


def _write_record(connection: sqlite3.Connection, ledger: int, record: Mapping[int, Stored]) -> int:
    """Write messages; returns how many bytes of older ones they replaced."""
    base = ledger << SLOT_BITS
    replaced: int = sum(
        size_bytes
        for slot, size_bytes in connection.execute(
            "SELECT slot, size_bytes FROM record WHERE slot BETWEEN ? AND ?",
            (base + min(record), base + max(record)),
        )
        if slot - base in record
    )
    if replaced:
        query = "UPDATE ledger SET record_bytes = record_bytes - ? WHERE id = ?"
        connection.execute(query, (replaced, ledger))
    connection.executemany(
        "INSERT OR REPLACE INTO record VALUES (?, ?, ?)",
        [(base + index, message.size_bytes, message.data) for index, message in record.items()],
    )
    return replaced
