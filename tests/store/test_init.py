"""Which URL opens which store."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.store import StoreOptions, open_store
from proxy.store.memory import MemoryStore
from proxy.store.sqlite import SqliteStore
from tests.store.redis_servers import RedisPlace
from tests.store.suite import key, original

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("url", ["memory:", "memory://", ["memory:"]])
def test_memory(url: str | list[str]) -> None:
    """`memory:` is the store that forgets, also as the only one of a list."""
    assert isinstance(open_store(url, StoreOptions()), MemoryStore)


@pytest.mark.parametrize("name", ["store.db", "deep/er/store.db", "with space & 50%?.db", "größer.db"])
async def test_an_absolute_path(tmp_path: Path, name: str) -> None:
    """Four slashes name a file from the root; folders that are missing are made."""
    store = open_store(f"sqlite:///{tmp_path / name}", StoreOptions())
    await store.open()
    await store.put_originals("t", [original("r", "a")])
    assert await store.get_original("t", "r") == original("r", "a")
    assert await store.find_tips("t", [key("k")]) == []
    await store.close()
    assert (tmp_path / name).is_file()


async def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes name a file from the working folder."""
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///var/ullage.db", StoreOptions())
    assert isinstance(store, SqliteStore)
    await store.open()
    await store.close()
    assert (tmp_path / "var" / "ullage.db").is_file()


@pytest.mark.redis
async def test_redis(redis_url: str) -> None:
    """A URL of Redis opens the store on it."""
    place = RedisPlace(redis_url)
    store = open_store(place.url, StoreOptions())
    await store.open()
    await store.put_fact("t", "f", b"v")
    assert await store.facts("t") == {"f": b"v"}
    await store.close()
    place.discard()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("mysql://host/db", '"mysql:" is not known'),
        ("ullage.db", "no URL"),
        ("", "no URL"),
        ("sqlite:ullage.db", "three slashes"),
        ("sqlite://ullage.db", "three slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///folder/", "names no file"),
        (["sqlite:///x.db", "memory:"], "the durable one, which memory: is not"),
        (["memory:", "memory:", "memory:"], "3 URLs"),
        ("redis:", "two slashes"),
        ("redis+unknown://host", '"redis.unknown:" is not known'),
        (["redis://host", "memory:"], "the durable one, which memory: is not"),
        ([], "0 URLs"),
        ("s3:bucket", "followed by a bucket"),
        ("s3:///prefix", "followed by a bucket"),
        ("s3://key:secret@bucket/prefix", "credentials come from"),
        ("s3://bucket/a/../b", "no dots alone"),
        ("s3://bucket/%2e%2e/b", "no dots alone"),
        ("s3://bucket/prefix?endpoint=host:9000", "begins with http"),
        ("s3://bucket/prefix?path_style=perhaps", "path_style is true or false"),
        ("s3://bucket/prefix?password=x", "password is no parameter"),
        ("gs://bucket/prefix?region=x", "only s3 URLs"),
        ("file://relative/folder", "three slashes"),
        ("file:///", "three slashes"),
    ],
)
def test_anything_else_is_refused(url: str | list[str], what: str) -> None:
    """The message names the key, what is wrong with it, and what is possible."""
    with pytest.raises(ConfigError, match=what) as caught:
        open_store(url, StoreOptions())
    assert caught.value.message.startswith("store.url: ")
    assert 'use "sqlite:///var/ullage.db"' in caught.value.message
    assert caught.value.param == "store.url"
