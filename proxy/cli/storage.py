"""The store named in the configuration, opened beside a gateway that may be running on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.errors import StoreError
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import Store, StoreOptions


class NoSharedStore(StoreError):
    """The store lives in the memory of the gateway's process alone."""

    code = "store_not_shared"


@asynccontextmanager
async def opened_store(settings: Settings) -> AsyncIterator[Store]:
    """Yield the store, open. Raises NoSharedStore, Unavailable or ConfigError."""
    if settings.store.urls[0].startswith("memory:"):
        raise NoSharedStore(
            "the store is memory:, which only the running gateway sees; ask its /ullage/v1/ instead"
        )
    options = StoreOptions(idle_ttl=settings.store.idle_ttl, record=settings.store.record)
    store = open_store(settings.store.url, options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
