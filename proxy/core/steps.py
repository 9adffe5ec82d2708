"""Steps of a history: what stays or goes together."""

from __future__ import annotations

import msgspec

from proxy.core.history import History


class Step(msgspec.Struct, frozen=True):
    """An assistant message with all its answers, or another message alone: the indices [start, stop)."""

    start: int
    stop: int


def steps(history: History) -> list[Step]:
    """Return the steps behind the leading system messages, in order."""
    out: list[Step] = []
    index = history.leading
    while index < len(history):
        block = history.block_at(index)
        step = Step(index, index + 1) if block is None else Step(block.start, block.stop)
        out.append(step)
        index = step.stop
    return out
