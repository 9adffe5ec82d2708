"""A bounded memo for pure functions: two generations of a dict, so that a hit costs one look-up.

When the young generation is full the old one is dropped and the young takes its place. What is used again in time moves
back to the young one. Nothing here depends on time or on sessions, so memory is bounded whatever the clients do.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Remembers up to about twice `capacity` units of weight (by default, of entries)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._weight = 0

    def get(self, key: K) -> V | None:
        """Return what was kept under the key, or None."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Keep a value; `weight` is its share of the capacity."""
        self._young[key] = value
        self._weight += weight
        if self._weight > self._capacity:
            self._old, self._young, self._weight = self._young, {}, 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
