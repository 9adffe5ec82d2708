"""A compaction: deciding what leaves the context in one declared break of the prefix.

A break makes the provider read everything behind it anew, so it must be rare and must pay: nothing happens below the
trigger, a compaction goes down to the target, and one that would free less than a tenth is not made. Edits go in the
order of how little the model loses: inputs of old calls, old results, then the oldest span as one block. Only where the
request would not fit does more give way: old user texts, then the steps that are otherwise kept.

Everything here is a pure function of sizes and history; whether a summary is at hand is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import msgspec

from proxy.core.history import History, Slot
from proxy.core.ledger import Reason

Place = tuple[int, int]
_LEAST_PROGRESS = 10  # a tenth
_FRAME_TOKENS = 400  # what the block says of itself, the trail and the index
_PIN_TOKENS = 12  # the line above a pin
_LEAST_RESULT_TOKENS = 1000
_LEAST_SACRIFICE_TOKENS = 400


class Bounds(msgspec.Struct, frozen=True):
    """Tokens of a whole request: where a compaction starts, what is never passed, how far one goes."""

    trigger_tokens: int
    limit_tokens: int
    target_tokens: int


class Knobs(msgspec.Struct, frozen=True):
    """What the preset's policies say about a compaction."""

    inputs_over_characters: int | None = None  # None: inputs stay
    takes_results: bool = False
    folds: bool = False
    keep_steps: int = 3
    keep_messages: int = 0
    pin_tokens: int = 1000
    narrative_tokens: int = 0  # room for a summary


class Scene(msgspec.Struct, frozen=True):
    """A request as it would be sent now: tokens by message, and what a change would do to them."""

    history: History
    sizes: Sequence[int]  # of each message with its stubs and hidden turns
    overhead_tokens: int  # outside the messages
    stubbed: frozenset[Place]
    tokens: Callable[[int, Slot], int]  # of a text
    characters: Callable[[int, Slot], int]
    saving: Callable[[int, Slot], int]  # tokens saved by a stub in the place of a text; below 1: not worth it
    folded: int  # index of the first message that is not in a block already
    block_tokens: int  # of the block in force


class Taken(msgspec.Struct, frozen=True):
    """A text that leaves."""

    message: int
    slot: Slot
    reason: Reason


class Reduction(msgspec.Struct, frozen=True):
    """What a compaction does: texts that leave, and where the block ends (index of the first message that stays)."""

    taken: tuple[Taken, ...]
    cut: int | None
    before: int  # tokens of the request as it is
    tokens: int  # of the request afterwards, about
    is_forced: bool  # the request would not fit without it
    narrates: bool  # `tokens` has room for the longest narrative


class Unit(msgspec.Struct, frozen=True):
    """What stays or goes together: a step. [start, stop) are indices of messages."""

    start: int
    stop: int


def units(history: History) -> list[Unit]:
    """Return the steps of a history: assistant messages with all their answers, and single other messages."""
    out: list[Unit] = []
    index = history.leading
    while index < len(history):
        block = history.block_at(index)
        unit = Unit(index, index + 1) if block is None else Unit(block.start, block.stop)
        out.append(unit)
        index = unit.stop
    return out


