"""What is done about a prompt that an upstream refused as too long: learn its window, and compact harder, once."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from proxy.compaction import Compacted, Compactor
from proxy.core.overflow import Overflow
from proxy.experience import Experience
from proxy.lessons import Place, Refusal
from proxy.settings import Settings

log = structlog.get_logger()


class Shortener:
    """Makes shorter requests of those that one upstream refuses."""

    def __init__(
        self, compactor: Compactor, experience: Experience, origin: str, settings: Callable[[], Settings]
    ) -> None:
        self._compactor = compactor
        self._experience = experience
        self._origin = origin
        self._settings = settings

    async def room(self, refused: Compacted, overflow: Overflow, more_tokens: int = 0) -> int | None:
        """Remember how much did not fit, and return how much may be tried instead; None where that is in vain.

        `more_tokens` were sent behind the compacted request.
        """
        refusal = Refusal(overflow, refused.weight + more_tokens, refused.order.output_tokens)
        place = Place(refused.order.identity.tenant, self._origin, refused.situation.model)
        await self._experience.refuses_length(place, refusal)
        return self._experience.budget.retry_room(self._settings(), refused.order.preset, place, refusal)

    async def shorten(self, refused: Compacted, room_tokens: int) -> Compacted | None:
        """Return the request to send instead; None where it cannot be made shorter."""
        if refused.order.preset.shadow or room_tokens <= 0:
            return None
        try:
            shorter = await self._compactor.compact(refused.order.within(room_tokens))
        except Exception:
            # The refusal is an answer, too, and better than none.
            log.exception("retry_impossible")
            return None
        return shorter if len(shorter.body) < len(refused.body) else None
