"""Declared breaks of the prefix: from a plan and its sizes to a plan with a compaction, and back from the ledger.

The block is rendered from the present request, since its pins are the user's own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from proxy.core.bare import find_bare
from proxy.core.block import Block, Pin, render_block
from proxy.core.compaction import Bounds, Compaction, Knobs, Reduction, Scene, Taken
from proxy.core.fitting import fitted
from proxy.core.fold import find_fold
from proxy.core.history import Adapter, History, Slot, digest
from proxy.core.ledger import AnyEntry, Began, Compacted, Narrated, Offloaded
from proxy.core.plan import Fresh, Plan, Planner, Stubs
from proxy.core.policy import Candidate, Offload
from proxy.core.reading import HistoryEntry
from proxy.core.selection import Told, sequence
from proxy.core.steps import Step, steps
from proxy.core.trail import Act, render_trail

_PREVIEW = {"input": (0, 0), "result": (10, 5), "user": (10, 5)}  # lines of head and tail
_SHORTEST_PREVIEW = (2, 1)  # where the request would not fit otherwise
_TAG_CHARACTERS = 8
_LEAST_NARRATIVE_TOKENS = 200


class Measures(msgspec.Struct, frozen=True):
    """Tokens of a request's parts, and what the preset wants of them."""

    messages: Sequence[int]  # as the client sent them
    hidden: dict[int, int]  # of the hidden rounds put back in front of a message
    overhead_tokens: int
    bounds: Bounds
    knobs: Knobs


class Describer(Adapter, Protocol):
    """A wire format that can tell what a message says."""

    def describe(self, raw: bytes, number: int, tool: str | None) -> HistoryEntry:
        """Return the message as the record shows it."""
        ...


