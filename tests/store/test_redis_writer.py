"""How the Redis store writes behind and sweeps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
from structlog.testing import capture_logs

from proxy.errors import Unavailable
from proxy.store import redis_changes, redis_writer
from proxy.store.backlog import Batch, Note
from proxy.store.base import Mark, PageRequest, Recorded, SessionUse, StoreOptions
from proxy.store.redis import RedisStore
from proxy.store.redis_address import parse_address
from tests.store.redis_servers import Server, running
from tests.store.suite import IDLE_TTL, Clock, key, original, until

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


@pytest.fixture
def server() -> Iterator[Server]:
    """Run a server."""
    with running() as server:
        yield server


@pytest.fixture
async def store(server: Server) -> AsyncIterator[RedisStore]:
    """Open a store on it."""
    store = RedisStore(parse_address(server.url), StoreOptions(idle_ttl=IDLE_TTL), Clock())
    await store.open()
    yield store
    await store.close()


async def test_a_batch_is_cut(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk belongs to one tenant and is small, whatever waits; together they hold all of it."""
    monkeypatch.setattr(redis_writer, "CHUNK_NOTES", 3)
    monkeypatch.setattr(redis_writer, "CHUNK_BYTES", 100)
    monkeypatch.setattr(redis_writer, "CHUNK_TOUCHES", 2)
    batch = Batch()
    for number in range(10):
        batch.add(Note("t", SessionUse(f"s{number}"), (), (), 0.0))
    for number in range(4):
        batch.add(Note("u", SessionUse(f"s{number}"), (), (Recorded(0, b"x" * 60),), 0.0))
    batch.touches = {("v", f"r{number}"): 0.0 for number in range(5)}
    chunks = store._writer._chunks_of(batch)
    assert {tenant: [chunk.notes for chunk in some] for tenant, some in chunks.items()} == {
        "t": [3, 3, 3, 1],
        "u": [2, 2],
        "v": [0, 0, 0],
    }
    numbers = [chunk.number for some in chunks.values() for chunk in some]
    assert len(set(numbers)) == len(numbers)


async def test_much_is_written_in_parts(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes beyond one chunk all arrive, in order."""
    monkeypatch.setattr(redis_writer, "CHUNK_NOTES", 7)
    for number in range(100):
        store.note("t", SessionUse(f"s{number}"), [Mark(key("k"), number)], [Recorded(0, b"%d" % number)])
    listed = (await store.list_sessions("t", PageRequest())).data
    assert [session.id for session in listed] == [f"s{number}" for number in reversed(range(100))]
    assert [tip.ledger for tip in await store.find_tips("t", [key("k")])] == ["s0"]


async def test_trouble_is_told_once(server: Server, store: RedisStore) -> None:
    """The log says when notes cannot be written and when they can again, and they are written by themselves."""
    await store.ping()
    with capture_logs() as logs:
        server.kill()
        store.note("t", SessionUse("a"), [Mark(key("k"), 1)], [])

        async def events() -> list[str]:
            return [log["event"] for log in logs if log["event"].startswith("store_")]

        await until(events, lambda found: found == ["store_fails"])
        server.start()
        await until(events, lambda found: found == ["store_fails", "store_works_again"])
    assert server.client.hget("ullage:{t.t}:l:a", "calls") == b"1"


async def test_the_end_comes_although_a_cancellation_is_lost(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing does not wait for ever for a sweep whose client was just done when it was cancelled."""
    store = RedisStore(parse_address(server.url), StoreOptions(idle_ttl=0.2), Clock())
    await store.open()
    begun, tenants = asyncio.Event(), store._queries.tenants

    async def deaf() -> list[str]:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        return await tenants()

    monkeypatch.setattr(store._queries, "tenants", deaf)
    await begun.wait()
    async with asyncio.timeout(10):
        await store.close()


async def test_a_full_backlog_is_counted(server: Server, store: RedisStore) -> None:
    """What waits for a server that stays away is dropped at the end, and counted."""
    server.kill()
    for number in range(5):
        store.note("t", SessionUse(f"s{number}"), [], [])
    with pytest.raises(Unavailable):
        await store.get_session("t", "s0")
    await store.close()
    assert store._backlog.dropped == 5


async def test_a_step_is_bounded(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of an expiry drops so many things, or holds so many originals in hand, and says that there is more."""
    for number in range(6):
        await store.put_originals("t", [original(f"r{number}.{i}", f"s{number}") for i in range(3)])
    later = Clock().now + 10 * IDLE_TTL
    monkeypatch.setattr(redis_changes, "STEP_THINGS", 2)
    assert await store._changes.expire_step("t", later) == (4, True)  # two sessions, two originals
    monkeypatch.setattr(redis_changes, "STEP_WORK", 1)
    assert await store._changes.expire_step("t", later) == (3, True)  # one session, which is too much already
    assert await store.expire(later) == 6 * 4 - 7
    assert (await store.stats()).stored_bytes == 0
