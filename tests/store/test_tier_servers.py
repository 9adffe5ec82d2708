"""A Redis server before a bucket, both real: what happens when one of them forgets, fills up, falls silent or fails."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from proxy.compaction import Compactor
from proxy.core.ledger import Compacted, Hidden, HiddenTurn
from proxy.counting import Counter
from proxy.errors import StoreError, Unavailable
from proxy.store import objects_bucket, objects_writer, open_store
from proxy.store.base import Mark, Movable, PageRequest, Recorded, SessionUse, StoreOptions
from proxy.store.tier import TierStore
from tests.fakes.s3 import S3Server, Troublemaker, contents
from tests.store.redis_servers import Server, everything, running
from tests.store.suite import Clock, key, original, until
from tests.test_breaking import Writer, order, preset, silence, talk
from tests.test_compaction import Desk, sent

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

PLANTED = b"a sentence that somebody wants to be gone for good"
COUNTER = Counter()
HIDDEN = Hidden(7, b"match", HiddenTurn((b"{}",), b"{}"))


@pytest.fixture
def server() -> Iterator[Server]:
    """Run a Redis server that the test may harm."""
    with running() as server:
        yield server


@pytest.fixture
def trouble(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Troublemaker]:
    """Give something that makes trouble in front of the bucket, and stores little patience."""
    if not s3.endpoint:
        pytest.skip("a server elsewhere is not made trouble with")
    monkeypatch.setattr(objects_bucket, "REQUEST", timedelta(seconds=0.4))
    monkeypatch.setattr(objects_bucket, "ANSWER", 1.0)
    monkeypatch.setattr(objects_writer, "ANSWER", 1.0)
    monkeypatch.setitem(objects_bucket._RETRY, "max_retries", 0)
    with Troublemaker(s3.endpoint) as troublemaker:
        yield troublemaker


@asynccontextmanager
async def opened(server: Server, place: str) -> AsyncIterator[TierStore]:
    """Open the two for a while."""
    store = open_store([server.url, place], StoreOptions(), clock=Clock())
    assert isinstance(store, TierStore)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def works(store: Movable) -> bool:
    """Whether a store takes writes."""
    try:
        await store.ping()
    except StoreError:
        return False
    return True


async def fill(store: TierStore) -> bytes:
    """Store a bit of everything; returns the secret."""
    secret = await store.secret(lambda: b"first")
    await store.put_originals("t", [original("r", "a", b"bytes of r")])
    await store.append_ledger("t", "a", 0, [b"e", b"f"], [Mark(key("k"), 3)])
    store.note("t", SessionUse("a", reads=1), [Mark(key("l"), 5)], [Recorded(0, b"m")])
    await store.put_fact("t", "fact", b"1")
    await store.stats()
    return secret


async def check_filled(store: Movable) -> None:
    """Find all of it."""
    assert await store.secret(lambda: b"another") == b"first"
    assert await store.facts("t") == {"fact": b"1"}
    assert await store.missing_originals("t", ["r"]) == frozenset()
    assert await store.get_original("t", "r") == original("r", "a", b"bytes of r")
    tips = await store.find_tips("t", [key("l"), key("k")])
    assert [(tip.ledger, tip.length, tip.version, tip.newest) for tip in tips] == [("a", 5, 2, 5), ("a", 3, 2, 5)]
    assert await store.load_ledger("t", "a") == [b"e", b"f"]


# -- Redis


def empty(server: Server) -> None:
    """Let a server forget everything, and go on."""
    server.client.flushall()


def restart(server: Server) -> None:
    """Kill a server and start it again without its data."""
    server.kill()
    server.start()


@pytest.mark.parametrize("forget", [empty, restart])
async def test_what_redis_forgot_comes_back(s3: S3Server, server: Server, forget: Callable[[Server], None]) -> None:
    """Secret, ledgers, tips, facts, originals: for those that were there before and for one that is started after."""
    place = s3.place()
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(opened(server, place)) for _ in range(2)]
        await fill(one)
        await check_filled(other)
        forget(server)
        await until(lambda: works(one._hot), bool)
        await until(lambda: works(other._hot), bool)
        third = await stack.enter_async_context(opened(server, place))
        for store in (one, third, other):
            await check_filled(store)
        assert await one.append_ledger("t", "a", 2, [b"g"], []) == 3
        for store in (other, third):
            assert [tip.version for tip in await store.find_tips("t", [key("k")])] == [3]
            assert await store.load_ledger("t", "a") == [b"e", b"f", b"g"]
        assert await third._hot.load_ledger("t", "a") == [b"e", b"f", b"g"]
        assert await third._hot.get_original("t", "r") == original("r", "a", b"bytes of r")


async def test_an_emptied_redis_is_noticed_by_a_ledger_without_entries(s3: S3Server, server: Server) -> None:
    """One store has seen a session without entries, another appends one: that is not forgotten with Redis."""
    place = s3.place()
    async with opened(server, place) as one, opened(server, place) as other:
        one.note("t", SessionUse("a"), [Mark(key("k"), 1)], [])
        await one.stats()
        for _ in range(2):
            assert [tip.version for tip in await other.find_tips("t", [key("k")])] == [0]
        await one.append_ledger("t", "a", 0, [b"e"], [])
        server.client.flushall()
        one.note("t", SessionUse("a"), [Mark(key("l"), 2)], [])
        await one.stats()
        assert [tip.version for tip in await one._hot.find_tips("t", [key("l")])] == [0]
        assert [tip.version for tip in await other.find_tips("t", [key("l")])] == [1]
        assert await other._hot.load_ledger("t", "a") == [b"e"]


async def test_an_emptied_redis_that_knows_one_branch_again_does_not_hide_the_other(
    s3: S3Server, server: Server
) -> None:
    """What it has learnt of one ledger since says nothing of another one that shares a beginning with that."""
    async with opened(server, s3.place()) as store:
        await store.append_ledger("t", "trunk", 0, [b"e"], [Mark(key("early"), 5)])
        await store.append_ledger("t", "branch", 0, [b"e", b"f"], [Mark(key("late"), 9)])
        server.client.flushall()
        assert [tip.ledger for tip in await store.find_tips("t", [key("early")])] == ["trunk"]
        assert [tip.ledger for tip in await store._hot.find_tips("t", [key("late"), key("early")])] == ["trunk"]
        tips = await store.find_tips("t", [key("later"), key("late"), key("early")])
        assert [tip.ledger for tip in tips] == ["branch", "trunk"]


@pytest.mark.parametrize("forget", [empty, restart])
async def test_a_compacted_conversation_goes_on(s3: S3Server, server: Server, forget: Callable[[Server], None]) -> None:
    """Compactions and hidden turns are there for the next request, which is sent as if nothing had happened."""
    place, writer = s3.place(), Writer(silence)
    async with opened(server, place) as one, opened(server, place) as other:
        compactors = [Compactor(store, b"s" * 32, COUNTER, StoreOptions()) for store in (one, other)]
        before = await compactors[0].compact(order(Desk(), talk(62), writer, chosen=preset()))
        assert before.compactions == 1
        await compactors[0].sessions.append_later("t", before.ledger, [HIDDEN])
        await one.stats()
        forget(server)
        await until(lambda: works(other._hot), bool)
        for compactor in compactors:
            again = await compactor.compact(order(Desk(), talk(62), writer, chosen=preset()))
            assert again.body == before.body
            assert HIDDEN in again.ledger.entries
            assert [type(entry) for entry in again.ledger.entries].count(Compacted) == 1
        longer = await compactors[1].compact(order(Desk(), talk(63), writer, chosen=preset()))
        assert sent(longer)[: len(sent(before))] == sent(before)


async def test_while_redis_is_away_everything_is_kept(s3: S3Server, server: Server) -> None:
    """Nothing is refused but erasure, which could not be complete; what came meanwhile is hot afterwards."""
    async with opened(server, s3.place()) as store:
        await fill(store)
        server.kill()
        await check_filled(store)
        assert await store.put_originals("t", [original("s", "a")]) == frozenset()
        assert await store.append_ledger("t", "a", 2, [b"g"], [Mark(key("m"), 6)]) == 3
        token = await store.claim("t", "lock", 60.0)
        assert token is not None
        with pytest.raises(Unavailable):
            await store.erase_original("t", "r")
        with pytest.raises(Unavailable):
            await store.delete_session("t", "b")
        server.start()
        await until(lambda: works(store._hot), bool)
        assert await store.claim("t", "lock", 60.0) is None
        assert [tip.version for tip in await store.find_tips("t", [key("m")])] == [3]
        assert await store._hot.load_ledger("t", "a") == [b"e", b"f", b"g"]
        assert await store.get_original("t", "s") == original("s", "a")
        await store.erase_original("t", "s")
        assert await store.missing_originals("t", ["r", "s"]) == frozenset()


async def test_a_full_redis_is_told_once(s3: S3Server, server: Server) -> None:
    """Everything is stored and read on; erasing and deleting make room; with room it is hot again."""
    place = s3.place()
    with capture_logs() as logs:
        async with opened(server, place) as store:
            await fill(store)
            server.client.config_set("maxmemory", "1")
            for number in range(5):
                ref, name = f"s{number}", key(f"n{number}")
                await store.put_originals("t", [original(ref, "b", os.urandom(500) + PLANTED)])
                await store.append_ledger("t", "b", number, [b"%d" % number], [Mark(name, number)])
                store.note("t", SessionUse("b"), [], [])
                assert [tip.version for tip in await store.find_tips("t", [name])] == [number + 1]
                assert await store.get_original("t", ref) is not None
            await check_filled(store)
            assert await store.erase_original("t", "r")
            assert await store.delete_session("t", "a")
            assert b"bytes of r" not in everything(server.client)
            server.client.config_set("maxmemory", "0")
            assert len(await store.load_ledger("t", "b")) == 5
            await store.put_fact("t", "more", b"2")
            assert await store._hot.load_ledger("t", "b") == [b"%d" % number for number in range(5)]
    told = [log["event"] for log in logs if log["event"].startswith("hot_store")]
    assert told == ["hot_store_fails", "hot_store_works_again"]
    assert [log["reason"] for log in logs if log["event"] == "hot_store_fails"] == [
        "Redis has used up its memory (maxmemory)"
    ]


async def test_a_frozen_redis_holds_nothing_up(s3: S3Server, server: Server) -> None:
    """Each call goes on without it, and what was changed meanwhile is hot when it goes on."""
    async with opened(server, s3.place()) as store:
        await fill(store)
        server.freeze()
        try:
            await check_filled(store)
            await store.put_originals("t", [original("s", "a")])
            await store.append_ledger("t", "a", 2, [b"g"], [Mark(key("m"), 6)])
            store.note("t", SessionUse("a"), [Mark(key("n"), 7)], [])
        finally:
            server.thaw()
        await until(lambda: works(store._hot), bool)
        tips = await store.find_tips("t", [key("m"), key("n")])
        assert [(tip.length, tip.version) for tip in tips] == [(6, 3), (7, 3)]
        assert await store._hot.load_ledger("t", "a") == [b"e", b"f", b"g"]
        session = await store.get_session("t", "a")
        assert session is not None
        assert session.calls == 2


# -- the bucket


@pytest.mark.parametrize("kind", ["500", "403", "silent"])
async def test_without_the_bucket(s3: S3Server, trouble: Troublemaker, server: Server, kind: str) -> None:
    """Nothing new is stored, but what is hot is still read; afterwards everything goes on, and nothing is lost."""
    async with opened(server, s3.place(trouble.endpoint)) as store:
        await fill(store)
        trouble.trouble = kind
        for call in (
            store.put_originals("t", [original("s", "a")]),
            store.append_ledger("t", "a", 2, [b"g"], []),
            store.put_fact("t", "other", b"1"),
            store.erase_original("t", "r"),
            store.ping(),
            store.list_sessions("t", PageRequest()),
            store.claim("t", "lock", 1.0),
        ):
            with pytest.raises(Unavailable):
                await call
        store.note("t", SessionUse("a"), [Mark(key("noted"), 9)], [Recorded(1, b"n")])
        assert await store.get_original("t", "r") == original("r", "a", b"bytes of r")
        assert [tip.version for tip in await store.find_tips("t", [key("l"), key("k")])] == [2, 2]
        assert [tip.length for tip in await store.find_tips("t", [key("noted")])] == [9]
        assert await store.find_tips("t", [key("unknown")]) == []
        assert await store.load_ledger("t", "a") == [b"e", b"f"]
        assert await store.load_ledger("t", "a", 2) == []
        assert await store.facts("t") == {"fact": b"1"}
        assert await store.secret(lambda: b"second") == b"first"
        trouble.trouble = ""
        await until(lambda: works(store), bool)
        assert await store.append_ledger("t", "a", 2, [b"g"], []) == 3
        assert await store.put_originals("t", [original("s", "a")]) == frozenset()
        assert await store.load_record("t", "a", 0, 9) == [Recorded(0, b"m"), Recorded(1, b"n")]
        assert (await store.stats()).dropped == 0


async def test_a_slow_bucket_is_not_asked_for_what_is_hot(s3: S3Server, trouble: Troublemaker, server: Server) -> None:
    """Tips and ledgers of a conversation come from Redis alone; what has to wait for the bucket waits, and is done."""
    async with opened(server, s3.place(trouble.endpoint)) as store:
        await fill(store)
        await check_filled(store)
        await store.stats()
        trouble.trouble = "slow"
        asked = trouble.requests
        for _ in range(5):
            await store.find_tips("t", [key("l"), key("k")])
            await store.load_ledger("t", "a")
        assert trouble.requests == asked
        await store.put_originals("t", [original("s", "a")])
        assert await store.append_ledger("t", "a", 2, [b"g"], []) == 3
        assert trouble.requests > asked


# -- erasure


@pytest.mark.parametrize("where", ["both", "redis alone", "bucket alone"])
async def test_erased_bytes_are_nowhere(s3: S3Server, server: Server, where: str) -> None:
    """After an erasure neither a key of Redis nor an object of the bucket holds a byte, and it does not come back."""
    place = s3.place()
    async with opened(server, place) as store:
        holder: Movable = {"both": store, "redis alone": store._hot, "bucket alone": store._durable}[where]
        await holder.put_originals("t", [original("r", "a", PLANTED)])
        assert (PLANTED in everything(server.client), PLANTED in contents(place)) == (
            where != "bucket alone",
            where != "redis alone",
        )
        assert await store.erase_original("t" if where == "both" else None, "r")
        await store.get_original("t", "r")
        assert await store.put_originals("t", [original("r", "a", PLANTED)]) == {"r"}
        assert PLANTED not in everything(server.client)
        assert PLANTED not in contents(place)
        server.client.flushall()
        assert await store.put_originals("t", [original("r", "a", PLANTED)]) == {"r"}


async def test_a_deleted_session_is_nowhere(s3: S3Server, server: Server) -> None:
    """Its entries, record, originals and name are gone from both."""
    place = s3.place()
    async with opened(server, place) as store:
        await store.put_originals("t", [original("r", "session-x", PLANTED)])
        await store.append_ledger("t", "session-x", 0, [PLANTED], [Mark(key("k"), 1)])
        store.note("t", SessionUse("session-x"), [], [Recorded(0, PLANTED)])
        await store.stats()
        assert everything(server.client).count(PLANTED) >= 2
        assert contents(place).count(PLANTED) == 3
        assert await store.delete_session(None, "session-x")
        assert PLANTED not in everything(server.client)
        assert PLANTED not in contents(place)
        assert b"session-x" not in everything(server.client)
