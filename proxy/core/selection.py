"""Which steps of a span stay verbatim: the best by a score that code gives, in their order, pairs whole.

No model chooses, so that nothing is made up and equal histories keep equal steps. A step is worth more

- the newer it is, by up to `_RECENCY` points;
- if it changed a file, if a tool reported a failure, if its words give a reason or a decision, by `_POINTS` each;
- for each thing in it that the user has named (a path, an identifier, a number), by a point, up to `_MOST_NAMED`.

Steps are taken from the best on while they fit; one that is too large is passed over and does not end the search.

What is kept stands between a user message (with the block in it) and the message behind the span. So only assistant
messages with all their answers are chosen; the user's words are in the block, but for the question that the assistant
is at work on, which stays with the step in front of it. Where two messages of one side would come to stand side by side
that did not before, what was between them stays as well, and where there is nothing the later one is left out: some
models refuse roles that do not alternate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from proxy.core.deeds import deeds
from proxy.core.history import History
from proxy.core.steps import Step, steps
from proxy.core.trail import Act, failed

_RECENCY = 3.0
_POINTS = 2.0
_MOST_NAMED = 3
_READ_CHARACTERS = 20_000  # of a text, from its beginning
_NAMING_CHARACTERS = 4_000  # of a user's message: what comes behind that was pasted
_NAMED = re.compile(
    r"(?:[\w.-]*/)+[\w-][\w.-]*|\b[\w-]+\.[A-Za-z]\w{0,4}\b|\b\w+_\w+\b|\b[a-z]+[A-Z]\w*|\b[A-Z]{2,}-?\d+\b|\b\d{4,}\b"
)
_DECISION = re.compile(
    r"\b(?:because|decid\w+|instead of|root cause|turns out|conclu\w+|must not|the fix|will not work|doesn't work)\b",
    re.IGNORECASE,
)


class Told(msgspec.Struct, frozen=True):
    """What a step says and does."""

    text: str  # of the assistant
    acts: Sequence[Act]


def names(texts: Iterable[str]) -> frozenset[str]:
    """Return the things that users have named in these messages: paths, identifiers, numbers."""
    return frozenset(found for text in texts for found in _NAMED.findall(text[:_NAMING_CHARACTERS]))


def score(told: Told, named: Collection[str], age: float) -> float:
    """Return the points of a step; `age` is 0 for the newest of the span and 1 for the oldest."""
    read = [told.text, *(text for act in told.acts for text in (act.arguments, act.answer))]
    points = _RECENCY * (1 - age)
    points += _POINTS * any(deed.changed for act in told.acts for deed in deeds(act.tool, act.arguments))
    points += _POINTS * any(failed(act.answer) for act in told.acts)
    points += _POINTS * bool(_DECISION.search(told.text[:_READ_CHARACTERS]))
    found = {name for text in read for name in _NAMED.findall(text[:_READ_CHARACTERS])}
    return points + min(_MOST_NAMED, len(found.intersection(named)))


def choose(
    candidates: Sequence[Step], rank: Callable[[Step, float], float], sizes: Sequence[int], room: int
) -> tuple[int, ...]:
    """Return the messages of the best candidates that fit into the room together, in order.

    `rank` gives the points of a step and its age, `sizes` are tokens by message. Candidates are in order.
    """
    last = max(1, len(candidates) - 1)
    points = {step: rank(step, 1 - number / last) for number, step in enumerate(candidates)}
    chosen: list[int] = []
    for step in sorted(candidates, key=lambda step: (-points[step], -step.start)):
        size = sum(sizes[step.start : step.stop])
        if size <= room:
            room -= size
            chosen += range(step.start, step.stop)
    return tuple(sorted(chosen))


def is_choosable(history: History, step: Step) -> bool:
    """Say whether a step may stay alone: an assistant message of which every call is answered."""
    facts = history.facts[step.start]
    return facts.role == "assistant" and len(facts.calls) <= step.stop - step.start - 1


def sequence(history: History, indices: Collection[int], cut: int) -> tuple[int, ...]:
    """Return those of the messages that may stand between the block and the message at `cut`, with what joins them."""
    if not indices:
        return ()
    wanted = set(indices)
    goal = next((i for i, facts in enumerate(history.facts) if facts.role == "user"), -1)
    groups: list[tuple[Step, Sequence[int]]] = []
    for step in steps(history):
        is_wanted = goal < step.start and step.stop <= cut and wanted.issuperset(range(step.start, step.stop))
        if is_wanted and _is_user(history, step):
            if groups or _is_user(history, Step(step.start - 1, step.start)):
                groups.append((step, range(step.start, step.stop)))
        elif is_wanted and is_choosable(history, step):
            joint = _joint(history, groups[-1][0], step.start, goal) if groups else ()
            if joint is not None:
                groups.append((step, (*joint, *range(step.start, step.stop))))
    while groups and cut < len(history) and history.facts[cut].role == "assistant":
        joint = _joint(history, groups[-1][0], cut, goal)
        if joint is not None:
            groups.append((groups[-1][0], joint))
            break
        groups.pop()
    return tuple(index for _, group in groups for index in group)


def with_question(history: History, cut: int) -> tuple[int, ...]:
    """Return the newest message of the user, if it is in front of a cut, with the step before it."""
    users = [i for i, facts in enumerate(history.facts) if facts.role == "user"]
    if len(users) < 2 or users[-1] >= cut:
        return ()
    before = next((step for step in steps(history) if step.stop == users[-1]), None)
    lead = () if before is None or not is_choosable(history, before) else range(before.start, before.stop)
    return sequence(history, (*lead, users[-1]), cut)


def begins_well(history: History, cut: int) -> bool:
    """Say whether what is behind a cut may follow on a message of the user: no second one that did not before."""
    facts = history.facts
    return cut >= len(facts) or facts[cut].role != "user" or facts[cut - 1].role == "user"


def _is_user(history: History, step: Step) -> bool:
    return history.facts[step.start].role == "user"


def _joint(history: History, before: Step, start: int, goal: int) -> Sequence[int] | None:
    """Return the user messages that have to stay between a step and the next one; None where nothing joins them."""
    if before.stop - before.start > 1 or before.stop == start or _is_user(history, before):
        return ()
    first = start
    while first > max(before.stop, goal + 1) and history.facts[first - 1].role == "user":
        first -= 1
    return range(first, start) or None
