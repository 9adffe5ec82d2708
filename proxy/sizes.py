"""Exact tokens of messages, each counted once."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.core.history import History
from proxy.core.memo import Memo
from proxy.core.wire.chat import ChatAdapter
from proxy.counting import Counter

_MESSAGES_KEPT = 100_000


class Sizes:
    """Counts messages by the hash of their raw bytes."""

    def __init__(self, adapter: ChatAdapter, counter: Counter) -> None:
        self._adapter = adapter
        self._counter = counter
        self._memo: Memo[bytes, int] = Memo(_MESSAGES_KEPT)

    async def measure(self, history: History) -> list[int]:
        """Return the tokens of each message as the client sent it."""
        new = [i for i, facts in enumerate(history.facts) if self._memo.get(facts.key) is None]
        if new:
            countable = [self._adapter.countable(history.messages[i]) for i in new]
            counts = iter(await self._counter.count_large([text for texts, _ in countable for text in texts]))
            for index, (texts, media) in zip(new, countable, strict=True):
                self._memo.put(history.facts[index].key, media + sum(next(counts) for _ in texts))
        return [self._memo.get(facts.key) or 0 for facts in history.facts]

    async def measure_raw(self, messages: Sequence[bytes]) -> int:
        """Return the tokens of messages of a hidden turn."""
        total = 0
        for raw in messages:
            texts, media = self._adapter.countable(raw)
            total += media + sum(await self._counter.count_large(texts))
        return total
