"""How a tier notices what its hot store has lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.store.base import Mark, StoreOptions, Tip
from proxy.store.memory import MemoryStore
from proxy.store.objects import ObjectsStore
from proxy.store.tier_life import glance, lacks, name_life
from tests.store.suite import Clock, key

pytestmark = pytest.mark.anyio


async def test_a_life_has_one_name_until_the_store_is_emptied() -> None:
    """All who ask get the same one, and another one afterwards."""
    hot = MemoryStore(StoreOptions(), Clock())
    name = await name_life(hot)
    assert await name_life(hot) == name
    hot._facts.clear()
    later = await name_life(hot)
    assert later != name
    assert await name_life(hot) == later


async def test_a_glance_asks_nobody(tmp_path: Path) -> None:
    """A copy says what it knows until it is asked for more; a store without one is asked."""
    memory = MemoryStore(StoreOptions(), Clock())
    await memory.append_ledger("t", "a", 0, [b"e"], [Mark(key("k"), 1)])
    assert await glance(memory, "t", [key("k")]) == [Tip(key("k"), "a", 1, 1, 1)]
    one, other = (ObjectsStore(f"file://{tmp_path}", StoreOptions(), Clock()) for _ in range(2))
    await one.open()
    await other.open()
    await one.append_ledger("t", "a", 0, [b"e"], [Mark(key("k"), 1)])
    assert await glance(one, "t", [key("k")]) == [Tip(key("k"), "a", 1, 1, 1)]
    assert await glance(other, "t", [key("k")]) == []
    await other.find_tips("t", [key("k")])
    assert await glance(other, "t", [key("k")]) == [Tip(key("k"), "a", 1, 1, 1)]
    await one.close()
    await other.close()


@pytest.mark.parametrize(
    ("kept", "is_behind"),
    [
        (Tip(key("k"), "a", 5, 2, 9), False),
        (Tip(key("k"), "a", 4, 1, 8), False),
        (Tip(key("l"), "a", 5, 2, 9), True),
        (Tip(key("k"), "b", 5, 2, 9), True),
        (Tip(key("k"), "a", 5, 3, 9), True),
        (Tip(key("k"), "a", 5, 2, 10), True),
    ],
)
def test_what_the_hot_store_lacks(kept: Tip, is_behind: bool) -> None:
    """Keys, the ledgers that they belong to, and how far these have come; not what it knows beyond that."""
    assert lacks({key("k"): Tip(key("k"), "a", 5, 2, 9)}, kept) is is_behind
