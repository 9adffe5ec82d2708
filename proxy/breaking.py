"""Compactions, with what they need from outside: exact sizes, and narratives that were written or are waited for.

Below the trigger nothing is counted at all while the body has fewer bytes than the trigger has tokens. Shortly before
the trigger a narrative is asked for, in the background, while requests go on raw; the first request that is over the
trigger and finds it is compacted. Only at the limit it is waited for, and then the block is made without it.
"""

from __future__ import annotations

import msgspec

from policies.clear_reasoning import ClearReasoning
from policies.truncate_inputs import TruncateInputs
from proxy.core.breaks import Breaker, Measures
from proxy.core.compaction import Bounds, Knobs, Reduction
from proxy.core.declaration import TOOL_TOKENS
from proxy.core.history import History
from proxy.core.ledger import Declined, Narrated
from proxy.core.narrative import NARRATIVE_TOKENS
from proxy.core.plan import Plan
from proxy.core.selection import begins_well
from proxy.core.steps import steps
from proxy.core.wire.chat import ChatAdapter
from proxy.counting import Counter
from proxy.narration import Narrator
from proxy.occasion import Occasion, summarise_policy
from proxy.presets import Preset
from proxy.sizes import Sizes
from proxy.summarise import SummaryNeed

_MOST_OF_TARGET = 0.5
_EARLIEST = 0.8  # of the trigger, for a narrative to be asked for
_STEPS_AHEAD = 2
_STEPS_MEASURED = 6
_BESIDE_STEPS = 0.25  # of the target for a summary that shares it with steps


class Decision(msgspec.Struct, frozen=True):
    """A plan, the narrative to be written when the answer has ended, and the tokens of what is sent, if counted."""

    plan: Plan
    need: SummaryNeed | None = None
    tokens: int | None = None


class Breaks:
    """Decides compactions and gets their narratives."""

    def __init__(self, breaker: Breaker, adapter: ChatAdapter, counter: Counter, narrator: Narrator) -> None:
        self._breaker = breaker
        self._counter = counter
        self._sizes = Sizes(adapter, counter)
        self._narrator = narrator

    async def plan(self, plan: Plan, occasion: Occasion) -> Decision:
        """Return the plan with a compaction in it where one is due."""
        trigger, history = occasion.means.bounds.trigger_tokens, occasion.history
        is_wished = occasion.known.recognition.ledger.is_wished
        is_small = len(occasion.envelope.body) < trigger and not plan.grafts  # a token has a byte at least
        if is_small and not is_wished:
            return Decision(plan)
        measures = await self._measure(plan, occasion)
        ready = msgspec.structs.replace(plan, reader=plan.reader or occasion.reader)
        early = _at_once(measures) if is_wished else _ahead(measures, history)
        reduction = self._breaker.reduce(history, ready, early)
        if reduction is None:
            return self._unreduced(plan, occasion, measures)
        is_due = is_wished or reduction.before >= trigger
        narrative = await self._narrative(occasion, reduction, is_due=is_due)
        if isinstance(narrative, SummaryNeed):
            return Decision(plan, narrative, reduction.before)
        if not is_due:
            return Decision(plan, tokens=reduction.before)
        return self._broken(ready, occasion, measures, reduction, narrative)

    def _unreduced(self, plan: Plan, occasion: Occasion, measures: Measures) -> Decision:
        """Return the plan of a request in which there is nothing to be done, or nothing to be gained."""
        history = occasion.history
        tokens = self._breaker.total(history, plan, measures)
        if occasion.known.recognition.ledger.is_wished:
            declined = Declined(history.length + plan.recognition.shift)
            plan = msgspec.structs.replace(plan, entries=(*plan.entries, declined))
        return Decision(plan, tokens=tokens)

    async def _narrative(
        self, occasion: Occasion, reduction: Reduction, *, is_due: bool
    ) -> Narrated | SummaryNeed | None:
        """Return the narrative for a compaction, or the one to be written first; None where it goes without.

        A compaction that somebody asked for is made at once.
        """
        writer = occasion.writer
        if reduction.cut is None or writer is None:
            return None
        narrative = self._narrator.written(occasion, reduction.cut)
        is_vain = is_due and self._narrator.is_lost(occasion)
        if narrative is not None or is_vain or occasion.known.recognition.ledger.is_wished:
            return narrative
        if not reduction.is_forced:
            return self._narrator.need(occasion, writer, len(occasion.history))
        return await self._narrator.wait(occasion, writer, reduction.cut)

    def _broken(
        self, plan: Plan, occasion: Occasion, measures: Measures, reduction: Reduction, narrative: Narrated | None
    ) -> Decision:
        """Return the plan with the compaction in it; without the narrative where that would be too much."""
        history, limit = occasion.history, measures.bounds.limit_tokens
        if narrative is not None:
            reduction = _told(reduction, occasion, narrative)
        broken = self._breaker.carry_out(history, plan, reduction, occasion.known.root, narrative)
        after = self._breaker.total(history, broken, measures)
        if narrative is not None and after > limit:
            return self._broken(plan, occasion, measures, reduction, None)
        return Decision(broken, tokens=after)

    async def _measure(self, plan: Plan, occasion: Occasion) -> Measures:
        envelope = occasion.envelope
        begin, end = envelope.spans["messages"]
        outside = (envelope.body[:begin] + envelope.body[end:]).decode("utf-8", "replace")
        (overhead,) = await self._counter.count_large([outside])
        return Measures(
            messages=await self._sizes.measure(occasion.history),
            hidden={i: await self._sizes.measure_raw((*t.rounds, *t.answers)) for i, t in plan.grafts.items()},
            overhead_tokens=overhead + TOOL_TOKENS,
            bounds=occasion.means.bounds,
            knobs=_knobs(occasion.preset, occasion.means.bounds),
        )


