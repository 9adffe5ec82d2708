"""Which messages are sent without their reasoning, as a compaction of this history decided."""

from __future__ import annotations

from collections.abc import Collection

from proxy.core.history import History
from proxy.core.ledger import Recognition


def find_bare(history: History, known: Recognition, hidden: Collection[int]) -> frozenset[int]:
    """Return the messages whose reasoning is gone.

    A message with a hidden turn in front of it keeps its own: the rounds that are put back hold what it says.
    """
    until = known.ledger.bare(history.length + known.shift) - known.shift + history.leading
    found = (i for i in range(history.leading, min(until, len(history))) if history.facts[i].reasoning_bytes)
    return frozenset(found).difference(hidden)
