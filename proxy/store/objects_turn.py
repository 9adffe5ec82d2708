"""The making of one commit: changes are applied to the index and listed, each of them wholly or not at all."""

from __future__ import annotations

import sqlite3
from typing import Any

from proxy.store.base import StoreOptions
from proxy.store.objects_index import Applier, without_record
from proxy.store.objects_log import AnyChange, Drop, Use, encode
from proxy.store.sqlite_expiry import idle_things


class Turn:
    """What a change works with: the index inside a transaction, and the list that the commit will be made of."""

    def __init__(self, db: sqlite3.Connection, applier: Applier) -> None:
        self.db = db
        self.changes: list[AnyChange] = []
        self._applier = applier

    def do(self, change: AnyChange) -> Any:  # noqa: ANN401  # each change has its own result
        """Apply a change and make it a part of the commit; returns what it comes to."""
        encode(change)  # what cannot be written down must not be applied either
        result = self._applier.apply(self.db, change)
        self.changes.append(change)
        return result


def expire_some(turn: Turn, options: StoreOptions, now: float) -> int:
    """Drop some of what is idle; returns how much."""
    ledgers, originals = idle_things(turn.db, now - options.idle_ttl - options.slack)
    if ledgers or originals:
        turn.do(Drop(tuple(ledgers), tuple(originals)))
    return len(ledgers) + len(originals)


def count_use(turn: Turn, use: Use) -> bool:
    """Count a note, without its messages if they do not fit; returns whether all of it was written."""
    turn.db.execute("SAVEPOINT note")
    try:
        whole = not turn.do(use)
        if not whole:
            turn.changes[-1] = without_record(use)
    except Exception:  # noqa: BLE001 - nothing can be done with it, and it must not hold up the others
        whole = False
        turn.db.execute("ROLLBACK TO note")
    turn.db.execute("RELEASE note")
    return whole
