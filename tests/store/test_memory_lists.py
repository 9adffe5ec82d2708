"""How the store in memory finds and shows things."""

from __future__ import annotations

from msgspec import Struct

from proxy.store.base import PageRequest
from proxy.store.memory_lists import page_of, things_of


class Thing(Struct):
    """Something with a number."""

    number: int


def test_a_name_is_looked_up_for_one_tenant_or_for_all() -> None:
    """The administration finds what several tenants have under one name."""
    things = {("t", "a"): 1, ("u", "a"): 2, ("u", "b"): 3}
    assert things_of(things, "t", "a") == [1]
    assert things_of(things, "t", "b") == []
    assert things_of(things, None, "a") == [1, 2]


def test_pages_follow_each_other() -> None:
    """Whole pages have a cursor, the last one has none, and nothing is shown twice."""
    things = [Thing(number) for number in (3, 1, 2)]
    first, cursor = page_of(things, PageRequest(2))
    last, end = page_of(things, PageRequest(2, cursor))
    assert ([thing.number for thing in first], [thing.number for thing in last], end) == ([3, 2], [1], None)
