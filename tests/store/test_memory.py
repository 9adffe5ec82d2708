"""The store in memory keeps the laws of every store, and its own bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from proxy.store.base import Store, StoreOptions
from proxy.store.memory import MemoryStore
from tests.store.machine import check_against_model
from tests.store.suite import Place, StoreLaws


class MemoryPlace:
    """Every store is a place of its own."""

    shared = False

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> Store:
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