def _at_once(measures: Measures) -> Measures:
    """Return the measures for a compaction that was asked for."""
    bounds = msgspec.structs.replace(measures.bounds, trigger_tokens=0, is_wished=True)
    return msgspec.structs.replace(measures, bounds=bounds)


def _ahead(measures: Measures, history: History) -> Measures:
    """Return the measures with the trigger as much earlier as a narrative takes to be written: two steps or so.

    Asked for much earlier a narrative would be paid for in every session that ends before the trigger.
    """
    bounds = measures.bounds
    newest = steps(history)[-_STEPS_MEASURED:]
    growth = sum(sum(measures.messages[step.start : step.stop]) for step in newest) // max(1, len(newest))
    trigger = max(int(bounds.trigger_tokens * _EARLIEST), bounds.trigger_tokens - _STEPS_AHEAD * growth)
    return msgspec.structs.replace(measures, bounds=msgspec.structs.replace(bounds, trigger_tokens=trigger))


def _told(reduction: Reduction, occasion: Occasion, narrative: Narrated) -> Reduction:
    """Return the reduction with a block that ends where its narrative does, if the request fits all the same."""
    told = occasion.index(narrative.cut)
    if reduction.is_forced or reduction.cut is None or told >= reduction.cut:
        return reduction
    starts = [step.start for step in steps(occasion.history) if step.start <= told]
    cut = max((start for start in starts if begins_well(occasion.history, start)), default=reduction.cut)
    chosen = tuple(index for index in reduction.chosen if index < cut)
    return msgspec.structs.replace(reduction, cut=cut, chosen=chosen)


def _knobs(preset: Preset, bounds: Bounds) -> Knobs:
    inputs = next((p for p in preset.policies if isinstance(p, TruncateInputs)), None)
    clears = any(isinstance(p, ClearReasoning) for p in preset.policies)
    fold = summarise_policy(preset)
    if fold is None:
        return Knobs(inputs_over_characters=inputs.over_chars if inputs else None, clears_reasoning=clears)
    share = _BESIDE_STEPS if fold.selects else _MOST_OF_TARGET
    room = min(NARRATIVE_TOKENS, int(bounds.target_tokens * share))
    return Knobs(
        inputs_over_characters=inputs.over_chars if inputs else None,
        takes_results=True,
        folds=True,
        keep_steps=fold.keep_steps,
        keep_messages=fold.keep_messages,
        narrative_tokens=room if fold.narrates else 0,
        clears_reasoning=clears,
        selects=fold.selects,
        ratio=fold.ratio,
    )
