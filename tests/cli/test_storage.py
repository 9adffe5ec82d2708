"""The store that a command opens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proxy.cli.storage import NoStoreHere, opened_store
from proxy.settings import Settings, Store
from proxy.store import StoreOptions, open_store

pytestmark = pytest.mark.anyio


async def test_the_store_of_the_configuration_is_opened_and_closed(tmp_path: Path) -> None:
    """A command finds what the gateway wrote, and the next command, too."""
    url = f"sqlite:///{tmp_path}/store.db"
    gateway = open_store(url, StoreOptions())
    await gateway.open()
    secret = await gateway.secret(lambda: b"s" * 32)
    await gateway.close()
    for _ in range(2):
        async with opened_store(Settings(store=Store(url=url))) as store:
            assert await store.secret(lambda: b"t" * 32) == secret


async def test_no_command_creates_a_store(tmp_path: Path) -> None:
    """In the wrong folder the command says so, and leaves nothing behind."""
    with pytest.raises(NoStoreHere, match="is this the folder"):
        async with opened_store(Settings(store=Store(url=f"sqlite:///{tmp_path}/store.db"))):
            pass
    assert not os.listdir(tmp_path)  # noqa: PTH208  # one look at a folder, in a test


async def test_a_store_in_memory_is_not_there_for_commands() -> None:
    """An empty answer would be a lie: only the gateway's process holds it."""
    with pytest.raises(NoStoreHere, match="only the running gateway sees"):
        async with opened_store(Settings(store=Store(url="memory:"))):
            pass
