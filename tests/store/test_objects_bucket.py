"""Objects below one place: conditional puts, lists, deletions, and what errors say."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxy.errors import Unavailable
from proxy.store import objects_bucket
from proxy.store.base import StoreOptions
from proxy.store.objects import ObjectsStore
from proxy.store.objects_bucket import Bucket
from tests.fakes.s3 import S3Server
from tests.store.suite import Clock, original

pytestmark = pytest.mark.anyio


async def opened(url: str) -> ObjectsStore:
    """Open a store."""
    store = ObjectsStore(url, StoreOptions(), Clock())
    await store.open()
    return store


async def test_nobody_there(monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> None:
    """Without a server, or without the bucket, opening says so; the store may be used later all the same."""
    monkeypatch.setitem(objects_bucket._RETRY, "max_retries", 0)
    for place in ("s3://bucket/x?endpoint=http://127.0.0.1:1", f"s3://nowhere/x?endpoint={s3.endpoint}"):
        if not s3.endpoint:
            continue
        store = ObjectsStore(place, StoreOptions(), Clock())
        with pytest.raises(Unavailable, match="no such bucket" if "nowhere" in place else "failed to"):
            await store.open()
        with pytest.raises(Unavailable):
            await store.put_originals("t", [original("r", "a")])
        await store.close()


@pytest.fixture(params=["folder", "server"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    """Give an empty place, of both kinds."""
    if request.param == "folder":
        return Bucket(f"file://{tmp_path}/place")
    server: S3Server = request.getfixturevalue("s3")
    return Bucket(server.place())


def test_of_two_puts_one_is_first(bucket: Bucket) -> None:
    """Of puts of one key that must be new, one succeeds and the others are told, side by side too."""
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda i: bucket.create("log/1", b"%d" % i), range(8)))
    assert sum(results) == 1
    assert bucket.get("log/1") == b"%d" % results.index(True)
    assert bucket.get("log/2") is None


def test_lists_are_in_order_and_deletions_complete(bucket: Bucket) -> None:
    """What is listed is sorted and stays below the prefix; deleting what is not there is no error."""
    bucket.put_all({f"a/{i:03d}": b"x" for i in range(30)} | {"ab": b"y"})
    keys = [found.key for part in bucket.walk("a") for found in part]
    assert keys == [f"a/{i:03d}" for i in range(30)]
    bucket.delete(["a/000", "a/nothing", "a/001"])
    assert bucket.get("a/001") is None
    bucket.delete_below("a")
    assert [found.key for part in bucket.walk("a") for found in part] == []
    assert bucket.get("ab") == b"y"


async def test_objects_side_by_side(bucket: Bucket) -> None:
    """Puts and gets of the event loop carry any bytes."""
    objects = {f"b/{i}": bytes([i]) * i * 9000 for i in range(20)}
    await bucket.aput(objects)
    assert await bucket.aget([*objects, "b/none"]) == [*objects.values(), None]
    await bucket.adelete(list(objects))
    assert await bucket.aget(["b/1"]) == [None]


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """What stands in the way of a folder is told with its place."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match=f"the store at file://{tmp_path}/file/place failed to write"):
        Bucket(f"file://{tmp_path}/file/place").create("log/1", b"x")
