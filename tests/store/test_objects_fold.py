"""Many small blobs of one session become one, and nobody notices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from proxy.store import objects_fold, objects_replica, objects_writer
from proxy.store.base import Recorded, SessionUse, StoreOptions
from proxy.store.objects import ObjectsStore
from tests.store.machine import check_against_model
from tests.store.places import FolderPlace
from tests.store.suite import Clock, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[ObjectsStore]]:
    """Open two stores on one folder that look after it often and fold early."""
    monkeypatch.setattr(objects_fold, "LOOSE", 6)
    options = StoreOptions(idle_ttl=1.0)  # the clock stands still; this only sets how often they look
    made = [ObjectsStore(f"file://{tmp_path}", options, Clock()) for _ in range(2)]
    for store in made:
        await store.open()
    yield made
    for store in made:
        await store.close()


async def test_a_long_session_has_few_blobs(stores: list[ObjectsStore], tmp_path: Path) -> None:
    """Entries and messages stay what they are while their blobs are joined by both stores, and go with the session."""
    one, other = stores
    for i in range(20):
        await one.append_ledger("t", "a", i, [b"entry %d" % i], [])
        one.note("t", SessionUse("a"), [], [Recorded(i, b"m%d" % i), Recorded(0, b"again %d" % i)])
        await one.stats()
    entries = await one.load_ledger("t", "a")
    record = await one.load_record("t", "a", 0, 99)
    assert (len(entries), len(record)) == (20, 20)
    await until(lambda: blobs_in(tmp_path), lambda count: count < 2 * 6)
    for store in (one, other):
        assert await store.load_ledger("t", "a") == entries
        assert await store.load_record("t", "a", 0, 99) == record
    await other.delete_session("t", "a")
    assert await blobs_in(tmp_path) == 0


async def blobs_in(folder: Path) -> int:
    """Count the blobs of a folder."""
    return sum(path.is_file() for path in (folder / "blobs").rglob("*"))


def test_any_calls_while_blobs_and_commits_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding all the time changes nothing that can be seen, by either of two stores."""
    monkeypatch.setattr(objects_fold, "LOOSE", 2)
    monkeypatch.setattr(objects_replica, "SNAPSHOT_EVERY", 7)
    monkeypatch.setattr(objects_replica, "GRACE", timedelta(seconds=1))
    monkeypatch.setattr(objects_writer, "expire_some", lambda turn, options, now: 0)  # the machine asks for that itself
    monkeypatch.setattr(StoreOptions, "sweep_period", 0.01)
    check_against_model(FolderPlace, share=10, steps=50)
