"""Carrying a plan out on the bytes: stubs, hidden turns and the tool go in, everything else stays as it came."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Protocol

import msgspec

from proxy.core.envelope import Envelope, Patch, Span
from proxy.core.fold import Fold
from proxy.core.guard import Guard
from proxy.core.history import Adapter, History
from proxy.core.ledger import HiddenTurn, Offloaded
from proxy.core.memo import Memo
from proxy.core.plan import Place, Plan, Stubs

_MEMO_BYTES = 32_000_000


class ToolWriter(Protocol):
    """How a wire format declares the reading tool and puts hidden turns back."""

    def declare(self, patch: Patch, name: str, offer: str | None = None) -> None:
        """Append the declaration of the tools to the body, and allow them where the client allows a subset."""
        ...

    def graft(self, visible: bytes, turn: HiddenTurn) -> list[bytes]:
        """Return the messages that stand for a visible message with its hidden turn."""
        ...

    def merge(self, goal: bytes | None, block: str) -> bytes:
        """Return the first user message with a block behind its own text; the block alone where there is none."""
        ...


class Rewriter:
    """Rewrites bodies of one wire format; rewritten messages are memoised by their raw hash and refs."""

    def __init__(
        self, adapter: Adapter, writer: ToolWriter, stubs: Stubs, render_block: Callable[[History, Plan], str]
    ) -> None:
        self._render_block = render_block
        self._adapter = adapter
        self._writer = writer
        self._stubs = stubs
        self._memo: Memo[tuple[bytes, bool, tuple[tuple[int, str, str], ...]], bytes] = Memo(_MEMO_BYTES)

    def rewrite(self, envelope: Envelope, history: History, plan: Plan) -> bytes:
        """Return the body to send."""
        patch = Patch(envelope)
        changed = self._changed(history, plan)
        first = history.leading
        if plan.fold is not None:
            first = plan.fold.cut
            begin, end = history.messages.span(history.leading)[0], history.messages.span(first - 1)[1]
            patch.replace(Span(begin, end), b",".join(self._folded(history, plan, plan.fold, changed)))
        for index, data in changed.items():
            if index >= first:
                patch.replace(Span(*history.messages.span(index)), data)
        if plan.reader is not None:
            self._writer.declare(patch, plan.reader, plan.offer)
        return patch.apply()

    def _folded(self, history: History, plan: Plan, fold: Fold, changed: dict[int, bytes]) -> list[bytes]:
        """Return what stands for a span: system messages, the first user message with the block, and chosen steps."""
        block = self._render_block(history, plan)
        goal = None if fold.goal is None else changed.get(fold.goal, history.messages[fold.goal])
        kept = [history.messages[index] for index in fold.kept]
        chosen = [changed.get(index, history.messages[index]) for index in fold.chosen]
        return [*kept, self._writer.merge(goal, block), *chosen]

    def _changed(self, history: History, plan: Plan) -> dict[int, bytes]:
        by_message: dict[int, list[tuple[int, Offloaded]]] = {}
        for (index, at), entry in plan.stubs.items():
            by_message.setdefault(index, []).append((at, entry))
        fold = plan.fold
        touched = by_message.keys() | {i for i in plan.bare if fold is None or i >= fold.cut or i in fold.chosen}
        out = {i: self.stubbed(history, i, by_message.get(i, ()), is_bare=i in plan.bare) for i in touched}
        for index, turn in plan.grafts.items():
            raw = out.get(index, history.messages[index])
            out[index] = b",".join(self._writer.graft(raw, turn))
        return out

    def stubbed(
        self, history: History, index: int, edits: Sequence[tuple[int, Offloaded]], *, is_bare: bool = False
    ) -> bytes:
        """Return a message with its stubs in place, and without its reasoning where it is bare."""
        key = (history.facts[index].key, is_bare, tuple((at, entry.ref, entry.reader) for at, entry in edits))
        data = self._memo.get(key)
        if data is None:
            raw = history.messages[index]
            texts = {at: self._stub(raw, at, entry) for at, entry in edits}
            data = self._adapter.replace_texts(raw, texts) if texts else raw
            data = self._adapter.without_reasoning(data) if is_bare else data
            self._memo.put(key, data, weight=len(data) + 300)
        return data

    def guard(self, history: History, plan: Plan) -> Guard | None:
        """Return what copies of the stubs in this request are known by and stand for; None where there are none."""
        return _StubsInForce(history, plan, self._adapter, self._stub) if plan.stubs else None

    def _stub(self, raw: bytes, at: int, entry: Offloaded) -> str:
        return self._stubs.render(entry, lambda: self._adapter.text(raw, at))


class _StubsInForce:
    """The stubs of one request. Nearly no answer copies one, so nothing is looked up before it is asked for."""

    def __init__(
        self, history: History, plan: Plan, adapter: Adapter, render: Callable[[bytes, int, Offloaded], str]
    ) -> None:
        self._history = history
        self._plan = plan
        self._adapter = adapter
        self._render = render

    @cached_property
    def _places(self) -> dict[str, list[Place]]:
        places: dict[str, list[Place]] = {}
        for place, entry in self._plan.stubs.items():
            places.setdefault(entry.ref, []).append(place)
        return places

    @property
    def refs(self) -> Collection[str]:
        return self._places.keys()

    def stubs(self, ref: str) -> Sequence[str]:
        rendered: list[str] = []
        for index, at in self._places[ref]:
            entry, raw = self._plan.stubs[index, at], self._history.messages[index]
            # In the last round, which is without the tool, a stub promises no reading.
            rendered += [self._render(raw, at, each) for each in (entry, msgspec.structs.replace(entry, reader=""))]
        return list(dict.fromkeys(rendered))

    def original(self, ref: str) -> str:
        index, at = self._places[ref][0]
        return self._adapter.text(self._history.messages[index], at)


def append_messages(envelope: Envelope, messages: Sequence[bytes]) -> bytes:
    """Return the body with further messages at the end of its list."""
    patch = Patch(envelope)
    span = envelope.spans["messages"]
    end = span.stop - 1
    patch.replace(Span(end, end), b"".join(b"," + m for m in messages))
    return patch.apply()
