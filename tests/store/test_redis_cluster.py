"""The store on a cluster keeps the same laws, and survives nodes that freeze, die and hand over their slots."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from proxy.errors import Unavailable
from proxy.store import redis_connection, redis_places
from proxy.store.base import Mark, PageRequest, SessionUse, StoreOptions
from proxy.store.redis import RedisStore
from proxy.store.redis_address import parse_address
from tests.store.redis_servers import (
    RedisPlace,
    Server,
    cluster_node,
    cluster_url,
    follow,
    introduce,
    running_cluster,
    wait_until,
)
from tests.store.suite import Clock, Place, SharedLaws, key, original, until

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

TENANTS = [f"tenant-{number}" for number in range(12)]


class TestLaws(SharedLaws):
    """The laws of every store that outlives its process."""

    @pytest.fixture
    def place(self, redis_cluster: list[Server]) -> Iterator[Place]:
        """Give each test a place of its own."""
        place = RedisPlace(cluster_url(redis_cluster))
        yield place
        place.discard()


@pytest.fixture
async def store(redis_cluster: list[Server]) -> AsyncIterator[RedisStore]:
    """Open a store on the cluster."""
    async with opened_on(redis_cluster) as store:
        yield store


@asynccontextmanager
async def opened_on(nodes: list[Server]) -> AsyncIterator[RedisStore]:
    """Open a store that is told of one node alone, under a prefix of its own."""
    store = RedisPlace(cluster_url(nodes[:1])).store(StoreOptions(), Clock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def put_everywhere(store: RedisStore, ref: str) -> list[bool]:
    """Store something for each tenant; returns for which of them that worked."""

    async def put(tenant: str) -> bool:
        try:
            await store.put_originals(tenant, [original(ref, "a")])
        except Unavailable:
            return False
        return True

    async with asyncio.timeout(10):
        return list(await asyncio.gather(*(put(tenant) for tenant in TENANTS)))


async def test_tenants_are_spread_and_listed_together(redis_cluster: list[Server], store: RedisStore) -> None:
    """Every node has some of the tenants, and the administration finds all of them, page by page."""
    assert all(await put_everywhere(store, "r"))
    await store.ping()
    prefix = store._keys.schema.removesuffix("schema")
    assert all(node.client.keys(f"{prefix}{{t.*") for node in redis_cluster)
    assert all(node.client.keys(f"{prefix}ping:*") for node in redis_cluster)
    assert (await store.stats()).originals == len(TENANTS)
    found, page = [], PageRequest(5)
    for _ in range(len(TENANTS)):
        listed = await store.list_sessions(None, page)
        found += [session.tenant for session in listed.data]
        if listed.next is None:
            break
        page = PageRequest(5, listed.next)
    assert sorted(found) == sorted(TENANTS)
    assert await store.expire(Clock().now + 1e9) == 2 * len(TENANTS)


@pytest.mark.parametrize("silence", [redis_places.SILENCE, 60.0])
async def test_a_frozen_node_harms_its_own_tenants_alone(
    redis_cluster: list[Server], silence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a node answers nothing, tenants on others go on, and need not wait for it; afterwards all do."""
    monkeypatch.setattr(redis_places, "SILENCE", silence)
    async with opened_on(redis_cluster) as store:
        assert all(await put_everywhere(store, "r"))
        redis_cluster[0].freeze()
        try:
            await put_everywhere(store, "s")
            done = await put_everywhere(store, "t")
            assert any(done)
            assert not all(done)
            async with asyncio.timeout(5):
                with pytest.raises(Unavailable):
                    await store.ping()
                with pytest.raises(Unavailable):
                    await store.stats()
        finally:
            redis_cluster[0].thaw()
        await until(lambda: put_everywhere(store, "u"), all)


async def test_a_store_is_opened_although_a_node_is_frozen(redis_cluster: list[Server]) -> None:
    """The first node of the URL may be the one that does not answer."""
    places = (RedisPlace(cluster_url(redis_cluster)) for _ in range(100))
    place = next(place for place in places if not has_lists(redis_cluster[0], place))
    store = place.store(StoreOptions(), Clock())
    redis_cluster[0].freeze()
    try:
        async with asyncio.timeout(10):
            with contextlib.suppress(Unavailable):
                await store.open()
            await until(lambda: put_everywhere(store, "r"), any)
    finally:
        redis_cluster[0].thaw()
    await until(lambda: put_everywhere(store, "s"), all)
    await store.close()


