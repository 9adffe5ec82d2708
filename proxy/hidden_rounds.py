"""The rounds of a turn that the client does not see: reads answered, the next round opened, the turn written down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from proxy.compaction import Compacted, Compactor
from proxy.core.envelope import open_envelope
from proxy.core.intercept import ToolUse
from proxy.core.ledger import Hidden, HiddenTurn, Wished
from proxy.core.rewrite import append_messages
from proxy.errors import StoreError
from proxy.reader import Reader, ReadScope
from proxy.upstream import UpstreamResponse

log = structlog.get_logger()

Ask = Callable[[bytes], Awaitable[UpstreamResponse]]


class HiddenRounds:
    """Does what the turn of one compacted request asks for (`turn.Rounds`)."""

    def __init__(self, compacted: Compacted, compactor: Compactor, reader: Reader, ask: Ask) -> None:
        self._compacted = compacted
        self._compactor = compactor
        self._reader = reader
        self._ask = ask

    async def open(self, messages: tuple[bytes, ...], *, with_tool: bool) -> UpstreamResponse:
        """Open a hidden round: the same request with these messages behind its own."""
        body = self._compacted.body if with_tool else self._compactor.without_tool(self._compacted)
        return await self._ask(append_messages(open_envelope(body), messages))

    async def answer(self, uses: tuple[ToolUse, ...]) -> tuple[str, ...]:
        """Answer calls of our tools."""
        return tuple(await asyncio.gather(*map(self._answer, uses)))

    async def _answer(self, use: ToolUse) -> str:
        compacted = self._compacted
        if use.name == compacted.plan.offer:
            return await self._wish()
        scope = ReadScope(
            tenant=compacted.order.identity.tenant,
            ledger=compacted.ledger,
            history=compacted.history,
            plan=compacted.plan,
            read_tokens=compacted.order.preset.read_tokens,
        )
        return await self._reader.answer(use, scope)

    async def _wish(self) -> str:
        """Note that the model wants a compaction, where one is worth it, and tell it what comes of that."""
        compacted = self._compacted
        means = compacted.order.means
        if means is None or compacted.sent_tokens * 2 < means.bounds.trigger_tokens:
            return "The conversation is short, so nothing is compacted. Go on with the work."
        try:
            await self._compactor.sessions.append_later(
                compacted.order.identity.tenant, compacted.ledger, [Wished("model")]
            )
        except StoreError as error:
            log.warning("wish_not_stored", error=error.message)
            return "The conversation cannot be compacted now. Go on with the work."
        return f"The conversation is compacted before your next turn; {self._compacted.plan.reader} reads all of it."

    async def remember(self, turn: HiddenTurn) -> None:
        """Write a hidden turn into the ledger; without it the next request loses a cached prefix, and no more."""
        compacted = self._compacted
        entry = Hidden(compacted.length, self._compactor.messages.match_of(turn.visible), turn)
        try:
            await self._compactor.sessions.append_later(compacted.order.identity.tenant, compacted.ledger, [entry])
        except StoreError as error:
            log.warning("hidden_turn_not_stored", error=error.message)
