"""Where the gateway remembers: one protocol (`base`), several stores, chosen by URL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from proxy.errors import ConfigError
from proxy.store.base import Clock, Movable, Store, StoreOptions
from proxy.store.memory import MemoryStore
from proxy.store.redis_address import SCHEMES, Address, parse_address
from proxy.store.sealing import Codec
from proxy.store.sqlite import SqliteStore
from proxy.store.tier import TierStore

__all__ = ["Store", "StoreOptions", "open_store"]

POSSIBLE = (
    'use "sqlite:///var/ullage.db" (a path from the working folder), "sqlite:////path/to/file.db", '
    '"redis://host:6379/0", "redis+sentinel://host,host/service", "redis+cluster://host,host", '
    '"s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix", "file:///path/to/folder", "memory:", '
    "or a list of two: a quick one, then a durable one"
)
OBJECTS = ("s3", "gs", "az", "file")


def open_store(url: str | Sequence[str], options: StoreOptions, *, clock: Clock = time.time) -> Movable:
    """Make the store that a URL names, or the tier that two name; it is connected by its `open`.

    Raises ConfigError for an unknown one, for one that needs a package which is not installed, and for wrong keys.
    """
    Codec(options.encryption_keys)  # a store without bytes at rest does not look at its keys
    urls = [url] if isinstance(url, str) else list(url)
    if len(urls) == 2:
        return TierStore(_open_one(urls[0], options, clock), _open_durable(urls[1], options, clock))
    if len(urls) != 1:
        raise _wrong(f"{len(urls)} URLs are given, and a list has one or two")
    return _open_one(urls[0], options, clock)


def _open_one(url: str, options: StoreOptions, clock: Clock) -> Movable:
    scheme, colon, rest = url.partition(":")
    if scheme == "memory" and rest in ("", "//"):
        return MemoryStore(options, clock)
    if scheme == "sqlite":
        return SqliteStore(_sqlite_path(rest), options, clock)
    if scheme in SCHEMES:
        from proxy.store.redis import RedisStore  # noqa: PLC0415 - its client takes longer to import than all stores

        return RedisStore(_redis_address(url), options, clock)
    if scheme in OBJECTS and colon:
        return _objects(url, options, clock)
    raise _wrong(f'the scheme "{scheme}:" is not known' if colon else "this is no URL")


def _open_durable(url: str, options: StoreOptions, clock: Clock) -> Movable:
    if url.startswith("memory:"):
        raise _wrong("the second of two stores is the durable one, which memory: is not")
    return _open_one(url, options, clock)


def _objects(url: str, options: StoreOptions, clock: Clock) -> Movable:
    if find_spec("obstore") is None:
        raise _wrong("object stores need another package; install ullage[s3]")
    from proxy.store.objects import ObjectsStore  # noqa: PLC0415  # of an extra

    try:
        return ObjectsStore(url, options, clock)
    except ConfigError as error:
        raise _wrong(error.message.removeprefix("store.url: ")) from None


def _sqlite_path(rest: str) -> Path:
    """Return the file of `sqlite:///relative` or `sqlite:////absolute`."""
    path = rest.removeprefix("///")
    if path == rest:
        raise _wrong('"sqlite:" is followed by three slashes and a path')
    if not path or path.endswith("/") or "\0" in path:
        raise _wrong("the path names no file")
    return Path(path)


def _redis_address(url: str) -> Address:
    try:
        return parse_address(url)
    except ValueError as error:
        raise _wrong(str(error)) from None


def _wrong(what: str) -> ConfigError:
    return ConfigError(f"store.url: {what}; {POSSIBLE}", param="store.url")
