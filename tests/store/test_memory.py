"""The store in memory keeps the laws of every store, and its own bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from proxy.errors import Full
from proxy.store import memory
from proxy.store.base import Mark, Movable, PageRequest, Recorded, SessionUse, StoreOptions
from proxy.store.memory import MemoryStore
from tests.store.machine import check_against_model
from tests.store.suite import Clock, Place, StoreLaws, key, original

pytestmark = pytest.mark.anyio


class MemoryPlace:
    """Every store is a place of its own."""

    shared = False

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> Movable:
        """Make a store."""
        return MemoryStore(options, clock)

    def discard(self) -> None:
        """Nothing is left."""


def test_any_calls() -> None:
    """Calls in any order leave the store in the state of the model."""
    check_against_model(MemoryPlace)


class TestLaws(StoreLaws):
    """The laws of every store."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        """Give each test a place of its own."""
        place = MemoryPlace()
        yield place
        place.discard()


async def test_locks_that_have_ended_take_no_room() -> None:
    """A claim takes away those whose time is over, whatever their name."""
    clock = Clock()
    store = MemoryStore(StoreOptions(), clock)
    for number in range(5):
        await store.claim("t", f"lock{number}", 1.0)
        clock.now += 1.0
    assert len(store._claims) == 1


async def test_memory_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over its bound the store refuses originals, and drops records."""
    monkeypatch.setattr(memory, "MOST_BYTES", 100)
    store = MemoryStore(StoreOptions(), Clock())
    store.note("t", SessionUse("a"), [], [Recorded(0, b"x" * 60)])
    store.note("t", SessionUse("a"), [], [Recorded(1, b"x" * 60)])
    assert [message.index for message in await store.load_record("t", "a", 0, 9)] == [0]
    await store.put_originals("t", [original("r", "a", b"x" * 40)])
    with pytest.raises(Full, match="memory"):
        await store.put_originals("u", [original("s", "a", b"x")])
    assert (await store.stats()).dropped == 1


async def test_the_session_idle_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are bounded as well: the least used one goes, with its tips."""
    monkeypatch.setattr(memory, "MOST_SESSIONS", 2)
    clock = Clock()
    store = MemoryStore(StoreOptions(), clock)
    for name in ("a", "b", "a", "c"):
        clock.now += 1
        store.note("t", SessionUse(name), [Mark(key(name), 1)], [])
    assert [session.id for session in (await store.list_sessions(None, PageRequest())).data] == ["c", "a"]
    assert [tip.ledger for tip in await store.find_tips("t", [key(name) for name in "abc"])] == ["a", "c"]
