"""The rounds of a turn that the client does not see: reads answered, the next round opened, the turn written down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec
import structlog

from proxy.compaction import Compacted, Compactor
from proxy.complaint import hear
from proxy.core.envelope import decode, open_envelope
from proxy.core.intercept import ToolUse
from proxy.core.ledger import Hidden, HiddenTurn, Wished
from proxy.core.prompt_text import prompt_texts
from proxy.core.rewrite import append_messages
from proxy.core.wire.raw_fields import encode_text, join_fields, split_fields
from proxy.errors import StoreError
from proxy.reader import Reader, ReadScope
from proxy.shortening import Shortener
from proxy.upstream import UpstreamResponse

log = structlog.get_logger()

_BYTES_PER_TOKEN: Final = 4
_OVERHEAD_TOKENS: Final = 4  # of a text: role, ends, separators
_LEAST_READ_TOKENS: Final = 200  # an answer says at least where the text goes on
_ANY: Final = 1 << 40

Ask = Callable[[bytes], Awaitable[UpstreamResponse]]


class HiddenRounds:
    """Does what the turn of one compacted request asks for (`turn.Rounds`)."""

    def __init__(
        self, compacted: Compacted, compactor: Compactor, reader: Reader, shortener: Shortener, ask: Ask
    ) -> None:
        self._compacted = compacted
        self._compactor = compactor
        self._reader = reader
        self._shortener = shortener
        self._ask = ask
        self._hidden: tuple[bytes, ...] = ()  # messages of the rounds so far
        self._answers: dict[str, ToolUse] = {}  # what the newest answers are answers to
        self._shortened: dict[bytes, bytes] = {}  # answers that were too long, and what was sent instead

    async def open(self, messages: tuple[bytes, ...], *, with_tool: bool) -> UpstreamResponse:
        """Open a hidden round: the same request with these messages behind its own.

        One that is too long is made shorter and asked for once more, as a first round is.
        """
        self._hidden = messages
        response = await self._ask(self._body(messages, with_tool=with_tool))
        more_tokens = sum(map(len, self._sent(messages))) // _BYTES_PER_TOKEN
        complaint = await hear(response, self._compacted.sent_tokens + more_tokens)
        if complaint.overflow is None:
            return response
        room = await self._shortener.room(self._compacted, complaint.overflow, more_tokens)
        if room is None or not await self._make_room(messages, room, more_tokens):
            return response
        await response.close()
        return await self._ask(self._body(messages, with_tool=with_tool))

    async def _make_room(self, messages: tuple[bytes, ...], room: int, more_tokens: int) -> bool:
        """Compact harder what the client sent, else give shorter answers; say whether anything became shorter."""
        shorter = await self._shortener.shorten(self._compacted, room - more_tokens)
        if shorter is not None:
            self._compacted = shorter
            return True
        share = (room - self._compacted.weight) // max(1, len(self._answers))
        before = dict(self._shortened)
        for raw in messages:
            fields = split_fields(raw)
            use = self._answers.get(str(decode(fields.get("content", b"null"))))
            if use is not None and share >= _LEAST_READ_TOKENS:
                text = await self._answer(use, share)
                self._shortened[raw] = join_fields({**fields, "content": encode_text(text)})
        return self._shortened != before

    def _sent(self, messages: Iterable[bytes]) -> tuple[bytes, ...]:
        return tuple(self._shortened.get(raw, raw) for raw in messages)

    def _body(self, messages: tuple[bytes, ...], *, with_tool: bool) -> bytes:
        body = self._compacted.body if with_tool else self._compactor.without_tool(self._compacted)
        return append_messages(open_envelope(body), self._sent(messages))

    async def answer(self, uses: tuple[ToolUse, ...]) -> tuple[str, ...]:
        """Answer calls of our tools."""
        room = await self._room()
        share = None if room is None else max(_LEAST_READ_TOKENS, room // len(uses))
        answers = tuple(await asyncio.gather(*(self._answer(use, share) for use in uses)))
        self._answers = dict(zip(answers, uses, strict=True))
        return answers

    async def _room(self) -> int | None:
        """Return how many tokens still fit behind what this turn has sent; None where the preset has no limit."""
        means = self._compacted.order.means
        if means is None:
            return None
        whole = append_messages(open_envelope(self._compacted.body), self._sent(self._hidden))
        texts = await asyncio.to_thread(prompt_texts, whole)
        sent_tokens = sum(await self._compactor.counter.count_large(texts)) + _OVERHEAD_TOKENS * len(texts)
        return means.most_tokens - sent_tokens

    async def _answer(self, use: ToolUse, most_tokens: int | None) -> str:
        compacted = self._compacted
        if use.name == compacted.plan.offer:
            return await self._wish()
        scope = ReadScope(
            tenant=compacted.order.identity.tenant,
            ledger=compacted.ledger,
            history=compacted.history,
            plan=compacted.plan,
            read_tokens=min(compacted.order.preset.read_tokens, most_tokens or _ANY),
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
        sent = msgspec.structs.replace(turn, rounds=self._sent(turn.rounds), answers=self._sent(turn.answers))
        entry = Hidden(compacted.length, self._compactor.messages.match_of(turn.visible), sent)
        try:
            await self._compactor.sessions.append_later(compacted.order.identity.tenant, compacted.ledger, [entry])
        except StoreError as error:
            log.warning("hidden_turn_not_stored", error=error.message)
