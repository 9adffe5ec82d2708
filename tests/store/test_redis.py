"""The store on Redis keeps the laws of every store, and what it promises about servers, failures and erasure."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from structlog.testing import capture_logs

from proxy.errors import ConfigError, Conflict, Full, Unavailable
from proxy.store.base import Mark, PageRequest, Recorded, SessionUse, Store, StoreOptions
from proxy.store.codec import pack
from proxy.store.redis import RedisStore
from proxy.store.redis_address import parse_address
from tests.store.machine import check_against_model
from tests.store.redis_servers import EncryptedRedisPlace, RedisPlace, Server, everything, running
from tests.store.suite import IDLE_TTL, Clock, Place, SharedLaws, key, opened, original, until

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


def test_any_calls(redis_url: str) -> None:
    """Calls in any order leave the store in the state of the model."""
    check_against_model(lambda: RedisPlace(redis_url))


def test_any_calls_on_an_encrypted_place(redis_url: str) -> None:
    """The same with a key."""
    check_against_model(lambda: EncryptedRedisPlace(redis_url), share=10, steps=40)


class TestLaws(SharedLaws):
    """The laws of every store that outlives its process."""

    @pytest.fixture
    def place(self, redis_url: str) -> Iterator[Place]:
        """Give each test a place of its own."""
        place = RedisPlace(redis_url)
        yield place
        place.discard()


@pytest.fixture
def server() -> Iterator[Server]:
    """Run a server that the test may harm."""
    with running() as server:
        yield server


@pytest.fixture
async def store(server: Server) -> AsyncIterator[RedisStore]:
    """Open a store on it."""
    store = store_on(server)
    await store.open()
    yield store
    await store.close()


def store_on(server: Server, clock: Clock | None = None, query: str = "") -> RedisStore:
    """Make a store on a server."""
    return RedisStore(parse_address(server.url + query), StoreOptions(idle_ttl=IDLE_TTL), clock or Clock())


async def fails(store: Store) -> list[type[BaseException]]:
    """Return how every kind of call fails."""
    calls = [
        store.find_tips("t", [key("k")]),
        store.load_ledger("t", "a"),
        store.put_originals("t", [original("r", "a")]),
        store.append_ledger("t", "a", 0, [b"e"], []),
        store.get_original("t", "r"),
        store.missing_originals("t", ["r"]),
        store.claim("t", "lock", 1.0),
        store.secret(lambda: b"s"),
        store.stats(),
        store.ping(),
    ]
    async with asyncio.timeout(5):
        return [type(result) for result in await asyncio.gather(*calls, return_exceptions=True)]  # type: ignore[misc]  # all fail


async def works(store: Store) -> bool:
    """Whether the store takes writes."""
    try:
        await store.ping()
    except Unavailable:
        return False
    return True


# -- servers that fail


async def test_a_killed_server_is_unavailable_until_it_is_back(server: Server, store: RedisStore) -> None:
    """Refused connections are Unavailable; on the server that comes back empty everything works, notes included."""
    await store.put_originals("t", [original("r", "a")])
    server.kill()
    assert await fails(store) == [Unavailable] * 10
    store.note("t", SessionUse("a"), [Mark(key("k"), 2)], [Recorded(0, b"m")])
    with pytest.raises(Unavailable):
        await store.find_tips("t", [key("k")])
    server.start()
    await until(lambda: works(store), bool)
    assert await store.missing_originals("t", ["r"]) == {"r"}
    await store.put_originals("t", [original("r", "a")])
    assert await store.get_original("t", "r") == original("r", "a")
    assert [tip.length for tip in await store.find_tips("t", [key("k")])] == [2]
    assert await store.load_record("t", "a", 0, 9) == [Recorded(0, b"m")]
    assert [s.id for s in (await store.list_sessions(None, PageRequest())).data] == ["a"]
    other = store_on(server)
    await other.open()
    assert len(await other.find_tips("t", [key("k")])) == 1
    await other.close()


async def test_a_frozen_server_is_unavailable_until_it_goes_on(server: Server, store: RedisStore) -> None:
    """A server that answers nothing fails every call soon, and loses nothing that was noted meanwhile."""
    await store.append_ledger("t", "a", 0, [b"e"], [Mark(key("k"), 1)])
    server.freeze()
    try:
        assert await fails(store) == [Unavailable] * 10
        store.note("t", SessionUse("a", reads=1), [Mark(key("l"), 2)], [])
        assert await fails(store) == [Unavailable] * 10
    finally:
        server.thaw()
    await until(lambda: works(store), bool)
    assert await store.load_ledger("t", "a") == [b"e"]
    assert [tip.length for tip in await store.find_tips("t", [key("k"), key("l")])] == [1, 2]
    session = await store.get_session("t", "a")
    assert session is not None
    assert (session.calls, session.reads) == (1, 1)


async def test_a_frozen_server_does_not_hold_up_the_end(server: Server, store: RedisStore) -> None:
    """Closing a store gives up on a frozen server, and counts what it could not write."""
    store.note("t", SessionUse("a"), [], [])
    server.freeze()
    try:
        async with asyncio.timeout(5):
            await store.close()
    finally:
        server.thaw()
    assert store._backlog.dropped == 1


async def test_a_store_opened_on_nothing_works_later(server: Server) -> None:
    """After an opening that failed the store tries again with every call."""
    server.kill()
    store = store_on(server)
    with pytest.raises(Unavailable, match="cannot be reached"):
        await store.open()
    store.note("t", SessionUse("a"), [Mark(key("k"), 1)], [])
    server.start()
    await until(lambda: works(store), bool)
    await store.stats()
    other = store_on(server)
    await other.open()
    assert [tip.ledger for tip in await other.find_tips("t", [key("k")])] == ["a"]
    await other.close()
    await store.close()


async def test_a_full_server_is_full_until_there_is_room(server: Server, store: RedisStore) -> None:
    """Over maxmemory additions raise Full and leave nothing behind; reading and erasing go on, and notes wait."""
    await store.put_originals("t", [original("r", "a"), original("s", "b")])
    before = everything(server.client)
    server.client.config_set("maxmemory", "1")
    with pytest.raises(Full, match="maxmemory"):
        await store.put_originals("t", [original("u", "a", os.urandom(1000))])
    with pytest.raises(Full):
        await store.append_ledger("t", "new", 0, [b"e"], [Mark(key("k"), 1)])
    with pytest.raises(Full):
        await store.ping()
    assert sorted(everything(server.client)) == sorted(before)
    store.note("t", SessionUse("a"), [], [Recorded(0, b"m")])
    with pytest.raises(Full):
        await store.load_record("t", "a", 0, 9)
    assert await store.get_original("t", "r") == original("r", "a")
    assert await store.erase_original("t", "s")
    server.client.config_set("maxmemory", "0")
    await store.put_originals("t", [original("u", "a")])
    assert await store.load_record("t", "a", 0, 9) == [Recorded(0, b"m")]
    assert (await store.stats()).dropped == 0


async def test_deleting_makes_room_on_a_full_server(server: Server, store: RedisStore) -> None:
    """A session can be deleted, and idle ones expire, although nothing more fits."""
    await store.put_originals("t", [original("r", "a"), original("s", "b")])
    server.client.config_set("maxmemory", "1")
    store.note("t", SessionUse("c"), [], [])
    assert await store.delete_session("t", "a")
    assert await store.expire(Clock().now + 10 * IDLE_TTL) == 2
    assert (await store.stats()).stored_bytes == 0


async def test_a_replica_takes_no_writes(server: Server, store: RedisStore) -> None:
    """A server that has become a replica is Unavailable for writes, and works again as a master."""
    server.client.execute_command("REPLICAOF", "127.0.0.1", 1)
    server.client.config_set("replica-serve-stale-data", "yes")
    with pytest.raises(Unavailable, match="replica"):
        await store.put_originals("t", [original("r", "a")])
    with pytest.raises(Unavailable, match="replica"):
        await store.ping()
    assert await store.find_tips("t", [key("k")]) == []
    server.client.execute_command("REPLICAOF", "NO", "ONE")
    await store.put_originals("t", [original("r", "a")])


async def test_keys_of_another_kind_hold_nobody_up(server: Server, store: RedisStore) -> None:
    """Where somebody has put something else, calls raise Unavailable; notes for it are dropped, the others written."""
    server.client.set("ullage:{t.bad}:lu", "junk")
    with pytest.raises(Unavailable, match="WRONGTYPE"):
        await store.append_ledger("bad", "a", 0, [b"e"], [])
    store.note("bad", SessionUse("a"), [], [])
    store.note("t", SessionUse("a"), [], [])
    assert (await store.list_sessions("t", PageRequest())).data
    assert (await store.stats()).dropped == 1


async def test_notes_are_counted_once(server: Server, store: RedisStore) -> None:
    """A batch whose answer was lost is sent again, and not counted again."""
    store.note("t", SessionUse("a"), [], [])
    await store.stats()
    server.freeze()
    store.note("t", SessionUse("a", reads=1), [], [Recorded(0, b"m")])
    with pytest.raises(Unavailable, match="does not answer"):
        await store.get_session("t", "a")
    server.thaw()  # and now it executes what it was sent
    await until(lambda: works(store), bool)
    session = await store.get_session("t", "a")
    assert session is not None
    assert (session.calls, session.reads) == (2, 1)


# -- what a URL can be wrong about


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("redis://127.0.0.1:{port}", "wants a password"),
        ("redis://:wrong@127.0.0.1:{port}", "refuses user or password"),
        ("redis://nobody:secret@127.0.0.1:{port}", "refuses user or password"),
        ("redis://:secret@127.0.0.1:{port}/99", "does not have that database"),
        ("redis://reader:secret@127.0.0.1:{port}", "may not do"),
        ("redis+cluster://:secret@127.0.0.1:{port}", 'write "redis://"'),
    ],
)
async def test_what_can_never_work_stops_the_start(query: str, what: str) -> None:
    """Wrong credentials, databases and kinds of servers are told at the opening, with what to do."""
    with running() as server:
        server.client.acl_setuser("reader", enabled=True, passwords=["+secret"], keys=["other*"], commands=["+@all"])
        server.client.config_set("requirepass", "secret")
        store = RedisStore(parse_address(query.format(port=server.port)), StoreOptions(), Clock())
        with pytest.raises(ConfigError, match=what) as caught:
            await store.open()
        assert caught.value.param == "store.url"
        with pytest.raises(Unavailable, match=what):
            await store.ping()
        await store.close()


async def test_a_user_and_a_database_of_their_own(server: Server) -> None:
    """A user who may use one prefix alone is enough, in any database."""
    server.client.acl_setuser(
        "gateway", enabled=True, passwords=["+p@ss"], keys=["ullage:*"], commands=["+@all", "-@dangerous", "+info"]
    )
    url = f"redis://gateway:p%40ss@127.0.0.1:{server.port}/5"
    store = RedisStore(parse_address(url), StoreOptions(), Clock())
    await store.open()
    await store.put_originals("t", [original("r", "a")])
    assert await store.get_original("t", "r") == original("r", "a")
    await store.close()
    assert not everything(server.client)


async def test_a_newer_schema_is_left_alone(server: Server) -> None:
    """What a newer version has written is refused, and not touched."""
    server.client.set("ullage:schema", 99)
    store = store_on(server)
    with pytest.raises(ConfigError, match="schema 99"):
        await store.open()
    with pytest.raises(Unavailable, match="schema 99"):
        await store.put_originals("t", [original("r", "a")])
    await store.close()
    assert server.client.keys() == [b"ullage:schema"]


async def test_a_server_that_may_forget_is_named(server: Server) -> None:
    """Eviction and missing persistence are logged at the start."""
    server.client.config_set("maxmemory", "100mb")
    server.client.config_set("maxmemory-policy", "allkeys-lru")
    store = store_on(server)
    with capture_logs() as logs:
        await store.open()
    await store.close()
    found = " ".join(log["finding"] for log in logs if log["event"] == "store_may_forget")
    assert "allkeys-lru" in found
    assert "appendonly" in found


async def test_a_closed_store_says_so(server: Server) -> None:
    """Calls after the end raise Unavailable; a note raises nothing."""
    store = store_on(server)
    await store.open()
    await store.close()
    store.note("t", SessionUse("a"), [], [])
    with pytest.raises(Unavailable, match="closed"):
        await store.find_tips("t", [key("k")])
    await store.close()


# -- what lies on the server


async def test_erased_bytes_are_nowhere(server: Server, store: RedisStore) -> None:
    """Of what was erased or deleted no byte is left in any key or value."""
    secrets = [f"the secret number {number}".encode() for number in range(4)]
    large = os.urandom(5000)
    for number, secret in enumerate(secrets[:3]):
        await store.put_originals("t", [original(f"r{number}", f"s{number}", secret)])
    await store.put_originals("t", [original("large", "s1", large)])
    await store.append_ledger("t", "s1", 0, [secrets[3]], [Mark(key("k"), 1)])
    store.note("t", SessionUse("s1", key="name-of-it"), [], [Recorded(0, secrets[3])])
    await store.stats()
    words = [*secrets, b"name-of-it", pack(large)[10:60]]
    assert [word in everything(server.client) for word in words] == [True] * 6
    await store.erase_original("t", "r0")
    await store.delete_session("t", "s1")
    assert [word in everything(server.client) for word in words] == [False, False, True, False, False, False]
    assert b"s1" not in everything(server.client)


async def test_no_text_lies_on_a_server_that_holds_sealed_values(server: Server) -> None:
    """Originals, entries and the record lie encrypted; what was written before, or with an older key, still opens."""
    old, new = "the old key of this store", "the new key of this store"
    texts = [b"a sentence that nobody may find there, number %d" % number for number in range(3)]
    for number, keys in enumerate([(), (old,), (new, old)]):
        store = RedisStore(parse_address(server.url), StoreOptions(encryption_keys=keys), Clock())
        await store.open()
        await store.put_originals("t", [original(f"r{number}", "a", texts[number])])
        await store.append_ledger("t", "a", number, [texts[number]], [])
        store.note("t", SessionUse("a"), [], [Recorded(number, texts[number])])
        assert await store.load_record("t", "a", 0, 9) == [Recorded(i, texts[i]) for i in range(number + 1)]
        assert await store.load_ledger("t", "a") == texts[: number + 1]
        assert await store.get_original("t", "r0") == original("r0", "a", texts[0])
        await store.close()
    assert [text in everything(server.client) for text in texts] == [True, False, False]
    store = RedisStore(parse_address(server.url), StoreOptions(encryption_keys=(new,)), Clock())
    await store.open()
    assert await store.get_original("t", "r2") == original("r2", "a", texts[2])
    with pytest.raises(Unavailable, match=r"not in store\.encryption_keys"):
        await store.get_original("t", "r1")
    with pytest.raises(Unavailable, match=r"not in store\.encryption_keys"):
        await store.load_ledger("t", "a")
    await store.close()


async def test_sealed_values_open_where_they_belong_alone(server: Server) -> None:
    """What somebody copies to another ref, tenant or ledger does not open there."""
    store = RedisStore(parse_address(server.url), StoreOptions(encryption_keys=("the key of this store",)), Clock())
    await store.open()
    for tenant in ("t", "u"):
        await store.put_originals(tenant, [original("r", "a", tenant.encode()), original("s", "a")])
        for ledger in ("a", "b"):
            await store.append_ledger(tenant, ledger, 0, [ledger.encode()], [])
            store.note(tenant, SessionUse(ledger), [], [Recorded(0, ledger.encode())])
    await store.stats()
    for source, target in (("t}:d:r", "t}:d:s"), ("t}:d:r", "u}:d:r"), ("t}:e:a", "t}:e:b"), ("t}:r:a", "u}:r:a")):
        value = server.client.dump(f"ullage:{{t.{source}")
        server.client.restore(f"ullage:{{t.{target}", 0, value, replace=True)
    for call in (
        store.get_original("t", "s"),
        store.get_original("u", "r"),
        store.load_ledger("t", "b"),
        store.load_record("u", "a", 0, 9),
    ):
        with pytest.raises(Unavailable, match="damaged or was moved"):
            await call
    assert await store.get_original(None, "r") == original("r", "a", b"t")
    await store.close()


async def test_tips_of_the_dropped_are_swept(server: Server) -> None:
    """Tips of a deleted session go in the background, those of others stay."""
    options = StoreOptions(idle_ttl=4.0)
    store = RedisStore(parse_address(server.url), options, Clock())
    await store.open()
    await store.append_ledger("t", "a", 0, [b"e"], [Mark(key(f"a{i}"), i) for i in range(3000)])
    await store.append_ledger("t", "b", 0, [b"e"], [Mark(key("b"), 1)])
    await store.delete_session("t", "a")

    async def tips() -> int:
        return int(server.client.hlen("ullage:{t.t}:t"))

    await until(tips, lambda count: count == 1)
    await store.close()


async def test_nothing_leaks_without_a_gateway(server: Server, store: RedisStore) -> None:
    """All keys end by themselves, later than any sweep, but for the secret, tombstones, facts and lists of names."""
    await store.secret(lambda: b"s")
    await store.put_fact("t", "f", b"v")
    await store.put_originals("t", [original("r", "a"), original("gone", "a")])
    await store.erase_original("t", "gone")
    await store.append_ledger("t", "a", 0, [b"e"], [Mark(key("k"), 1)])
    store.note("t", SessionUse("a"), [], [Recorded(0, b"m")])
    await store.stats()
    lives = {name.decode(): server.client.ttl(name) for name in server.client.scan_iter()}
    names = {"ullage:secret", "ullage:schema", "ullage:tenants", "ullage:{t.t}:f", "ullage:{t.t}:x"}
    assert {name for name, life in lives.items() if life == -1} == names
    assert all(life > 2 * IDLE_TTL for name, life in lives.items() if name not in names and ":w:" not in name)


async def test_what_the_server_dropped_is_put_again(server: Server, store: RedisStore) -> None:
    """Bytes that the server evicted are missing, and come back with the next put, counted once."""
    await store.put_originals("t", [original("r", "a")])
    server.client.delete("ullage:{t.t}:d:r")
    assert await store.get_original("t", "r") is None
    assert await store.missing_originals("t", ["r"]) == {"r"}
    await store.put_originals("t", [original("r", "a")])
    assert await store.get_original("t", "r") == original("r", "a")
    assert (await store.stats()).stored_bytes == 4


async def test_a_ledger_that_the_server_dropped_begins_anew(server: Server, store: RedisStore) -> None:
    """A ledger whose keys ended by themselves is gone with its figures, and its name can be used again."""
    await store.put_originals("t", [original("r", "a"), original("r", "b")])
    await store.append_ledger("t", "a", 0, [b"entry"], [Mark(key("k"), 1)])
    for part in ("l", "e", "h"):
        server.client.delete(f"ullage:{{t.t}}:{part}:a")
    assert await store.find_tips("t", [key("k")]) == []
    assert await store.get_original("t", "r") == original("r", "b")
    assert await store.append_ledger("t", "a", 0, [b"new"], []) == 1
    assert await store.find_tips("t", [key("k")]) == []
    assert (await store.stats()).stored_bytes == len(b"data") + len(b"new")


async def test_tenants_share_no_key(server: Server, store: RedisStore) -> None:
    """Whatever tenants are called, all that is stored for one lies under its own root."""
    names = ["t", "", "a}b", "{a", "a:b", "größer", "\ud800", "x" * 300]
    for name in names:
        await store.put_originals(name, [original("r", "a", name.encode("utf-8", "surrogatepass"))])
    for name in names:
        found = await store.get_original(name, "r")
        assert found == original("r", "a", name.encode("utf-8", "surrogatepass"))
        assert (await store.list_originals(name, None, PageRequest())).data
    assert len((await store.list_sessions(None, PageRequest())).data) == len(names)
    roots = {name.split(b"}")[0] for name in server.client.scan_iter() if b"{" in name}
    assert len(roots) == len(names)


async def test_stores_race_for_one_ledger(server: Server) -> None:
    """Of stores that append at one place exactly one wins each time, and no entry is lost."""
    stores = [store_on(server) for _ in range(3)]
    for store in stores:
        await store.open()
    for at in range(20):
        calls = [store.append_ledger("t", "a", at, [b"%d.%d" % (at, i)], []) for i, store in enumerate(stores)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(type(result).__name__ for result in results) == ["Conflict", "Conflict", "int"]
        assert {result.version for result in results if isinstance(result, Conflict)} == {at + 1}
    entries = await stores[0].load_ledger("t", "a")
    assert [entry.split(b".")[0] for entry in entries] == [b"%d" % at for at in range(20)]
    for store in stores:
        await store.close()


async def test_one_secret_for_racing_stores(server: Server) -> None:
    """Stores that are opened on an empty server together agree on one secret."""
    stores = [store_on(server) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    secrets = await asyncio.gather(*(store.secret(lambda: os.urandom(32)) for store in stores))
    assert len(set(secrets)) == 1
    for store in stores:
        await store.close()


async def test_a_forgotten_script_is_sent_again(server: Server, store: RedisStore) -> None:
    """A server that has lost its scripts gets them with the next call."""
    await store.put_originals("t", [original("r", "a")])
    server.client.script_flush()
    assert await store.get_original("t", "r") == original("r", "a")


async def test_each_look_up_is_one_round_trip(server: Server, store: RedisStore) -> None:
    """Finding tips and loading a ledger each send one command."""
    await store.append_ledger("t", "a", 0, [b"e"], [Mark(key(f"k{i}"), i) for i in range(8)])
    await store.find_tips("t", [key("k")])
    before = server.client.info("stats")["total_reads_processed"]
    await store.find_tips("t", [key(f"k{i}") for i in range(8)])
    await store.load_ledger("t", "a")
    assert server.client.info("stats")["total_reads_processed"] - before == 2 + 1  # and the one that asks


async def test_another_prefix_is_another_place(server: Server, redis_url: str) -> None:
    """Stores under different prefixes do not see each other."""
    clock = Clock()
    place, other = RedisPlace(redis_url), RedisPlace(redis_url)
    async with opened(place, clock) as one, opened(other, clock) as two:
        await one.put_originals("t", [original("r", "a")])
        assert await two.get_original("t", "r") is None
        assert (await two.stats()).originals == 0
    place.discard()
    other.discard()
