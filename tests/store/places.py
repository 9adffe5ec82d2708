"""Places for the shared suite: folders, prefixes on a server, files; plain or encrypted."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from proxy.store.base import StoreOptions
from proxy.store.objects import ObjectsStore
from proxy.store.sqlite import SqliteStore
from proxy.store.tier import TierStore

PASSPHRASE = "correct horse battery staple"


class FolderPlace:
    """A folder of objects."""

    shared = True

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="store-"))

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> ObjectsStore:
        """Make a store in the folder."""
        return ObjectsStore(f"file://{self.folder}/place", options, clock)

    def discard(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder)


class EncryptedFolderPlace(FolderPlace):
    """A folder of encrypted objects."""

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> ObjectsStore:
        """Make a store with a key."""
        return super().store(structs.replace(options, encryption_keys=(PASSPHRASE,)), clock)


class ServerPlace:
    """A prefix on a server."""

    shared = True

    def __init__(self, url: str) -> None:
        self.url = url

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> ObjectsStore:
        """Make a store on the server."""
        return ObjectsStore(self.url, options, clock)

    def discard(self) -> None:
        """Leave it: the server goes with all that it has."""


class EncryptedFilePlace:
    """An encrypted file."""

    shared = True

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="store-"))

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> SqliteStore:
        """Make a store with a key."""
        return SqliteStore(self.folder / "store.db", structs.replace(options, encryption_keys=(PASSPHRASE,)), clock)

    def discard(self) -> None:
        """Delete the file."""
        shutil.rmtree(self.folder)


class TierPlace:
    """A file before a folder or a server."""

    shared = True

    def __init__(self, durable: FolderPlace | ServerPlace) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="store-"))
        self.durable = durable

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> TierStore:
        """Make a store on both."""
        return TierStore(SqliteStore(self.folder / "hot.db", options, clock), self.durable.store(options, clock))

    def discard(self) -> None:
        """Delete both."""
        shutil.rmtree(self.folder)
        self.durable.discard()
