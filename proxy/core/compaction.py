"""A compaction: deciding what leaves the context in one declared break of the prefix.

A break makes the provider read everything behind it anew, so it must be rare and must pay: nothing happens below the
trigger, a compaction goes down to the target, and one that would not pay is not made (see `worth`). Edits go in the
order of how little the model loses: inputs of old calls, old results, reasoning that no later turn needs, then the
oldest span as one block, of which the best steps may stay. Only where the request would not fit does more give way:
old user texts, then the steps that are otherwise kept.

The user's words stay in the block whole up to `pin_tokens` each.

Everything here is a pure function of sizes and history; whether a summary is at hand is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec

from proxy.core.history import History, Slot
from proxy.core.ledger import Compacted, Reason
from proxy.core.selection import Told, begins_well, choose, is_choosable, names, score, sequence, with_question
from proxy.core.steps import Step, steps
from proxy.core.worth import LEAST_PROGRESS, Prospect, is_given_up, is_worth_it

Place = tuple[int, int]
_FRAME_TOKENS = 400  # what the block says of itself, the trail and the index
_PIN_TOKENS = 12  # the line above a pin
_LEAST_RESULT_TOKENS = 1000
_LEAST_SACRIFICE_TOKENS = 400
_SLACK = 50  # a fiftieth of the limit: what is sent in the end may count a little more than what was weighed


class Bounds(msgspec.Struct, frozen=True):
    """Tokens of a whole request: where a compaction starts, what is never passed, how far one goes."""

    trigger_tokens: int
    limit_tokens: int
    target_tokens: int
    is_wished: bool = False  # somebody asked for a compaction, so it need not pay


class Knobs(msgspec.Struct, frozen=True):
    """What the preset's policies say about a compaction."""

    inputs_over_characters: int | None = None  # None: inputs stay
    takes_results: bool = False
    folds: bool = False
    keep_steps: int = 3
    keep_messages: int = 0
    pin_tokens: int = 1000
    narrative_tokens: int = 0  # room for a summary
    clears_reasoning: bool = False
    selects: bool = False  # the best steps of the span stay
    ratio: float = 1.0  # of the span that may stay, as steps or as a summary


class Scene(msgspec.Struct, frozen=True):
    """A request as it would be sent now: tokens by message, and what a change would do to them."""

    history: History
    sizes: Sequence[int]  # of each message with its stubs and hidden turns
    overhead_tokens: int  # outside the messages
    stubbed: frozenset[Place]
    tokens: Callable[[int, Slot], int]  # of a text
    characters: Callable[[int, Slot], int]
    saving: Callable[[Taken], int]  # tokens saved by a stub in the place of a text; below 1: not worth it
    folded: int  # index of the first message that is not in a block already
    block_tokens: int  # of the block in force
    head_tokens: int  # of what no compaction changes, in front of everything else
    calls: int  # answers of the model so far
    growth_tokens: float  # of the request with every call, on average
    told: Callable[[Step], Told]
    user_texts: Callable[[], Sequence[str]]
    chosen: tuple[int, ...] = ()  # messages in front of `folded` that stay all the same
    reasoning: Mapping[int, int] = {}  # tokens of it by message, where it is still sent
    past: Sequence[Compacted] = ()  # compactions of this history
    pins_from: int = 0  # index of the first message of the user that the block in force shows


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
    pin_tokens: int
    narrative_tokens: int  # most that a narrative may have
    chosen: tuple[int, ...] = ()  # messages in front of the cut that stay
    bare: int = 0  # index of the first message whose reasoning stays; 0: nothing is cleared
    pins_from: int = 0  # index of the first message of the user that the block shows


