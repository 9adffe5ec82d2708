"""Places for the shared suite: folders, prefixes on a server, files; plain or encrypted."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from proxy.store import open_store
from proxy.store.base import Movable, StoreOptions
from proxy.store.objects import ObjectsStore
from proxy.store.redis import RedisStore
from proxy.store.redis_address import parse_address
from proxy.store.sqlite import SqliteStore
from proxy.store.tier import TierStore
from tests.store.redis_servers import PASSPHRASE, RedisPlace, Server


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


class ServersPlace:
    """A prefix on a Redis server before one in a bucket, opened by their URLs."""

    shared = True

    def __init__(self, redis: RedisPlace, durable: ServerPlace) -> None:
        self.redis = redis
        self.durable = durable

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> Movable:
        """Make a store on both."""
        return open_store([self.redis.url, self.durable.url], options, clock=clock)

    def discard(self) -> None:
        """Delete both."""
        self.redis.discard()
        self.durable.discard()


class ForgetfulPlace:
    """A Redis server before a folder; the machine empties the server whenever it likes."""

    shared = True

    def __init__(self, server: Server) -> None:
        self.durable = FolderPlace()
        self._server = server

    def forget(self) -> None:
        """Empty the server."""
        self._server.client.flushall()

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> TierStore:
        """Make a store on both."""
        hot = RedisStore(parse_address(self._server.url), options, clock)
        return TierStore(hot, self.durable.store(options, clock))

    def discard(self) -> None:
        """Empty the server, and delete the folder."""
        self.forget()
        self.durable.discard()


class TierPlace:
    """A file before a folder."""

    shared = True

    def __init__(self, durable: FolderPlace) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="store-"))
        self.durable = durable

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> TierStore:
        """Make a store on both."""
        return TierStore(SqliteStore(self.folder / "hot.db", options, clock), self.durable.store(options, clock))

    def discard(self) -> None:
        """Delete both."""
        shutil.rmtree(self.folder)
        self.durable.discard()
