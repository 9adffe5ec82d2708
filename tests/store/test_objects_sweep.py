"""What processes left behind that died is found and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from proxy.store.base import StoreOptions
from proxy.store.objects import ObjectsStore
from tests.store.suite import Clock, original

pytestmark = pytest.mark.anyio

PLANTED = b"what nobody will ever mention"


async def opened(url: str) -> ObjectsStore:
    """Open a store."""
    store = ObjectsStore(url, StoreOptions(), Clock())
    await store.open()
    return store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ObjectsStore]:
    """Open a store in a folder."""
    store = await opened(f"file://{tmp_path}")
    yield store
    await store.close()


def bytes_below(folder: Path) -> bytes:
    """Return all contents below a folder."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_what_dead_processes_left_is_swept(
    store: ObjectsStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blobs that no commit mentions go with an expiry once they are old; all others stay."""
    await store.put_originals("t", [original("r", "a", b"kept")])
    await store.append_ledger("t", "a", 0, [b"kept as well"], [])
    await store._blobs.put_entries("t", "a", [PLANTED])
    await store.expire(Clock().now)
    assert PLANTED in bytes_below(tmp_path)
    monkeypatch.setattr("proxy.store.objects_sweep.AGE", timedelta(0))
    await store.expire(Clock().now)
    assert PLANTED not in bytes_below(tmp_path)
    assert await store.load_ledger("t", "a") == [b"kept as well"]
    assert await store.get_original("t", "r") == original("r", "a", b"kept")
