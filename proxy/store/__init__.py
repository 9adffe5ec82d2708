"""Where the gateway remembers: one protocol (`base`), several stores, chosen by URL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from proxy.errors import ConfigError
from proxy.store.base import Clock, Store, StoreOptions
from proxy.store.memory import MemoryStore
from proxy.store.sqlite import SqliteStore

__all__ = ["Store", "StoreOptions", "open_store"]

POSSIBLE = 'use "sqlite:///var/ullage.db" (a path from the working folder), "sqlite:////path/to/file.db" or "memory:"'


def open_store(url: str | Sequence[str], options: StoreOptions, *, clock: Clock = time.time) -> Store:
    """Make the store that a URL names; it is connected by its `open`. Raises ConfigError for an unknown one."""
    urls = [url] if isinstance(url, str) else list(url)
    if len(urls) != 1:
        raise _wrong(f"{len(urls)} URLs are given, and these stores cannot be combined")
    scheme, colon, rest = urls[0].partition(":")
    if scheme == "memory" and rest in ("", "//"):
        return MemoryStore(options, clock)
    if scheme == "sqlite":
        return SqliteStore(_sqlite_path(rest), options, clock)
    raise _wrong(f'the scheme "{scheme}:" is not known' if colon else "this is no URL")


def _sqlite_path(rest: str) -> Path:
    """Return the file of `sqlite:///relative` or `sqlite:////absolute`."""
    path = rest.removeprefix("///")
    if path == rest:
        raise _wrong('"sqlite:" is followed by three slashes and a path')
    if not path or path.endswith("/") or "\0" in path:
        raise _wrong("the path names no file")
    return Path(path)


def _wrong(what: str) -> ConfigError:
    return ConfigError(f"store.url: {what}; {POSSIBLE}", param="store.url")
