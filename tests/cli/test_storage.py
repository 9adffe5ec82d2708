"""The store that a command opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli.storage import NoSharedStore, opened_store
from proxy.settings import Settings, Store

pytestmark = pytest.mark.anyio


async def test_the_store_of_the_configuration_is_opened_and_closed(tmp_path: Path) -> None:
    """What one command writes the next one finds."""
    settings = Settings(store=Store(url=f"sqlite:///{tmp_path}/store.db"))
    async with opened_store(settings) as store:
        secret = await store.secret(lambda: b"s" * 32)
    async with opened_store(settings) as store:
        assert await store.secret(lambda: b"t" * 32) == secret


async def test_a_store_in_memory_is_not_there_for_commands() -> None:
    """An empty answer would be a lie: only the gateway's process holds it."""
    with pytest.raises(NoSharedStore, match="only the running gateway sees"):
        async with opened_store(Settings(store=Store(url="memory:"))):
            pass