class Breaker:
    """Decides compactions for one wire format."""

    def __init__(self, adapter: Describer, planner: Planner, stubs: Stubs, secret: bytes) -> None:
        self._adapter = adapter
        self._planner = planner
        self._stubs = stubs
        self._secret = secret

    def reduce(self, history: History, plan: Plan, measures: Measures) -> Reduction | None:
        """Return the compaction that this request needs, if any."""
        return self._compaction(history, plan, measures).find()

    def total(self, history: History, plan: Plan, measures: Measures) -> int:
        """Return the tokens that would be sent now."""
        return self._compaction(history, plan, measures).total()

    def carry_out(
        self, history: History, plan: Plan, reduction: Reduction, root: bytes, narrative: Narrated | None
    ) -> Plan:
        """Return the plan with the compaction in it, its texts still to be stored and its entries to be written."""
        known = plan.recognition
        length = history.length + known.shift
        fresh = [self._fresh(history, plan, taken, length, root) for taken in self._pinned(history, plan, reduction)]
        tag = digest(b"tag", known.ledger.root or root, key=self._secret).hex()[:_TAG_CHARACTERS]
        entry = self._entry(history, reduction, known.shift)
        if narrative is not None:
            text = fitted(narrative.text, max(_LEAST_NARRATIVE_TOKENS, reduction.narrative_tokens), self._stubs.count)
            entry = msgspec.structs.replace(entry, narrative=text)
        entry = msgspec.structs.replace(entry, made_at=length, tag=tag)
        ledger = known.ledger
        begun: tuple[AnyEntry, ...] = () if ledger.root or plan.entries else (Began(root),)
        entries = (*begun, *plan.entries, *(f.entry for f in fresh), entry)
        extended = msgspec.structs.replace(known, ledger=ledger.extend([*(f.entry for f in plan.fresh), *entries]))
        return msgspec.structs.replace(
            plan,
            stubs=self._planner.in_force(history, extended, plan.reader or ""),
            fresh=(*plan.fresh, *fresh),
            entries=entries,
            fold=find_fold(history, extended),
            bare=find_bare(history, extended, plan.grafts),
        )

    def render(self, history: History, plan: Plan) -> str:
        """Return the block of a plan with a fold."""
        fold = plan.fold
        if fold is None:
            return ""
        pins = [
            Pin(i - history.leading + plan.recognition.shift + 1, self._sent_text(history, plan, i))
            for i in range(history.leading, fold.cut)
            if history.facts[i].role == "user" and i != fold.goal and i not in fold.chosen
        ]
        hidden = sum(i < fold.pins_from for i in fold.leaving(history) if history.facts[i].role == "user")
        shown = {fold.goal, *fold.chosen}
        inside = [e for (i, _), e in sorted(plan.stubs.items()) if i < fold.cut and i not in shown]
        block = Block(
            tag=fold.entry.tag,
            messages=len(fold.leaving(history)),
            pins=pins[hidden:],
            hidden_pins=hidden,
            trail=fold.entry.trail,
            narrative=fold.entry.narrative,
            refs=list(dict.fromkeys(e.ref for e in inside)),
            reader=plan.reader,
            chosen=len(fold.chosen),
        )
        return render_block(block)

    def _compaction(self, history: History, plan: Plan, measures: Measures) -> Compaction:
        return Compaction(self._scene(history, plan, measures), measures.bounds, measures.knobs)

    def _scene(self, history: History, plan: Plan, measures: Measures) -> Scene:
        sizes = list(measures.messages)
        for (index, at), entry in plan.stubs.items():
            sizes[index] -= entry.tokens - self._stub_tokens(history, index, at, entry)
        for index, tokens in measures.hidden.items():
            sizes[index] += tokens
        thoughts = {
            i: self._stubs.count(self._adapter.reasoning(history.messages[i]))
            for i, facts in enumerate(history.facts)
            if facts.reasoning_bytes and i not in plan.grafts and (measures.knobs.clears_reasoning or i in plan.bare)
        }
        for index in plan.bare:
            sizes[index] -= thoughts[index]
        fold, length = plan.fold, history.length + plan.recognition.shift
        calls = sum(facts.role == "assistant" for facts in history.facts)
        return Scene(
            history=history,
            sizes=sizes,
            overhead_tokens=measures.overhead_tokens,
            stubbed=frozenset(plan.stubs),
            tokens=lambda i, slot: self._stubs.count(self._text(history, i, slot)),
            characters=lambda i, slot: len(self._text(history, i, slot)),
            saving=lambda taken: self._saving(history, plan, taken),
            folded=history.leading if fold is None else fold.cut,
            block_tokens=0 if fold is None else self._stubs.count(self.render(history, plan)),
            head_tokens=measures.overhead_tokens + sum(sizes[: history.leading]),
            calls=calls,
            growth_tokens=sum(sizes[history.leading :]) / max(1, calls),
            told=lambda step: self._told(history, step),
            user_texts=lambda: [
                self._describe(history.messages[i]).text for i, f in enumerate(history.facts) if f.role == "user"
            ],
            chosen=() if fold is None else fold.chosen,
            reasoning={i: tokens for i, tokens in thoughts.items() if i not in plan.bare},
            pins_from=0 if fold is None else fold.pins_from,
            past=[c for c in plan.recognition.ledger.compactions if c.made_at <= length],
        )

    def _saving(self, history: History, plan: Plan, taken: Taken) -> int:
        fresh = self._fresh(history, plan, taken, 0, b"estimate")
        stub = self._stubs.count(self._stubs.render(fresh.entry, lambda: fresh.text))
        place = taken.message, taken.slot.at
        present = plan.stubs.get(place)
        now = fresh.entry.tokens if present is None else self._stub_tokens(history, *place, present)
        return now - stub if 2 * stub <= now else 0

    def _pinned(self, history: History, plan: Plan, reduction: Reduction) -> list[Taken]:
        """Return what is taken, with the user texts of the span that are too long to be pinned whole."""
        taken = list(reduction.taken)
        places = {(t.message, t.slot.at) for t in taken} | set(plan.stubs)
        if reduction.cut is None:
            return taken
        users = [i for i, f in enumerate(history.facts) if f.role == "user"]
        for index in users[1:-1]:
            slots = history.facts[index].slots if index < reduction.cut else ()
            new = (slot for slot in slots if (index, slot.at) not in places)
            long = [slot for slot in new if self._is_long_pin(history, index, slot, reduction.pin_tokens)]
            pins = [Taken(index, slot, "compaction") for slot in long]
            taken += [pin for pin in pins if self._saving(history, plan, pin) > 0]
        staying = {*reduction.chosen, *range(reduction.cut, len(history))}
        return [t for t in taken if t.message in staying or t.slot.kind == "user"]

    def _is_long_pin(self, history: History, index: int, slot: Slot, limit: int) -> bool:
        return slot.size_bytes > limit and self._stubs.count(self._text(history, index, slot)) > limit

    def _fresh(self, history: History, plan: Plan, taken: Taken, length: int, root: bytes) -> Fresh:
        slot, index = taken.slot, taken.message
        text = self._text(history, index, slot)
        tool = history.tool_of(index) if slot.kind == "result" else None
        candidate = Candidate(index, slot.at, slot.kind, slot.exact, slot.size_bytes, tool)
        head, tail = _SHORTEST_PREVIEW if taken.reason == "over_window" else _PREVIEW[slot.kind]
        edit = Offload(candidate, taken.reason, head, tail)
        policy = "truncate_inputs" if slot.kind == "input" else "summarise_history"
        entry = self._planner.entry(edit, text, policy, root, plan.reader or "")
        since = index - history.leading + plan.recognition.shift
        return Fresh(msgspec.structs.replace(entry, since=since, until=since + 1, made_at=length), text)

    def _entry(self, history: History, reduction: Reduction, shift: int) -> Compacted:
        moved = shift - history.leading
        entry = Compacted(
            made_at=0,
            bare=reduction.bare + moved if reduction.bare else 0,
            before_tokens=reduction.before,
            tokens=reduction.tokens,
        )
        if reduction.cut is None:
            return entry
        span = (step for step in steps(history) if step.start < reduction.cut and history.facts[step.start].calls)
        return msgspec.structs.replace(
            entry,
            cut=reduction.cut + moved,
            trail=render_trail(act for step in span for act in self._told(history, step).acts),
            pin_tokens=reduction.pin_tokens,
            pins_from=reduction.pins_from + moved if reduction.pins_from else 0,
            chosen=tuple(index + moved for index in sequence(history, reduction.chosen, reduction.cut)),
        )

    def _told(self, history: History, step: Step) -> Told:
        entry, *answers = (self._describe(history.messages[i]) for i in range(step.start, step.stop))
        acts: list[Act] = []
        for call in entry.calls:  # ids repeat, and old ones have none
            answer = next((a for a in answers if a.call_id == call.id), answers[0] if answers else None)
            if answer is not None:
                answers.remove(answer)
            acts.append(Act(call.name, call.arguments, "" if answer is None else answer.text))
        return Told(entry.text, acts)

    def _sent_text(self, history: History, plan: Plan, index: int) -> str:
        raw = history.messages[index]
        texts = {at: self._stub(raw, at, entry) for (i, at), entry in plan.stubs.items() if i == index}
        return self._describe(self._adapter.replace_texts(raw, texts) if texts else raw).text

    def _describe(self, raw: bytes) -> HistoryEntry:
        return self._adapter.describe(raw, 0, None)

    def _stub_tokens(self, history: History, index: int, at: int, entry: Offloaded) -> int:
        return self._stubs.count(self._stub(history.messages[index], at, entry))

    def _stub(self, raw: bytes, at: int, entry: Offloaded) -> str:
        return self._stubs.render(entry, lambda: self._adapter.text(raw, at))

    def _text(self, history: History, index: int, slot: Slot) -> str:
        return self._adapter.text(history.messages[index], slot.at)
