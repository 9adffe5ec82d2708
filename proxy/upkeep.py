"""Keeping originals alive while requests still show their stubs, and putting lost ones again.

A use renews an original's idle time. Now and then, and when this process meets a session for the first time, the store
is asked which originals it lost (expired, evicted, restored from an older backup): the client's request still carries
their text, so they are put again. What was erased on purpose stays erased.
"""

from __future__ import annotations

import structlog

from proxy.core.history import Adapter, History, text_bytes
from proxy.core.ledger import Ledger, Offloaded
from proxy.core.memo import Memo
from proxy.core.plan import Place
from proxy.errors import StoreError
from proxy.store.base import Clock, Original, Store

log = structlog.get_logger()

_SESSIONS_KEPT = 16_384
_CHECKS_PER_LIFE = 4


class Upkeep:
    """Renews and restores the originals that a request refers to; never fails a request."""

    def __init__(self, store: Store, adapter: Adapter, clock: Clock, idle_ttl: float) -> None:
        self._store = store
        self._adapter = adapter
        self._clock = clock
        self._period = idle_ttl / _CHECKS_PER_LIFE
        self._checked: Memo[str, float] = Memo(_SESSIONS_KEPT)

    async def renew(self, tenant: str, ledger: Ledger, history: History, stubs: dict[Place, Offloaded]) -> None:
        """Renew the originals of these stubs, and see now and then whether they are all there."""
        if not stubs:
            return
        await self._store.touch_originals(tenant, [entry.ref for entry in stubs.values()])
        now = self._clock()
        if now - (self._checked.get(ledger.id) or 0.0) >= self._period:
            self._checked.put(ledger.id, now)
            await self._restore(tenant, ledger, history, stubs)

    async def _restore(self, tenant: str, ledger: Ledger, history: History, stubs: dict[Place, Offloaded]) -> None:
        places = {entry.ref: place for place, entry in stubs.items()}
        try:
            for ref in sorted(await self._store.missing_originals(tenant, list(places))):
                index, at = places[ref]
                text = self._adapter.text(history.messages[index], at)
                original = original_of(stubs[index, at], text, ledger.id, self._clock())
                await self._store.put_originals(tenant, [original])
                log.info("original_restored", ref=ref)
        except StoreError as error:
            log.warning("originals_not_restored", error=error.message)


def original_of(entry: Offloaded, text: str, ledger_id: str, created: float) -> Original:
    """Return what the store keeps for a text that was moved out."""
    data = text_bytes(text)
    return Original(
        ref=entry.ref,
        ledger=ledger_id,
        kind=entry.kind,
        tool=entry.tool,
        tokens=entry.tokens,
        lines=entry.lines,
        size_bytes=len(data),
        created=created,
        data=data,
    )