async def test_who_had_to_wait_for_others_is_not_frozen(
    redis_cluster: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that found no room, because calls to a frozen node took it all, does not count against its own node."""
    monkeypatch.setattr(redis_places, "SILENCE", 60.0)
    monkeypatch.setattr(redis_connection, "CALLS", 1)
    async with opened_on(redis_cluster) as store:
        for tenant in TENANTS:
            await store.put_originals(tenant, [original("r", "a")])
        on_frozen = [tenant for tenant in TENANTS if slot_of(tenant, redis_cluster)[1] is redis_cluster[0]]
        elsewhere = next(tenant for tenant in TENANTS if tenant not in on_frozen)
        redis_cluster[0].freeze()
        try:
            calls = [store.missing_originals(tenant, ["r"]) for tenant in (on_frozen[0], elsewhere)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(result) for result in results] == [Unavailable] * 2
            assert await store.missing_originals(elsewhere, ["r"]) == frozenset()
        finally:
            redis_cluster[0].thaw()
        await until(lambda: put_everywhere(store, "s"), all)


def has_lists(node: Server, place: RedisPlace) -> bool:
    """Whether a node, the first of its cluster, has what a place needs to begin: its schema, or its list of tenants."""
    keys = [f"{place.prefix}:schema", f"{place.prefix}:tenants"]
    return any(node.client.execute_command("CLUSTER", "KEYSLOT", key) < 16384 // 3 for key in keys)


async def test_slots_that_have_moved_are_followed(redis_cluster: list[Server], store: RedisStore) -> None:
    """A tenant whose slot went to another node is found there."""
    slot, owner, other = slot_of("moved", redis_cluster)
    assert await store.find_tips("moved", [key("k")]) == []
    hand_over(redis_cluster, slot, other)
    await store.append_ledger("moved", "a", 0, [b"e"], [Mark(key("k"), 1)])
    assert [tip.ledger for tip in await store.find_tips("moved", [key("k")])] == ["a"]
    assert other.client.keys("*{t.moved}*")
    assert not owner.client.keys("*{t.moved}*")


async def test_slots_that_are_moving_are_asked_for(redis_cluster: list[Server], store: RedisStore) -> None:
    """What a node has already handed over is read where it went."""
    await store.put_fact("moving", "f", b"v")
    slot, owner, other = slot_of("moving", redis_cluster)
    other.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", identity(owner))
    owner.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", identity(other))
    owner.client.execute_command("MIGRATE", "127.0.0.1", other.port, store._keys.facts("moving"), 0, 1000)
    assert await store.facts("moving") == {"f": b"v"}
    hand_over(redis_cluster, slot, other)
    assert await store.facts("moving") == {"f": b"v"}


def slot_of(tenant: str, nodes: list[Server]) -> tuple[int, Server, Server]:
    """Return a tenant's slot, the node that has it from the beginning, and one that has not."""
    slot = int(nodes[0].client.execute_command("CLUSTER", "KEYSLOT", f"{{t.{tenant}}}"))
    owner = nodes[slot * len(nodes) // 16384]
    return slot, owner, next(node for node in nodes if node is not owner)


def hand_over(nodes: list[Server], slot: int, owner: Server) -> None:
    """Give a slot to another node, and let all know."""
    for node in (owner, *nodes):
        node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", identity(owner))


def identity(node: Server) -> str:
    """Return the name that a node has in its cluster."""
    return str(node.client.execute_command("CLUSTER", "MYID").decode())


async def test_a_replica_takes_over() -> None:
    """After a node has died its replica is used, with what the node had."""
    with running_cluster(1000) as nodes, running_replica(nodes, nodes[2]) as replica:
        store = RedisStore(parse_address(cluster_url(nodes)), StoreOptions(), Clock())
        await store.open()
        assert all(await put_everywhere(store, "r"))
        for tenant in TENANTS:
            store.note(tenant, SessionUse("a"), [Mark(key("k"), 1)], [])
        await store.stats()
        follow(nodes[2], replica)
        nodes[2].kill()
        assert not all(await put_everywhere(store, "s"))
        await until(lambda: put_everywhere(store, "t"), all)
        assert (await store.stats()).sessions == len(TENANTS)
        assert [len(await store.find_tips(tenant, [key("k")])) for tenant in TENANTS] == [1] * len(TENANTS)
        await store.close()


@contextmanager
def running_replica(nodes: list[Server], master: Server) -> Iterator[Server]:
    """Run one more node, as the replica of a master."""
    replica = cluster_node(1000)
    try:
        replica.start()
        introduce(replica, nodes[0])
        wait_until(lambda: replica.client.execute_command("CLUSTER", "NODES").count(b" connected") == len(nodes) + 1)
        wait_until(lambda: replica.client.execute_command("CLUSTER", "REPLICATE", identity(master)))
        wait_until(lambda: replica.client.info("replication")["master_link_status"] == "up")
        yield replica
    finally:
        replica.discard()
