"""What a block in force means for one request: where it ends, and which of the messages in front of that stay."""

from __future__ import annotations

import msgspec

from proxy.core.history import History
from proxy.core.ledger import Compacted, Recognition
from proxy.core.selection import sequence


class Fold(msgspec.Struct, frozen=True):
    """A block in force: `cut` is the index of the first message behind it, `kept` are those in front that stay."""

    entry: Compacted
    cut: int
    goal: int | None
    kept: tuple[int, ...]  # system messages inside the span
    chosen: tuple[int, ...] = ()  # messages of the span that follow on the block verbatim
    pins_from: int = 0  # index of the first message of the user that the block shows

    def leaving(self, history: History) -> list[int]:
        """Return the messages that the block stands for."""
        staying = {self.goal, *self.kept, *self.chosen}
        return [i for i in range(history.leading, self.cut) if i not in staying]


def find_fold(history: History, known: Recognition) -> Fold | None:
    """Return the block that the ledger has for this history, if the last of its span is still sent."""
    entry = known.ledger.folded(history.length + known.shift)
    if entry is None or entry.cut is None:
        return None
    cut = entry.cut - known.shift + history.leading
    if not history.leading < cut <= len(history):
        return None
    return make_fold(history, entry, cut)


def make_fold(history: History, entry: Compacted, cut: int) -> Fold:
    """Return what a block up to this message means."""
    span = range(history.leading, cut)
    goal = next((i for i in span if history.facts[i].role == "user"), None)
    kept = tuple(i for i in span if history.facts[i].role == "system")
    shift = cut - (entry.cut or 0)
    chosen = sequence(history, [position + shift for position in entry.chosen], cut)
    return Fold(entry, cut, goal, kept, chosen, max(0, entry.pins_from + shift))
