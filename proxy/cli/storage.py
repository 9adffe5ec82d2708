"""The store named in the configuration, opened beside a gateway that may be running on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from proxy.errors import StoreError
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import Store, StoreOptions

_SQLITE = "sqlite:///"


class NoStoreHere(StoreError):
    """There is no store that a command could look into."""

    code = "no_store_here"


@asynccontextmanager
async def opened_store(settings: Settings) -> AsyncIterator[Store]:
    """Yield the store, open; a command never creates one. Raises NoStoreHere, Unavailable or ConfigError."""
    _check(settings.store.urls[0])
    options = StoreOptions(idle_ttl=settings.store.idle_ttl, record=settings.store.record)
    store = open_store(settings.store.url, options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _check(url: str) -> None:
    if url.startswith("memory:"):
        raise NoStoreHere("the store is memory:, which only the running gateway sees; ask its /ullage/v1/ instead")
    if url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).exists():
        raise NoStoreHere(f"there is no store at {url} yet; is this the folder that the gateway runs in?")
