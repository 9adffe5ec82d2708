"""Claims of work that one of several gateways on one store is to do: whoever does not get the claim leaves it.

A store that fails keeps nobody from working: doing something twice is cheaper than not doing it.
"""

from __future__ import annotations

import contextlib
from typing import Final

import structlog

from proxy.errors import StoreError
from proxy.store.base import Store

log = structlog.get_logger()

_UNCLAIMED: Final = 0  # stands for the token that the store could not give


class Claims:
    """Takes claims and gives them back; neither raises."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def take(self, tenant: str, name: str, seconds: float) -> int | None:
        """Return what the claim is given back with, None if somebody else has it; it ends by itself after `seconds`."""
        try:
            return await self._store.claim(tenant, name, seconds)
        except StoreError as error:
            log.warning("claim_not_stored", error=error.message)
            return _UNCLAIMED

    async def give_back(self, tenant: str, name: str, token: int) -> None:
        """Let others have the claim; without an answer of the store it ends by itself."""
        if token != _UNCLAIMED:
            with contextlib.suppress(StoreError):
                await self._store.release(tenant, name, token)
