"""The store named in the configuration, opened beside a gateway that may be running on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from proxy.errors import StoreError
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import Movable

_SQLITE = "sqlite:///"
_FOLDER = "file://"


class NoStoreHere(StoreError):
    """There is no store that a command could look into."""

    code = "no_store_here"


@asynccontextmanager
async def opened_store(settings: Settings, *, create: bool = False) -> AsyncIterator[Movable]:
    """Yield the store, open; a command creates one only if it says so. Raises NoStoreHere, Unavailable, ConfigError."""
    _check(settings.store.urls[-1], create=create)
    store = open_store(settings.store.url, settings.store.options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _check(url: str, *, create: bool) -> None:
    if url.startswith("memory:"):
        raise NoStoreHere("the store is memory:, which only the running gateway sees; ask its /ullage/v1/ instead")
    for scheme in (_SQLITE, _FOLDER):
        if not url.startswith(scheme) or create or Path(url.removeprefix(scheme)).exists():
            continue
        raise NoStoreHere(f"there is no store at {url} yet; is this the folder that the gateway runs in?")
