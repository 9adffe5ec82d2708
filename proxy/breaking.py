"""Compactions, with what they need from outside: exact sizes, and summaries that were written or are waited for.

Below the trigger nothing is counted at all while the body has fewer bytes than the trigger has tokens. From the trigger
on a summary is asked for in the background while requests go on raw; the first request that finds it is compacted. Only
at the limit it is waited for, and then the block is made without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from policies.summarise_history import SummariseHistory
from policies.truncate_inputs import TruncateInputs
from proxy.core.breaks import Breaker, Measures
from proxy.core.compaction import Bounds, Knobs, Reduction
from proxy.core.envelope import Envelope
from proxy.core.history import History
from proxy.core.ledger import Compacted, Narrated
from proxy.core.plan import Plan
from proxy.core.wire.chat import ChatAdapter
from proxy.counting import Counter
from proxy.errors import StoreError
from proxy.presets import Preset
from proxy.sessions import Known, Sessions
from proxy.sizes import Sizes
from proxy.summarise import NARRATIVE_TOKENS, Ask, Summariser, SummaryNeed

log = structlog.get_logger()

_TOOL_TOKENS = 110
_MOST_OF_TARGET = 0.5


class Means(msgspec.Struct, frozen=True):
    """What one request allows: its bounds in tokens as we count them, and who may be asked for a summary."""

    bounds: Bounds
    ask: Ask
    model: str  # of the request
    window_of: Callable[[str], int]  # of a model, in tokens as we count them

    def within(self, tokens: int) -> Means:
        """Return the means of a request that may have so many tokens at most."""
        bounds = self.bounds
        tight = Bounds(min(bounds.trigger_tokens, tokens), tokens, min(bounds.target_tokens, tokens))
        return msgspec.structs.replace(self, bounds=tight)


class Occasion(msgspec.Struct, frozen=True):
    """A request for which a compaction may be due."""

    history: History
    known: Known
    envelope: Envelope
    preset: Preset
    means: Means
    reader: str  # the reading tool, as it can be declared

    @property
    def writer(self) -> SummariseHistory | None:
        """The policy that wants a narrative; None where the block does without, and in a rehearsal, which is free."""
        policy = _summarise(self.preset)
        return None if policy is None or policy.strategy == "mechanical" or self.preset.shadow else policy

    @property
    def folded(self) -> Compacted | None:
        """The block in force."""
        recognition = self.known.recognition
        return recognition.ledger.folded(self.history.length + recognition.shift)

    def position(self, index: int) -> int:
        """Return the position in the ledger's chain of a message of this request."""
        return index - self.history.leading + self.known.recognition.shift

    def index(self, position: int) -> int:
        """Return the index in this request of a message of the ledger's chain."""
        return position - self.known.recognition.shift + self.history.leading


