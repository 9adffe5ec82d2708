"""The embedded store."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.store.base import Store, StoreOptions
from proxy.store.sqlite import SqliteStore
from tests.store.suite import Place, StoreLaws, check_against_model


class SqlitePlace:
    """A file in a folder of its own."""

    shared = True

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="store-"))

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> Store:
        """Make a store on the file."""
        return SqliteStore(self.folder / "var" / "ullage.db", options, clock)

    def discard(self) -> None:
        """Delete the file."""
        shutil.rmtree(self.folder)


def test_any_calls() -> None:
    """Calls in any order leave the store in the state of the model."""
    check_against_model(SqlitePlace)


class TestLaws(StoreLaws):
    """The laws of every store."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        """Give each test a place of its own."""
        place = SqlitePlace()
        yield place
        place.discard()
