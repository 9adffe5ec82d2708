"""The thread that writes the log: each commit is made once, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from proxy.errors import Unavailable
from proxy.store import objects_bucket, objects_writer
from proxy.store.base import Mark, SessionUse, StoreOptions
from proxy.store.objects import ObjectsStore
from tests.fakes.s3 import S3Server, Troublemaker
from tests.store.suite import Clock, key, original, until

pytestmark = pytest.mark.anyio


async def opened(url: str) -> ObjectsStore:
    """Open a store."""
    store = ObjectsStore(url, StoreOptions(), Clock())
    await store.open()
    return store


@pytest.fixture
def trouble(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Troublemaker]:
    """Give something that makes trouble in front of the server, and a store little patience."""
    if not s3.endpoint:
        pytest.skip("a server elsewhere is not made trouble with")
    monkeypatch.setattr(objects_bucket, "REQUEST", timedelta(seconds=0.4))
    monkeypatch.setattr(objects_bucket, "ANSWER", 1.0)
    monkeypatch.setattr(objects_writer, "ANSWER", 1.0)
    monkeypatch.setitem(objects_bucket._RETRY, "max_retries", 0)
    with Troublemaker(s3.endpoint) as troublemaker:
        yield troublemaker


async def test_a_lost_answer_is_not_counted_twice(s3: S3Server, trouble: Troublemaker) -> None:
    """A commit that was made, but of which the answer got lost, is found in the log and not made again."""
    store = await opened(s3.place(trouble.endpoint))
    trouble.trouble = "lost"
    store.note("t", SessionUse("a", received_tokens=7), [Mark(key("k"), 1)], [])
    with pytest.raises(Unavailable):
        await store._writer.settle()
    await until(lambda: asyncio.sleep(0, bool(store._backlog)), lambda waits: not waits)
    trouble.trouble = ""
    session = await store.get_session("t", "a")
    assert session is not None
    assert (session.calls, session.received_tokens) == (1, 7)
    await store.close()


async def test_many_changes_are_one_commit(tmp_path: Path) -> None:
    """What is asked for at the same time is written together, and each gets its own answer."""
    store = await opened(f"file://{tmp_path}")
    await store.put_originals("t", [original("r", "a")])
    before = len(list((tmp_path / "log").iterdir()))
    results = await asyncio.gather(
        *(store.put_fact("t", f"f{i}", b"1") for i in range(30)),
        store.append_ledger("t", "a", 7, [], []),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results] == ["NoneType"] * 30 + ["Conflict"]
    assert len(await store.facts("t")) == 30
    assert len(list((tmp_path / "log").iterdir())) - before < 5
    await store.close()


async def test_reading_writes_nothing(tmp_path: Path) -> None:
    """Looking, missing and being refused leave no commit."""
    store = await opened(f"file://{tmp_path}")
    await store.append_ledger("t", "a", 0, [b"e"], [Mark(key("k"), 1)])
    before = sorted(path.name for path in (tmp_path / "log").iterdir())
    await store.find_tips("t", [key("k")])
    await store.load_ledger("t", "a")
    await store.get_original("t", "r")
    await store.touch_originals("t", [])
    await store.expire(Clock().now)
    await store.ping()
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == before
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """After its end a store refuses instead of waiting."""
    store = await opened(f"file://{tmp_path}")
    await store.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.facts("t")
    store.note("t", SessionUse("a"), [], [])