class Compaction:
    """Looks for the least that brings a request down to the target."""

    def __init__(self, scene: Scene, bounds: Bounds, knobs: Knobs) -> None:
        self._scene = scene
        self._bounds = bounds
        # The answer that is asked for may leave less than the target.
        self._target_tokens = min(bounds.target_tokens, bounds.limit_tokens)
        self._knobs = knobs
        self._units = units(scene.history)
        self._users = [i for i, f in enumerate(scene.history.facts) if f.role == "user"]
        self._sizes = list(scene.sizes)
        self._taken: dict[Place, Taken] = {}
        self._narrative_tokens = knobs.narrative_tokens
        self._sums: _Sums | None = None

    @property
    def goal(self) -> int | None:
        """Index of the first user message."""
        return self._users[0] if self._users else None

    def total(self, cut: int | None = None) -> int:
        """Return the tokens of the request, about, with a block up to `cut`."""
        scene = self._scene
        cut = scene.folded if cut is None else cut
        sums = self._sums = self._sums or self._sum_up()
        if cut <= scene.history.leading:
            return sums.behind[cut]
        block = scene.block_tokens
        if cut != scene.folded:
            block = _FRAME_TOKENS + self._narrative_tokens + sums.pins[cut]
        return sums.behind[cut] + sums.staying[cut] + block

    def find(self) -> Reduction | None:
        """Return the compaction to be made, None when there is nothing to be done or nothing to be gained."""
        before = self.total()
        if before < self._bounds.trigger_tokens:
            return None
        is_forced = before > self._bounds.limit_tokens
        first = self._kept_from(self._knobs.keep_steps, self._knobs.keep_messages)
        cut = self._shrink(first)
        after, narrates = self.total(cut), True
        if is_forced and after > self._bounds.limit_tokens:
            self._narrative_tokens, narrates = 0, False  # a short one may fit all the same
            cut = self._sacrifice(self._shrink(first))
            after = self.total(cut)
        progress = before - after
        if progress <= 0 or (not is_forced and progress * _LEAST_PROGRESS < before):
            return None
        return Reduction(tuple(self._taken.values()), cut, before, after, is_forced, narrates)

    def _shrink(self, first: int) -> int | None:
        """Take inputs, results and the oldest span in front of the steps that are kept."""
        self._take(self._old_inputs(first))
        if self.total() > self._target_tokens:
            self._take(self._old_results(first))
        if self.total() <= self._target_tokens or not self._knobs.folds:
            return None
        return self._cut(first)

    def _cut(self, first: int) -> int | None:
        """Return the earliest cut that reaches the target, else the latest that is allowed."""
        cuts = [u.start for u in self._units if self._scene.folded < u.start <= first]
        best = next((cut for cut in cuts if self.total(cut) <= self._target_tokens), cuts[-1] if cuts else None)
        return best if best is not None and self.total(best) < self.total() else None

    def _sacrifice(self, cut: int | None) -> int | None:
        """Give up what is otherwise kept, until the request fits: user texts, then steps."""
        for place in self._old_users():
            if self.total(cut) <= self._bounds.limit_tokens:
                return cut
            self._take([place])
        newest = self._units[-1].start if self._units else 0
        cuts = [u.start for u in self._units if (cut or self._scene.folded) < u.start <= newest]
        if not self._knobs.folds:
            return cut
        choices = [cut, *cuts]
        for choice in choices:
            if self.total(choice) <= self._bounds.limit_tokens:
                return choice
        return min(choices, key=self.total)

    def _take(self, texts: Sequence[Taken]) -> None:
        for taken in texts:
            saving = self._scene.saving(taken.message, taken.slot)
            if saving > 0:
                self._taken[taken.message, taken.slot.at] = taken
                self._sizes[taken.message] -= saving
                self._sums = None

    def _slots(self, kind: str, first: int) -> Iterator[tuple[int, Slot]]:
        for index in range(self._scene.folded, first):
            for slot in self._scene.history.facts[index].slots:
                place = (index, slot.at)
                if slot.kind == kind and place not in self._scene.stubbed and place not in self._taken:
                    yield index, slot

    def _old_inputs(self, first: int) -> list[Taken]:
        limit = self._knobs.inputs_over_characters
        if limit is None:
            return []
        found = self._slots("input", first)
        return [Taken(i, s, "compaction") for i, s in found if self._scene.characters(i, s) > limit]

    def _old_results(self, first: int) -> list[Taken]:
        if not self._knobs.takes_results:
            return []
        found = (x for x in self._slots("result", first) if x[1].size_bytes >= _LEAST_RESULT_TOKENS)
        return [Taken(i, s, "compaction") for i, s in found if self._scene.tokens(i, s) >= _LEAST_RESULT_TOKENS]

    def _old_users(self) -> list[Taken]:
        """Return user texts that may be sacrificed, oldest first: never the first message and never the newest."""
        spared = {self._users[0], self._users[-1]} if self._users else set()
        out: list[Taken] = []
        for index in self._users:
            for slot in self._scene.history.facts[index].slots if index not in spared else ():
                place = (index, slot.at)
                if place not in self._scene.stubbed and self._scene.tokens(index, slot) > _LEAST_SACRIFICE_TOKENS:
                    out.append(Taken(index, slot, "over_window"))
        return out

    def _kept_from(self, steps: int, messages: int) -> int:
        """Return the index from which everything stays: so many steps and so many messages at least."""
        kept = 0
        for number, unit in enumerate(reversed(self._units), 1):
            kept += unit.stop - unit.start
            if number >= max(1, steps) and kept >= messages:
                return unit.start
        return self._scene.history.leading

    def _sum_up(self) -> _Sums:
        """Add up what each cut leaves, since all of them are looked at."""
        staying, pins = [0], [0]
        for index, facts in enumerate(self._scene.history.facts):
            size, is_in_front = self._sizes[index], index < self._scene.history.leading
            is_kept = not is_in_front and (index == self.goal or facts.role == "system")
            is_pin = not is_in_front and facts.role == "user" and index != self.goal
            staying.append(staying[-1] + (size if is_kept else 0))
            pins.append(pins[-1] + (self._pin_tokens(index, size) if is_pin else 0))
        total = self._scene.overhead_tokens + sum(self._sizes)
        gone = accumulate(self._sizes[self._scene.history.leading :], initial=0)
        behind = [total] * self._scene.history.leading + [total - tokens for tokens in gone]
        return _Sums(behind, staying, pins)

    def _pin_tokens(self, index: int, size: int) -> int:
        is_whole = index == self._users[-1]  # the newest is never cut
        return _PIN_TOKENS + (size if is_whole else min(size, self._knobs.pin_tokens + _FRAME_TOKENS))


class _Sums(msgspec.Struct, frozen=True):
    """Tokens by the index of a cut: of what is outside and behind it, of what stays in front of it, and of its pins."""

    behind: Sequence[int]
    staying: Sequence[int]
    pins: Sequence[int]