class Breaks:
    """Decides compactions and gets their narratives."""

    def __init__(self, breaker: Breaker, adapter: ChatAdapter, counter: Counter, sessions: Sessions) -> None:
        self._breaker = breaker
        self._adapter = adapter
        self._counter = counter
        self._sessions = sessions
        self._sizes = Sizes(adapter, counter)
        self._summariser = Summariser(counter)
        self._keepers: dict[tuple[str, str], asyncio.Future[None]] = {}  # by tenant and ledger

    async def plan(self, plan: Plan, occasion: Occasion) -> Plan:
        """Return the plan with a compaction in it where one is due."""
        bounds, history = occasion.means.bounds, occasion.history
        if len(occasion.envelope.body) < bounds.trigger_tokens and not plan.grafts:  # a token has a byte at least
            return plan
        measures = await self._measure(plan, occasion)
        ready = msgspec.structs.replace(plan, reader=plan.reader or occasion.reader)
        reduction = self._breaker.reduce(history, ready, measures)
        if reduction is None:
            is_over = self._breaker.total(history, plan, measures) > bounds.limit_tokens
            return msgspec.structs.replace(plan, is_over=is_over)
        narrative: Narrated | None = None
        if reduction.cut is not None and occasion.writer is not None:
            narrative = self._written(occasion, reduction)
            if narrative is not None:
                reduction = msgspec.structs.replace(reduction, cut=occasion.index(narrative.cut))
            elif reduction.is_forced:
                narrative = await self._wait(occasion, occasion.writer, reduction)
            else:
                self._write_later(occasion, occasion.writer, reduction)
                return plan
        broken = self._breaker.carry_out(history, ready, reduction, occasion.known.root, narrative)
        after = self._breaker.total(history, broken, measures)
        if narrative is not None and after > bounds.limit_tokens:
            broken = self._breaker.carry_out(history, ready, reduction, occasion.known.root, None)
            after = self._breaker.total(history, broken, measures)
        return msgspec.structs.replace(broken, is_over=after > bounds.limit_tokens)

    async def _measure(self, plan: Plan, occasion: Occasion) -> Measures:
        envelope = occasion.envelope
        begin, end = envelope.spans["messages"]
        outside = (envelope.body[:begin] + envelope.body[end:]).decode("utf-8", "replace")
        (overhead,) = await self._counter.count_large([outside])
        return Measures(
            messages=await self._sizes.measure(occasion.history),
            hidden={i: await self._sizes.measure_raw((*t.rounds, *t.answers)) for i, t in plan.grafts.items()},
            overhead_tokens=overhead + _TOOL_TOKENS,
            bounds=occasion.means.bounds,
            knobs=_knobs(occasion.preset, occasion.means.bounds),
        )

    def _written(self, occasion: Occasion, reduction: Reduction) -> Narrated | None:
        """Return the newest summary that reaches beyond the block in force and not into what is to stay."""
        folded = occasion.folded
        first = 0 if folded is None or folded.cut is None else folded.cut
        last = occasion.position(reduction.cut or 0)
        narratives = occasion.known.recognition.ledger.narratives
        return max((n for n in narratives if first < n.cut <= last), key=lambda n: n.cut, default=None)

    async def _wait(self, occasion: Occasion, writer: SummariseHistory, reduction: Reduction) -> Narrated | None:
        need = self._need(occasion, writer, reduction)
        task = self._summariser.begin(need, occasion.means.ask)
        if task is None:
            return None
        done, _ = await asyncio.wait({task}, timeout=writer.wait_seconds)
        text = task.result() if done else None
        return None if text is None else Narrated(need.start, need.cut, text)

    def _write_later(self, occasion: Occasion, writer: SummariseHistory, reduction: Reduction) -> None:
        """Have a summary written, one at a time: a conversation that goes on meanwhile can use that one."""
        key = (occasion.known.identity.tenant, occasion.known.recognition.ledger.id)
        if key in self._keepers:
            return
        need = self._need(occasion, writer, reduction)
        task = self._summariser.begin(need, occasion.means.ask)
        if task is not None:
            keeper = self._keepers[key] = asyncio.ensure_future(self._keep(need, task))
            keeper.add_done_callback(lambda _: self._keepers.pop(key, None))

    async def _keep(self, need: SummaryNeed, task: asyncio.Task[str | None]) -> None:
        """Write a summary into the ledger when it is ready."""
        text = await task
        if text is None:
            return
        try:
            ledger = await self._sessions.reload(need.tenant, need.ledger)
            if not any(n.cut == need.cut for n in ledger.narratives):
                await self._sessions.append_later(need.tenant, ledger, [Narrated(need.start, need.cut, text)])
        except StoreError as error:
            log.warning("summary_not_stored", error=error.message)

    def _need(self, occasion: Occasion, writer: SummariseHistory, reduction: Reduction) -> SummaryNeed:
        folded, history, model = occasion.folded, occasion.history, writer.model or occasion.means.model
        start = 0 if folded is None or folded.cut is None else folded.cut
        cut = reduction.cut or history.leading
        return SummaryNeed(
            tenant=occasion.known.identity.tenant,
            ledger=occasion.known.recognition.ledger.id,
            start=start,
            cut=occasion.position(cut),
            previous="" if folded is None else folded.narrative,
            pieces=[self._told(history, index) for index in range(max(history.leading, occasion.index(start)), cut)],
            model=model,
            window_tokens=occasion.means.window_of(model),
            prompt=writer.prompt,
        )

    def _told(self, history: History, index: int) -> str:
        entry = self._adapter.describe(history.messages[index], index, history.tool_of(index))
        calls = "".join(f"\n{call.name} {call.arguments}" for call in entry.calls)
        name = f" · {entry.name}" if entry.name else ""
        return f"--- {entry.role}{name} ---\n{entry.text}{calls}"


def _summarise(preset: Preset) -> SummariseHistory | None:
    return next((p for p in preset.policies if isinstance(p, SummariseHistory)), None)


def _knobs(preset: Preset, bounds: Bounds) -> Knobs:
    inputs = next((p for p in preset.policies if isinstance(p, TruncateInputs)), None)
    fold = _summarise(preset)
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
