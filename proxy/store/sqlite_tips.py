"""The look-up of tips: in the backlog, which holds what is written behind, and in the tables."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.store import sqlite_queries as queries
from proxy.store.backlog import Backlog
from proxy.store.base import Tip
from proxy.store.sqlite_reader import Reader

_UNKNOWN = -1  # version of a ledger that only waits to be looked up


def find_tips(reader: Reader, backlog: Backlog, tenant: str, keys: Sequence[bytes]) -> list[Tip]:
    """Return the known ones of some keys, in the order given; on the event loop."""
    behind = bool(backlog)  # asked before the file is: what has left the backlog by then is in the file
    waiting = backlog.find(tenant, keys) if behind else {}
    owner = reader.owner(tenant)
    tips = queries.find_tips(reader, owner, keys) if owner is not None else {}
    if behind:
        for key, lengths in waiting.items():
            known = tips.get(key)
            if known is None:
                ledger, length = next(iter(lengths.items()))
                tips[key] = Tip(key, ledger, length, _UNKNOWN, 0)
            elif known.ledger in lengths:
                tips[key] = Tip(key, known.ledger, lengths[known.ledger], known.version, known.newest)
        states = _states(reader, owner, tips)
        for key, tip in tips.items():
            version, newest = states[tip.ledger]
            newest = max(newest, backlog.newest(tenant, tip.ledger))
            tips[key] = Tip(key, tip.ledger, tip.length, version, newest)
    return [tips[key] for key in keys if key in tips]


def _states(reader: Reader, owner: int | None, tips: dict[bytes, Tip]) -> dict[str, tuple[int, int]]:
    """Return (version, newest) of the ledgers of some tips, as the tables have them."""
    states = {tip.ledger: (tip.version, tip.newest) for tip in tips.values() if tip.version != _UNKNOWN}
    for tip in tips.values():
        if tip.ledger not in states:
            states[tip.ledger] = (0, 0) if owner is None else queries.ledger_state(reader, owner, tip.ledger)
    return states
