"""Two stores as one keep the laws of every store, and survive the loss of either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from proxy.errors import Conflict, StoreError, Unavailable
from proxy.store import objects_bucket, objects_writer
from proxy.store.base import Erased, Mark, Movable, Original, Recorded, SessionUse, StoreOptions
from proxy.store.memory import MemoryStore
from proxy.store.objects import ObjectsStore
from proxy.store.sqlite import SqliteStore
from proxy.store.tier import TierStore
from tests.fakes.s3 import S3Server, Troublemaker
from tests.store.machine import check_against_model
from tests.store.places import FolderPlace, ForgetfulPlace, ServerPlace, ServersPlace, TierPlace
from tests.store.redis_servers import RedisPlace, running
from tests.store.suite import Clock, Place, SharedLaws, key, original, until

pytestmark = pytest.mark.anyio

PLANTED = b"a sentence that somebody wants to be gone for good"


def test_any_calls() -> None:
    """Calls in any order leave the store in the state of the model."""
    check_against_model(lambda: TierPlace(FolderPlace()), share=12, steps=50)


@pytest.mark.redis
def test_any_calls_while_the_hot_store_is_emptied() -> None:
    """Nobody notices that a Redis server forgets everything between any two calls."""
    with running() as server:
        check_against_model(lambda: ForgetfulPlace(server), share=12, steps=50)


class TestLaws(SharedLaws):
    """The laws of every store that outlives its process."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        """Give each test a place of its own."""
        place = TierPlace(FolderPlace())
        yield place
        place.discard()


@pytest.mark.redis
class TestLawsOnServers(SharedLaws):
    """The same with a Redis server before a bucket."""

    @pytest.fixture
    def place(self, redis_url: str, s3: S3Server) -> Iterator[Place]:
        """Give each test a place of its own."""
        place = ServersPlace(RedisPlace(redis_url), ServerPlace(s3.place()))
        yield place
        place.discard()


@asynccontextmanager
async def opened(hot: Movable, durable: Movable) -> AsyncIterator[TierStore]:
    """Open a tier for a while."""
    store = TierStore(hot, durable)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def memory() -> MemoryStore:
    """Make an empty hot store."""
    return MemoryStore(StoreOptions(), Clock())


def folder(path: Path) -> ObjectsStore:
    """Make a durable store in a folder."""
    return ObjectsStore(f"file://{path}", StoreOptions(), Clock())


async def fill(store: TierStore) -> bytes:
    """Store a bit of everything; returns the secret."""
    secret = await store.secret(lambda: b"first")
    await store.put_originals("t", [original("r", "a", b"bytes of r")])
    await store.append_ledger("t", "a", 0, [b"e", b"f"], [Mark(key("k"), 3)])
    store.note("t", SessionUse("a", reads=1), [Mark(key("l"), 5)], [Recorded(0, b"m")])
    await store.put_fact("t", "fact", b"1")
    await store.stats()
    return secret


async def test_an_emptied_hot_store_locks_nobody_out(tmp_path: Path) -> None:
    """Secret, tips, ledgers, originals and facts come back, and are hot again once they were asked for."""
    async with opened(memory(), folder(tmp_path)) as store:
        secret = await fill(store)
    hot = memory()
    async with opened(hot, folder(tmp_path)) as store:
        assert await store.secret(lambda: b"second") == secret
        (tip,) = await store.find_tips("t", [key("l")])
        assert (tip.ledger, tip.length, tip.version, tip.newest) == ("a", 5, 2, 5)
        assert await store.load_ledger("t", "a") == [b"e", b"f"]
        assert await store.get_original("t", "r") == original("r", "a", b"bytes of r")
        assert await store.facts("t") == {"fact": b"1"}
        assert await store.load_record("t", "a", 0, 9) == [Recorded(0, b"m")]
        assert await store.append_ledger("t", "a", 2, [b"g"], []) == 3
    assert await hot.secret(lambda: b"third") == secret
    assert [tip.length for tip in await hot.find_tips("t", [key("k"), key("l")])] == [3, 5]
    assert await hot.load_ledger("t", "a") == [b"e", b"f", b"g"]
    assert await hot.get_original("t", "r") == original("r", "a", b"bytes of r")


async def test_a_hot_store_that_is_behind_is_mended(tmp_path: Path) -> None:
    """Entries that the hot store lacks are found by the conflict, and are there for the attempt that follows."""
    async with opened(memory(), folder(tmp_path)) as one, opened(memory(), folder(tmp_path)) as other:
        await one.append_ledger("t", "a", 0, [b"e"], [Mark(key("k"), 1)])
        await other.append_ledger("t", "a", 1, [b"f"], [])
        assert await one.load_ledger("t", "a") == [b"e"]
        with pytest.raises(Conflict) as caught:
            await one.append_ledger("t", "a", 1, [b"g"], [])
        assert caught.value.version == 2
        assert await one.load_ledger("t", "a") == [b"e", b"f"]
        assert [tip.version for tip in await one.find_tips("t", [key("k")])] == [2]


async def test_a_ledger_that_looks_new_is_compared_once(tmp_path: Path) -> None:
    """After the hot store was emptied, a note alone does not make it forget what a ledger holds."""
    async with opened(memory(), folder(tmp_path)) as store:
        await fill(store)
    async with opened(memory(), folder(tmp_path)) as store:
        store.note("t", SessionUse("a"), [Mark(key("m"), 7)], [])
        await store.stats()
        assert [(tip.length, tip.version) for tip in await store.find_tips("t", [key("m")])] == [(7, 2)]


async def test_the_secret_of_a_hot_store_is_taken_over(tmp_path: Path) -> None:
    """A store that gets a durable one behind it keeps its secret, and so all its refs."""
    hot = memory()
    assert await hot.secret(lambda: b"old") == b"old"
    async with opened(hot, folder(tmp_path)) as store:
        assert await store.secret(lambda: b"new") == b"old"
    async with opened(memory(), folder(tmp_path)) as store:
        assert await store.secret(lambda: b"new") == b"old"


async def test_erased_in_both_and_for_good(tmp_path: Path) -> None:
    """After an erasure no file of either store holds the bytes, and healing itself brings them not back."""
    for where in ("both", "hot alone", "durable alone"):
        place = tmp_path / where
        hot = SqliteStore(place / "hot.db", StoreOptions(), Clock())
        durable = folder(place / "durable")
        async with opened(hot, durable) as store:
            if where == "hot alone":
                await hot.put_originals("t", [original("r", "a", PLANTED)])
            elif where == "durable alone":
                await durable.put_originals("t", [original("r", "a", PLANTED)])
            else:
                await store.put_originals("t", [original("r", "a", PLANTED)])
            assert await store.erase_original("t", "r")
            assert await store.missing_originals("t", ["r"]) == frozenset()
            assert await store.put_originals("t", [original("r", "a", PLANTED)]) == {"r"}
            assert await store.get_original("t", "r") == Erased("r")
        raw = b"".join(file.read_bytes() for file in place.rglob("*") if file.is_file())
        assert PLANTED not in raw
        async with opened(memory(), folder(place / "durable")) as store:
            assert await store.put_originals("t", [original("r", "a", PLANTED)]) == {"r"}


class Interrupted(MemoryStore):
    """A hot store before each write of which something else happens."""

    def __init__(self) -> None:
        super().__init__(StoreOptions(), Clock())
        self.meanwhile: list[Callable[[], Awaitable[object]]] = []

    async def _interrupt(self) -> None:
        while self.meanwhile:
            await self.meanwhile.pop()()

    async def put_originals(self, tenant: str, originals: Sequence[Original]) -> frozenset[str]:
        """Let it happen, then store."""
        await self._interrupt()
        return await super().put_originals(tenant, originals)

    async def append_ledger(
        self, tenant: str, ledger: str, at: int, entries: Sequence[bytes], marks: Sequence[Mark]
    ) -> int:
        """Let it happen, then append."""
        await self._interrupt()
        return await super().append_ledger(tenant, ledger, at, entries, marks)


async def test_what_is_deleted_while_it_becomes_hot_is_deleted(tmp_path: Path) -> None:
    """Who reads from the durable store while somebody else erases or deletes brings nothing back."""
    hot = Interrupted()
    async with opened(hot, folder(tmp_path)) as store, opened(hot, folder(tmp_path)) as other:
        await fill(store)
        await store.put_originals("t", [original("s", "a")])
        for ref, drop in (
            ("r", lambda: other.erase_original(None, "r")),
            ("s", lambda: other.delete_session("t", "a")),
        ):
            await hot.erase_original("t", ref)
            hot._erased.clear()
            hot.meanwhile.append(drop)
            assert await store.get_original("t", ref) is not None
            assert not hot.meanwhile
        assert hot._originals == {}
        await fill(store)
        await hot.delete_session("t", "a")
        hot.meanwhile.append(lambda: other.delete_session("t", "a"))
        assert await store.load_ledger("t", "a") == [b"e", b"f"]
        assert not hot.meanwhile
        assert hot._ledgers == {}
        assert await store.load_ledger("t", "a") == []


async def test_a_ledger_that_was_begun_anew_is_not_mixed_up(tmp_path: Path) -> None:
    """A hot store that was away at a deletion has entries of the earlier life; they go when it is mended."""
    hot = memory()
    async with opened(hot, folder(tmp_path)) as store, opened(memory(), folder(tmp_path)) as other:
        await fill(store)
        await other.delete_session("t", "a")  # of this the hot store hears nothing
        assert await other.append_ledger("t", "a", 0, [b"new", b"life"], [Mark(key("k"), 1)]) == 2
        with pytest.raises(Conflict):
            await store.append_ledger("t", "a", 0, [b"x"], [])
        assert await hot.load_ledger("t", "a") == [b"new", b"life"]


@pytest.fixture
def trouble(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Troublemaker]:
    """Give something that makes trouble in front of the server, and stores little patience."""
    if not s3.endpoint:
        pytest.skip("a server elsewhere is not made trouble with")
    monkeypatch.setattr(objects_bucket, "REQUEST", timedelta(seconds=0.4))
    monkeypatch.setattr(objects_bucket, "ANSWER", 1.0)
    monkeypatch.setattr(objects_writer, "ANSWER", 1.0)
    monkeypatch.setitem(objects_bucket._RETRY, "max_retries", 0)
    with Troublemaker(s3.endpoint) as troublemaker:
        yield troublemaker


async def test_without_the_hot_store(s3: S3Server, trouble: Troublemaker, tmp_path: Path) -> None:
    """Everything goes on, slower; once the hot store is back it learns what it missed."""
    url = s3.place(trouble.endpoint)
    hot = ObjectsStore(url, StoreOptions(), Clock())
    trouble.trouble = "500"
    async with opened(hot, folder(tmp_path)) as store:
        await fill(store)
        assert await store.get_original("t", "r") == original("r", "a", b"bytes of r")
        assert [tip.version for tip in await store.find_tips("t", [key("k")])] == [2]
        assert await store.load_ledger("t", "a") == [b"e", b"f"]
        assert await store.claim("t", "lock", 10) == 1
        with pytest.raises(Unavailable):  # as long as one of the two may hold the bytes
            await store.erase_original("t", "r")
        trouble.trouble = ""
        await until(lambda: works(hot), bool)
        assert [tip.version for tip in await store.find_tips("t", [key("k")])] == [2]
        assert await hot.load_ledger("t", "a") == [b"e", b"f"]


async def works(store: Movable) -> bool:
    """Whether a store takes writes."""
    try:
        await store.ping()
    except StoreError:
        return False
    return True
