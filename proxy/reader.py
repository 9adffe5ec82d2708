"""Answering `read_offloaded`: from the store, or from the present request where it still carries the text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec

from proxy.core.history import History
from proxy.core.intercept import ToolUse
from proxy.core.ledger import Ledger, Offloaded
from proxy.core.plan import Plan
from proxy.core.reading import (
    HISTORY,
    INDEX,
    HistoryEntry,
    IndexItem,
    ReadOptions,
    ReadRequest,
    Refusal,
    erased_ref,
    expired_ref,
    parse_request,
    render_history,
    render_index,
    render_page,
    row_bytes,
    store_unavailable,
    unknown_ref,
)
from proxy.core.record import RecordedMessage, decode_recorded
from proxy.core.wire.chat import ChatAdapter
from proxy.counting import Counter
from proxy.errors import StoreError
from proxy.patterns import compile_pattern
from proxy.store.base import Clock, Erased, Original, Store
from proxy.upkeep import original_of

_THREAD_FROM_CHARACTERS = 200_000


class ReadScope(msgspec.Struct, frozen=True):
    """What one request may read: its ledger's refs, its own messages, and how long an answer may be."""

    tenant: str
    ledger: Ledger
    history: History
    plan: Plan
    read_tokens: int

    def readable(self) -> list[Offloaded]:
        """Return what this history holds: of a ledger that has grown further elsewhere only the common part."""
        length = len(self.history) - self.history.leading + self.plan.recognition.shift
        return [entry for entry in self.ledger.refs.values() if entry.since < length]


class Reader:
    """Answers calls of the reading tool; every failure is an answer that says what to do."""

    def __init__(self, store: Store, adapter: ChatAdapter, counter: Counter, clock: Clock = time.time) -> None:
        self._store = store
        self._adapter = adapter
        self._counter = counter
        self._clock = clock

    async def answer(self, use: ToolUse, scope: ReadScope) -> str:
        """Return the answer of one call."""
        request = parse_request(use.arguments)
        if isinstance(request, Refusal):
            return request.text
        try:
            text = await self._text(request, scope)
        except StoreError:
            return store_unavailable().text
        if isinstance(text, Refusal):
            return text.text
        options = ReadOptions(
            budget_tokens=scope.read_tokens,
            count=self._counter.count,
            compile=compile_pattern,
            row_bytes=row_bytes(scope.read_tokens),
        )
        if request.pattern is not None or len(text) > _THREAD_FROM_CHARACTERS:
            return await asyncio.to_thread(render_page, text, request, options)
        return render_page(text, request, options)

    async def _text(self, request: ReadRequest, scope: ReadScope) -> str | Refusal:
        if request.ref == INDEX:
            return render_index(map(_item, scope.readable()))
        if request.ref == HISTORY:
            return render_history([entry async for entry in self._history(scope)])
        entry = next((e for e in scope.readable() if e.ref == request.ref), None)
        if entry is None:
            return unknown_ref()
        return await self._original(entry, scope)

    async def _original(self, entry: Offloaded, scope: ReadScope) -> str | Refusal:
        sent = self._still_sent(entry, scope)
        try:
            original = await self._store.get_original(scope.tenant, entry.ref)
        except StoreError:
            if sent is None:
                raise
            return sent
        if isinstance(original, Original):
            return original.data.decode("utf-8", "surrogatepass")
        if isinstance(original, Erased):
            return erased_ref()
        if sent is None:
            return expired_ref()
        await self._store.put_originals(scope.tenant, [original_of(entry, sent, scope.ledger.id, self._clock())])
        return sent

    def _still_sent(self, entry: Offloaded, scope: ReadScope) -> str | None:
        """Return the text from the present request, if it still carries it."""
        for (index, at), stub in scope.plan.stubs.items():
            if stub.ref == entry.ref:
                return self._adapter.text(scope.history.messages[index], at)
        return None

    async def _history(self, scope: ReadScope) -> AsyncIterator[HistoryEntry]:
        """Yield the record of what the client no longer sends, then the messages of the present request."""
        history, shift = scope.history, scope.plan.recognition.shift
        if shift > 0:
            for row in await self._store.load_record(scope.tenant, scope.ledger.id, 0, shift):
                raw = await self._restored(scope.tenant, decode_recorded(row.data))
                yield self._adapter.describe(raw, row.index + 1, None)
        for index in range(history.leading, len(history)):
            number = index - history.leading + shift + 1
            yield self._adapter.describe(history.messages[index], number, history.tool_of(index))

    async def _restored(self, tenant: str, message: RecordedMessage) -> bytes:
        texts: dict[int, str] = {}
        for at, ref in message.edits:
            original = await self._store.get_original(tenant, ref)
            if isinstance(original, Original):
                texts[at] = original.data.decode("utf-8", "surrogatepass")
        return self._adapter.replace_texts(message.raw, texts) if texts else message.raw


def _item(entry: Offloaded) -> IndexItem:
    return IndexItem(
        ref=entry.ref,
        kind=entry.kind,
        tool=entry.tool,
        tokens=entry.tokens,
        lines=entry.lines,
        first_line=entry.first_line,
    )
