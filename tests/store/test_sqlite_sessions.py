"""How a session of another store gets its row."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from proxy.store.base import Mark, Movable, Session, SessionUse, StoreOptions
from proxy.store.memory import MemoryStore
from proxy.store.sqlite import SqliteStore
from tests.store.suite import Clock, key, original

pytestmark = pytest.mark.anyio

ROW = Session("a", "t", "key", 5.0, 7.0, "model", "chat", "deep", 3, 4, 50, 40, 2, 1, 6, 0, 0)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Movable]:
    """Open an empty store."""
    made: Movable = MemoryStore(StoreOptions(), Clock())
    if request.param == "sqlite":
        made = SqliteStore(tmp_path / "store.db", StoreOptions(), Clock())
    await made.open()
    yield made
    await made.close()


async def test_a_new_session_is_as_it_was_elsewhere(store: Movable) -> None:
    """Times and figures are taken over; what it holds is counted here."""
    await store.put_session(ROW, 9)
    assert await store.get_session("t", "a") == ROW
    await store.append_ledger("t", "a", 0, [b"entry"], [Mark(key("k"), 2)])
    assert [tip.newest for tip in await store.find_tips("t", [key("k")])] == [9]
    await store.put_session(structs.replace(ROW, reads=8), 1)
    session = await store.get_session("t", "a")
    assert session == structs.replace(ROW, reads=8, stored_bytes=5)
    assert [tip.newest for tip in await store.list_tips("t", ["a"])] == [9]


async def test_tombstones_without_originals(store: Movable) -> None:
    """A ref is refused that was never stored, and what was stored under one is dropped."""
    await store.put_originals("t", [original("r", "a")])
    await store.put_erased("t", ["r", "s"])
    assert sorted(await store.list_erased("t")) == ["r", "s"]
    assert await store.put_originals("t", [original("r", "a"), original("s", "a")]) == {"r", "s"}
    assert (await store.stats()).stored_bytes == 0


async def test_an_original_that_nobody_holds(store: Movable) -> None:
    """Without a ledger an original is stored and no session comes into being."""
    await store.put_originals("t", [original("r", "")])
    assert await store.get_original("t", "r") == original("r", "")
    assert (await store.stats()).sessions == 0
    store.note("u", SessionUse("a"), [], [])
    assert sorted(await store.tenants()) == ["t", "u"]
    assert await store.list_tips("nobody", ["a"]) == []
    assert await store.list_erased("nobody") == []


async def test_locks(store: Movable) -> None:
    """A lock has one holder, and tokens only grow."""
    assert await store.claim("t", "n", 10) == 1
    assert await store.claim("t", "n", 10) is None
    await store.release("t", "n", 7)
    assert await store.claim("t", "n", 10) is None
    await store.release("t", "n", 1)
    assert await store.claim("t", "n", 10) == 2