class Compaction:
    """Looks for the least that brings a request down to the target."""

    def __init__(self, scene: Scene, bounds: Bounds, knobs: Knobs) -> None:
        self._scene = scene
        self._bounds = bounds
        # The answer that is asked for may leave less than the target.
        self._target_tokens = min(bounds.target_tokens, bounds.limit_tokens)
        self._aim_tokens = bounds.limit_tokens - bounds.limit_tokens // _SLACK
        self._knobs = knobs
        self._steps = steps(scene.history)
        self._users = [i for i, f in enumerate(scene.history.facts) if f.role == "user"]
        self._sizes = list(scene.sizes)
        self._taken: dict[Place, Taken] = {}
        self._narrative_tokens = knobs.narrative_tokens
        self._sums: _Sums | None = None
        self._pins: dict[int, int] = {}  # what a long pin loses, by message
        self._spared = 0  # tokens that the block in force loses
        self._bare = 0
        self._pins_from = scene.pins_from
        self._questions: dict[int, tuple[int, ...]] = {}

    @property
    def goal(self) -> int | None:
        """Index of the first user message."""
        return self._users[0] if self._users else None

    def total(self, cut: int | None = None, chosen: Sequence[int] | None = None) -> int:
        """Return the tokens of the request, about, with a block up to `cut` and these messages behind it."""
        scene = self._scene
        cut = scene.folded if cut is None else cut
        sums = self._sums = self._sums or self._sum_up()
        if cut <= scene.history.leading:
            return sums.behind[cut]
        if cut == scene.folded:
            chosen, block = scene.chosen, scene.block_tokens - self._spared
        else:
            chosen = self._question(cut) if chosen is None else chosen
            block = _FRAME_TOKENS + self._narrative_tokens + sums.pins[cut]
            block -= sum(sums.pins[i + 1] - sums.pins[i] for i in chosen)
        return sums.behind[cut] + sums.staying[cut] + block + sum(self._sizes[i] for i in chosen)

    def find(self) -> Reduction | None:
        """Return the compaction to be made, None when there is nothing to be done or nothing to be gained."""
        scene, before = self._scene, self.total()
        is_forced = before > self._bounds.limit_tokens
        if before < self._bounds.trigger_tokens:
            return None
        is_free = is_forced or self._bounds.is_wished
        if not is_free and is_given_up(scene.past, before, self._bounds.trigger_tokens):
            return None
        first = self._kept_from()
        cut, narrates = self._shrink(first), True
        chosen = self._select(cut)
        after = self.total(cut, chosen)
        if is_forced and after > self._aim_tokens:
            self._narrative_tokens, narrates = 0, False  # a short one may fit all the same
            cut = self._sacrifice(self._shrink(first))
            chosen, after = self._question(cut), self.total(cut)
        if is_forced and after > self._aim_tokens:
            cut, chosen, after = self._without_pins(cut, chosen, after)
        is_made = bool(self._taken) or cut is not None
        if after >= before or (not is_forced and not (is_made and self._pays(before, after))):
            return None
        return Reduction(
            taken=tuple(self._taken.values()),
            cut=cut,
            tokens=after,
            is_forced=is_forced,
            narrates=narrates,
            before=before,
            pin_tokens=self._knobs.pin_tokens,
            narrative_tokens=min(self._knobs.narrative_tokens, self._share(cut)),
            chosen=chosen,
            bare=self._bare,
            pins_from=self._pins_from,
        )

    def _latest(self) -> int | None:
        """Return the last cut there may be, whatever it costs in pins; None where no block is wanted or possible."""
        cuts = self._cuts(self._scene.folded, self._steps[-1].start) if self._steps and self._knobs.folds else []
        return next((cut for cut in reversed(cuts) if begins_well(self._scene.history, cut)), None)

    def _without_pins(
        self, cut: int | None, chosen: tuple[int, ...], after: int
    ) -> tuple[int | None, tuple[int, ...], int]:
        """Leave out the oldest words of the user, short as they are, in the block up to this or the last cut.

        Far below the limit, since every further message would break the prefix again otherwise.
        """
        last = self._latest() if cut is None else cut
        if last is None:
            return cut, chosen, after
        question, tokens, shown = self._question(last), self.total(last), self._pins_from
        sums = self._sums or self._sum_up()
        for index in self._users:
            if index < last and index not in question and tokens > self._bounds.limit_tokens // 2:
                tokens -= sums.pins[index + 1] - sums.pins[index]
                shown = index + 1
        if tokens >= after:
            return cut, chosen, after
        self._pins_from = shown
        return last, question, tokens

    def _pays(self, before: int, after: int) -> bool:
        scene = self._scene
        if self._bounds.is_wished:
            return (before - after) * LEAST_PROGRESS >= before
        prospect = Prospect(
            before=before,
            after=after,
            target=self._target_tokens,
            head=scene.head_tokens,
            calls=scene.calls,
            growth=scene.growth_tokens,
        )
        return is_worth_it(prospect)

    def _shrink(self, first: int) -> int | None:
        """Take inputs, results, reasoning and the oldest span in front of the steps that are kept."""
        self._take(self._old_inputs(first))
        if self.total() > self._target_tokens:
            self._take(self._old_results(first))
        self._clear(first)
        if self.total() <= self._target_tokens or not self._knobs.folds:
            return None
        return self._cut(first)

    def _clear(self, first: int) -> None:
        """Drop the reasoning in front of the kept steps and of the newest question, once.

        A model that thinks between its calls needs that of the turn it is in, and signatures bind it.
        """
        newest = self._users[-1] if self._users else 0
        bare = min(first, newest) if self._knobs.clears_reasoning else 0
        cleared = {i: tokens for i, tokens in self._scene.reasoning.items() if i < bare} if not self._bare else {}
        if cleared:
            self._bare, self._sums = bare, None
            for index, tokens in cleared.items():
                self._sizes[index] -= tokens

    def _cut(self, first: int) -> int | None:
        """Return the earliest cut that reaches the target, else the latest that is allowed."""
        cuts = [cut for cut in self._cuts(self._scene.folded, first) if begins_well(self._scene.history, cut)]
        if not cuts:
            return None
        best = self._best(cuts)
        return best if self.total(best) < self.total() else None

    def _cuts(self, behind: int, last: int) -> list[int]:
        return [step.start for step in self._steps if behind < step.start <= last]

    def _question(self, cut: int | None) -> tuple[int, ...]:
        """Return the messages in front of a cut that stay whatever the strategy: what the assistant is at work on."""
        if cut is None or cut <= self._scene.folded:
            return ()
        if cut not in self._questions:
            self._questions[cut] = with_question(self._scene.history, cut)
        return self._questions[cut]

    def _best(self, cuts: Sequence[int]) -> int:
        if self._knobs.selects:  # what is worth more than the newest may stay, whatever its place
            return cuts[-1]
        return next((cut for cut in cuts if self.total(cut) <= self._target_tokens), cuts[-1])

    def _span(self, cut: int) -> list[int]:
        """Return the messages that a block up to `cut` newly stands for."""
        facts = self._scene.history.facts
        fresh = (i for i in range(self._scene.folded, cut) if facts[i].role != "system" and i != self.goal)
        return [*self._scene.chosen, *fresh]

    def _share(self, cut: int | None) -> int:
        """Return how many tokens of what a block stands for may stay."""
        scene = self._scene
        if cut is None:
            return 0
        return int(self._knobs.ratio * (scene.block_tokens + sum(self._sizes[i] for i in self._span(cut))))

    def _select(self, cut: int | None) -> tuple[int, ...]:
        """Return the messages of the span that stay: the best that fit the target and their share of the span."""
        if cut is None or not self._knobs.selects:
            return self._question(cut)
        scene, span = self._scene, set(self._span(cut))
        candidates = [s for s in self._steps if s.start in span and s.stop <= cut and is_choosable(scene.history, s)]
        room = min(self._share(cut), self._target_tokens - self.total(cut))
        if room <= 0:
            return self._question(cut)
        named = names(scene.user_texts())
        chosen = choose(candidates, lambda step, age: score(scene.told(step), named, age), self._sizes, room)
        return sequence(scene.history, (*chosen, *self._question(cut)), cut)

    def _sacrifice(self, cut: int | None) -> int | None:
        """Give up what is otherwise kept, until the request fits: user texts, then steps."""
        for place in self._old_users():
            if self.total(cut) <= self._aim_tokens:
                return cut
            self._take([place])
        newest = self._steps[-1].start if self._steps else 0
        if not self._knobs.folds:
            return cut
        cuts = self._cuts(cut or self._scene.folded, newest)
        choices = [cut, *(cut for cut in cuts if begins_well(self._scene.history, cut))]
        for choice in choices:
            if self.total(choice) <= self._aim_tokens:
                return choice
        return min([None, *choices], key=self.total)

    def _take(self, texts: Sequence[Taken]) -> None:
        for taken in texts:
            saving = self._scene.saving(taken)
            if saving > 0:
                self._taken[taken.message, taken.slot.at] = taken
                self._sizes[taken.message] -= saving
                self._sums = None
                if taken.message < self._scene.folded and taken.message not in (self.goal, *self._scene.chosen):
                    self._spared += saving

    def _slots(self, kind: str, first: int) -> Iterator[tuple[int, Slot]]:
        for index in (*self._scene.chosen, *range(self._scene.folded, first)):
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
        """Return user texts that may be sacrificed, oldest first: never the first message and never the newest.

        Those that are stubs already may become shorter ones.
        """
        spared = {self._users[0], self._users[-1]} if self._users else set()
        old = [(i, slot) for i in self._users if i not in spared for slot in self._scene.history.facts[i].slots]
        long = ((i, slot) for i, slot in old if self._scene.tokens(i, slot) > _LEAST_SACRIFICE_TOKENS)
        return [Taken(i, slot, "over_window") for i, slot in long]

    def _kept_from(self) -> int:
        """Return the index from which everything stays: so many steps and so many messages at least, never nothing."""
        kept = 0
        for number, step in enumerate(reversed(self._steps), 1):
            kept += step.stop - step.start
            if number >= self._knobs.keep_steps and kept >= self._knobs.keep_messages:
                return step.start
        return self._scene.history.leading

    def _sum_up(self) -> _Sums:
        """Add up what each cut leaves, since all of them are looked at."""
        staying, pins = [0], [0]
        for index, facts in enumerate(self._scene.history.facts):
            size, is_in_front = self._sizes[index], index < self._scene.history.leading
            is_kept = not is_in_front and (index == self.goal or facts.role == "system")
            is_shown = index >= self._scene.pins_from
            is_pin = not is_in_front and is_shown and facts.role == "user" and index != self.goal
            staying.append(staying[-1] + (size if is_kept else 0))
            pins.append(pins[-1] + (self._pin_tokens(index, size) if is_pin else 0))
        total = self._scene.overhead_tokens + sum(self._sizes)
        gone = accumulate(self._sizes[self._scene.history.leading :], initial=0)
        behind = [total] * self._scene.history.leading + [total - tokens for tokens in gone]
        return _Sums(behind, staying, pins)

    def _pin_tokens(self, index: int, size: int) -> int:
        """Return the tokens of a user message in the block; the newest is never cut."""
        if index == self._users[-1]:
            return _PIN_TOKENS + size
        if index not in self._pins:
            scene, limit = self._scene, self._knobs.pin_tokens
            slots = [slot for slot in scene.history.facts[index].slots if slot.size_bytes > limit]
            whole = [slot for slot in slots if (index, slot.at) not in scene.stubbed]
            long = [slot for slot in whole if scene.tokens(index, slot) > limit]
            self._pins[index] = sum(max(0, scene.saving(Taken(index, slot, "compaction"))) for slot in long)
        sacrificed = any(place[0] == index for place in self._taken)
        return _PIN_TOKENS + size - (0 if sacrificed else self._pins[index])


class _Sums(msgspec.Struct, frozen=True):
    """Tokens by the index of a cut: of what is outside and behind it, of what stays in front of it, and of its pins."""

    behind: Sequence[int]
    staying: Sequence[int]
    pins: Sequence[int]
