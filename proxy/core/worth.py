"""Whether a compaction is worth its break: what the provider reads anew against what later calls no longer carry.

A token that is read anew costs about ten times one that comes from the cache, so a break costs, counted in cached
reads, ten times what is behind the unchanged head afterwards, and each later call saves what was freed.

*How far to go.* Deeper is never dearer: the same break, fewer tokens behind it, more calls until the next one. So the
target is a low-water mark that is never raised: on recorded sessions twice the target cost up to an eighth more, three
times up to a third. What adapts is when: where head, pins and the steps that are kept make the target unreachable,
compactions would come closer and closer together, each freeing less (a long session of large user messages paid for one
every few calls). There the mark that starts one moves up instead, until the distance between the two has the length at
which the sum of carrying and breaking is least, `sqrt(2 * K * g)` for a break of K cached reads and a growth of g
tokens a call, and is at least `CALLS_APART` calls long; and a short session has first to be as many calls old as the
break takes to pay back, since nothing tells better how long it still lasts. Where the target is reached none of that is
asked: the preset's sizes mean what they say. The limit forces a compaction whatever it costs. What a summary costs is
left out of it: on the same sessions that changed nothing.

*When to give up.* After `FRUITLESS` compactions in a row that ended at or over the trigger, or freed less than a
tenth, none starts by the trigger until the request is a fifth larger than the last one left it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.core.ledger import Compacted

ANEW = 10  # cached reads for one token that is read anew
CALLS_APART = 20
FRUITLESS = 3
LEAST_PROGRESS = 10  # a tenth
_GROWTH = 5  # a fifth


class Prospect(msgspec.Struct, frozen=True):
    """A compaction that could be made; sizes are tokens."""

    before: int
    after: int
    target: int
    head: int  # what stays unchanged in front of everything that changes
    calls: int  # how many answers the conversation has
    growth: float  # tokens a call, on average


def is_worth_it(prospect: Prospect) -> bool:
    """Say whether a compaction that nothing forces should be made."""
    freed = prospect.before - prospect.after
    if freed <= 0 or freed * LEAST_PROGRESS < prospect.before:
        return False
    if prospect.after <= prospect.target:
        return True
    cost = ANEW * max(0, prospect.after - prospect.head)
    least = CALLS_APART * prospect.growth
    return freed * prospect.calls >= cost and freed >= least and freed * freed >= 2 * cost * prospect.growth


def is_fruitless(entry: Compacted, trigger_tokens: int) -> bool:
    """Say whether a compaction achieved too little."""
    freed = entry.before_tokens - entry.tokens
    return entry.tokens >= trigger_tokens or freed * LEAST_PROGRESS < entry.before_tokens


def is_given_up(past: Sequence[Compacted], before: int, trigger_tokens: int) -> bool:
    """Say whether the last compactions were in vain and the request has not grown enough since to try again."""
    last = [entry for entry in past if entry.tokens][-FRUITLESS:]
    if len(last) < FRUITLESS or not all(is_fruitless(entry, trigger_tokens) for entry in last):
        return False
    return before * _GROWTH < last[-1].tokens * (_GROWTH + 1)
