"""Each process's copy of the index follows the log, whatever happened to either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.store import objects_replica
from proxy.store.base import Mark, StoreOptions
from proxy.store.objects import ObjectsStore
from tests.store.suite import Clock, key, original

pytestmark = pytest.mark.anyio


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


async def test_a_long_log_is_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits go into snapshots, old ones are deleted, and who comes later or slept meanwhile sees the same."""
    monkeypatch.setattr(objects_replica, "SNAPSHOT_EVERY", 8)
    monkeypatch.setattr(objects_replica, "GRACE", timedelta(0))
    sleeper, writer = await opened(f"file://{tmp_path}"), await opened(f"file://{tmp_path}")
    for i in range(40):
        await writer.append_ledger("t", "a", i, [b"%d" % i], [Mark(key(f"k{i}"), i)])
        if writer._writer._snapshot is not None:
            await asyncio.to_thread(writer._writer._snapshot.join)
    assert len(list((tmp_path / "log").iterdir())) < 30
    assert len(list((tmp_path / "snapshots").iterdir())) < 4
    sleeper._writer.replica._checked -= 2 * objects_replica.STALE
    late = await opened(f"file://{tmp_path}")
    for store in (sleeper, late):
        assert await store.load_ledger("t", "a") == [b"%d" % i for i in range(40)]
        assert [tip.length for tip in await store.find_tips("t", [key("k3")])] == [3]
        assert await store.append_ledger("t", "b", 0, [b"e"], []) == 1
        await store.delete_session("t", "b")
    for store in (sleeper, writer, late):
        await store.close()


async def test_an_emptied_place_is_a_new_one(store: ObjectsStore, tmp_path: Path) -> None:
    """A store whose objects somebody deleted notices it with the next ping, and starts anew."""
    await store.put_originals("t", [original("r", "a")])
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    await store.ping()
    assert await store.missing_originals("t", ["r"]) == {"r"}
    await store.put_originals("t", [original("r", "a")])
    later = await opened(f"file://{tmp_path}")
    assert await later.get_original("t", "r") == original("r", "a")
    await later.close()


@pytest.mark.parametrize(
    ("mark", "what"),
    [(b'{"store": "ullage", "schema": 99}', "newer ullage"), (b"something", "something else than a store")],
)
async def test_a_place_of_somebody_else_is_left_alone(tmp_path: Path, mark: bytes, what: str) -> None:
    """A place of a later version, or of another program, is refused."""
    (tmp_path / "ullage.json").write_bytes(mark)
    store = ObjectsStore(f"file://{tmp_path}", StoreOptions(), Clock())
    with pytest.raises(ConfigError, match=what):
        await store.open()
    await store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["ullage.json"]
