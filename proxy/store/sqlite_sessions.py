"""How a session of another store gets its row in the embedded one."""

from __future__ import annotations

import sqlite3

from proxy.store.base import Session
from proxy.store.codec import storable
from proxy.store.sqlite_changes import tenant_id

_PUT = """
INSERT INTO ledger (tenant, name, created, used, renewed, newest, key, model, format, preset,
    calls, messages, received_tokens, sent_tokens, edits, compactions, reads)
VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
ON CONFLICT (name, tenant) DO UPDATE SET
    created = excluded.created, used = excluded.used, renewed = excluded.renewed,
    newest = max(newest, excluded.newest),
    key = excluded.key, model = excluded.model, format = excluded.format, preset = excluded.preset,
    calls = excluded.calls, messages = excluded.messages, received_tokens = excluded.received_tokens,
    sent_tokens = excluded.sent_tokens, edits = excluded.edits, compactions = excluded.compactions,
    reads = excluded.reads
"""


def put_session(connection: sqlite3.Connection, session: Session, newest: int) -> None:
    """Set figures, times and greatest marked length of a session, making it if it is new."""
    s = session
    owner = tenant_id(connection, s.tenant)
    texts = [storable(text) for text in (s.key, s.model, s.format, s.preset)]
    figures = (s.calls, s.messages, s.received_tokens, s.sent_tokens, s.edits, s.compactions, s.reads)
    connection.execute(_PUT, (owner, s.id, s.created, s.last_used, newest, *texts, *figures))
