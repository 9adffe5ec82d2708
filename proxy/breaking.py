"""Compactions, with what they need from outside: exact sizes, and narratives that were written or are waited for.

Below the trigger nothing is counted at all while the body has fewer bytes than the trigger has tokens. Shortly before
the trigger a narrative is asked for, in the background, while requests go on raw; the first request that is over the
trigger and finds it is compacted. Only at the limit it is waited for, and then the block is made without it.
"""

from __future__ import annotations

import msgspec

from policies.truncate_inputs import TruncateInputs
from proxy.core.breaks import Breaker, Measures
from proxy.core.compaction import Bounds, Knobs, units
from proxy.core.history import History
from proxy.core.ledger import Declined
from proxy.core.narrative import NARRATIVE_TOKENS
from proxy.core.plan import Plan
from proxy.core.reading import TOOL_TOKENS
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


class Decision(msgspec.Struct, frozen=True):
    """A plan, and the narrative to be written when the answer has ended."""

    plan: Plan
    need: SummaryNeed | None = None


class Breaks:
    """Decides compactions and gets their narratives."""

    def __init__(self, breaker: Breaker, adapter: ChatAdapter, counter: Counter, narrator: Narrator) -> None:
        self._breaker = breaker
        self._counter = counter
        self._sizes = Sizes(adapter, counter)
        self._narrator = narrator

    async def plan(self, plan: Plan, occasion: Occasion) -> Decision:
        """Return the plan with a compaction in it where one is due."""
        bounds, history, is_wished = (
            occasion.means.bounds,
            occasion.history,
            occasion.known.recognition.ledger.is_wished,
        )
        is_small = (
            len(occasion.envelope.body) < bounds.trigger_tokens and not plan.grafts
        )  # a token has a byte at least
        if is_small and not is_wished:
            return Decision(plan)
        measures = await self._measure(plan, occasion)
        ready = msgspec.structs.replace(plan, reader=plan.reader or occasion.reader)
        reduction = self._breaker.reduce(history, ready, _at_once(measures) if is_wished else _ahead(measures, history))
        if reduction is None and is_wished:
            declined = Declined(history.length + plan.recognition.shift)
            return Decision(msgspec.structs.replace(plan, entries=(*plan.entries, declined)))
        if reduction is None:
            is_over = self._breaker.total(history, plan, measures) > bounds.limit_tokens
            return Decision(msgspec.structs.replace(plan, is_over=is_over))
        is_due = is_wished or reduction.before >= bounds.trigger_tokens
        writer, narrative = occasion.writer, None
        if reduction.cut is not None and writer is not None:
            narrative = self._narrator.written(occasion, reduction.cut)
            if narrative is None and not reduction.is_forced:
                return Decision(plan, self._narrator.need(occasion, writer, len(history)))
            if narrative is None:
                need = self._narrator.need(occasion, writer, reduction.cut)
                narrative = await self._narrator.wait(need, occasion.means.ask, writer.wait_seconds)
            elif not reduction.is_forced and narrative.cut < occasion.position(reduction.cut):
                cut = _boundary(history, occasion.index(narrative.cut))
                reduction = msgspec.structs.replace(reduction, cut=cut)
        if not is_due:
            return Decision(plan)
        broken = self._breaker.carry_out(history, ready, reduction, occasion.known.root, narrative)
        after = self._breaker.total(history, broken, measures)
        if narrative is not None and after > bounds.limit_tokens:
            broken = self._breaker.carry_out(history, ready, reduction, occasion.known.root, None)
            after = self._breaker.total(history, broken, measures)
        return Decision(msgspec.structs.replace(broken, is_over=after > bounds.limit_tokens))

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
    return msgspec.structs.replace(measures, bounds=msgspec.structs.replace(measures.bounds, trigger_tokens=0))


def _ahead(measures: Measures, history: History) -> Measures:
    """Return the measures with the trigger as much earlier as a narrative takes to be written: two steps or so.

    Asked for much earlier a narrative would be paid for in every session that ends before the trigger.
    """
    bounds = measures.bounds
    newest = units(history)[-_STEPS_MEASURED:]
    growth = sum(sum(measures.messages[unit.start : unit.stop]) for unit in newest) // max(1, len(newest))
    trigger = max(int(bounds.trigger_tokens * _EARLIEST), bounds.trigger_tokens - _STEPS_AHEAD * growth)
    return msgspec.structs.replace(measures, bounds=msgspec.structs.replace(bounds, trigger_tokens=trigger))


def _boundary(history: History, index: int) -> int:
    """Return the last beginning of a step that is not behind `index`."""
    return max((unit.start for unit in units(history) if unit.start <= index), default=history.leading)


def _knobs(preset: Preset, bounds: Bounds) -> Knobs:
    inputs = next((p for p in preset.policies if isinstance(p, TruncateInputs)), None)
    fold = summarise_policy(preset)
    if fold is None:
        return Knobs(inputs_over_characters=inputs.over_chars if inputs else None)
    room = min(NARRATIVE_TOKENS, int(bounds.target_tokens * _MOST_OF_TARGET))
    return Knobs(
        inputs_over_characters=inputs.over_chars if inputs else None,
        takes_results=True,
        folds=True,
        keep_steps=fold.keep_steps,
        keep_messages=fold.keep_messages,
        narrative_tokens=0 if fold.strategy == "mechanical" else room,
    )
