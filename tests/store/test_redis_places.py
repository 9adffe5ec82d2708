"""A master that Sentinels watch, and servers that speak TLS."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proxy.errors import ConfigError, Unavailable
from proxy.store.base import Mark, SessionUse, StoreOptions
from proxy.store.redis import RedisStore
from proxy.store.redis_address import parse_address
from proxy.store.redis_places import together
from tests.store.redis_servers import Server, follow, free_port, running, running_sentinel, wait_until
from tests.store.suite import Clock, key, original, until

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


@asynccontextmanager
async def store_at(url: str) -> AsyncIterator[RedisStore]:
    """Open a store at a URL."""
    store = RedisStore(parse_address(url), StoreOptions(), Clock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def put(store: RedisStore, ref: str) -> bool:
    """Store an original; returns whether that worked."""
    try:
        await store.put_originals("t", [original(ref, "a")])
    except Unavailable:
        return False
    return True


# -- Sentinels


@pytest.fixture
def watched() -> Iterator[tuple[Server, Server, Server]]:
    """Run a master, its replica and a Sentinel."""
    with running_sentinel() as servers:
        yield servers


def sentinel_url(sentinel: Server, more: str = "") -> str:
    """Return the URL of what a Sentinel watches; a second one does not answer."""
    return f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}/main{more}"


@pytest.mark.parametrize("harm", ["kill", "freeze"])
async def test_the_replica_takes_over(watched: tuple[Server, Server, Server], harm: str) -> None:
    """When the master dies or freezes calls fail for a while, and go on with the replica, which has what was there."""
    master, replica, sentinel = watched
    async with store_at(sentinel_url(sentinel)) as store:
        await store.append_ledger("t", "a", 0, [b"e"], [Mark(key("k"), 1)])
        follow(master, replica)
        getattr(master, harm)()
        async with asyncio.timeout(5):
            assert not await put(store, "r")
        store.note("t", SessionUse("a"), [Mark(key("l"), 2)], [])
        await until(lambda: put(store, "s"), bool)
        assert await store.load_ledger("t", "a") == [b"e"]
        assert [tip.length for tip in await store.find_tips("t", [key("k"), key("l")])] == [1, 2]
        assert replica.client.exists("ullage:{t.t}:d:s")


async def test_a_master_that_is_demoted_is_left(watched: tuple[Server, Server, Server]) -> None:
    """After a planned change of roles the new master is written to, although the old one still takes writes."""
    master, replica, sentinel = watched
    async with store_at(sentinel_url(sentinel)) as store:
        assert await put(store, "r")
        follow(master, replica)
        wait_until(lambda: sentinel.client.execute_command("SENTINEL", "FAILOVER", "main"))
        wait_until(lambda: replica.client.info("replication")["role"] == "master")
        assert master.client.info("replication")["role"] == "master"

        async def has_arrived() -> bool:
            await put(store, "s")
            return bool(replica.client.exists("ullage:{t.t}:d:s"))

        await until(has_arrived, bool)
        assert master.client.info("replication")["role"] == "master"
        assert await store.missing_originals("t", ["r", "s"]) == frozenset()


async def test_a_replica_is_not_written_to(watched: tuple[Server, Server, Server]) -> None:
    """When the server that was the master turns into a replica, calls go on with the new one."""
    master, replica, sentinel = watched
    async with store_at(sentinel_url(sentinel)) as store:
        assert await put(store, "r")
        wait_until(lambda: sentinel.client.execute_command("SENTINEL", "FAILOVER", "main"))
        wait_until(lambda: replica.client.info("replication")["role"] == "master")
        master.client.execute_command("REPLICAOF", "127.0.0.1", replica.port)
        await until(lambda: put(store, "s"), bool)
        assert replica.client.exists("ullage:{t.t}:d:s")


async def test_an_unknown_service_is_unavailable(watched: tuple[Server, Server, Server]) -> None:
    """A service that the Sentinels do not know may still come, so it is no wrong configuration."""
    url = sentinel_url(watched[2]).replace("/main", "/other")
    store = RedisStore(parse_address(url), StoreOptions(), Clock())
    with pytest.raises(Unavailable, match="no master"):
        await store.open()
    await store.close()


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a certificate for loopback, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    paths = (folder / "cert.pem", folder / "key.pem")
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", names]
    command += ["-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(command, check=True, capture_output=True)
    return paths


async def test_tls(certificate: tuple[Path, Path]) -> None:
    """A server is spoken to over TLS if its certificate is that of a known authority, and refused otherwise."""
    cert, private = certificate
    port = free_port()
    files = ["--tls-cert-file", str(cert), "--tls-key-file", str(private), "--tls-ca-cert-file", str(cert)]
    with running("--tls-port", str(port), *files) as server:
        login = f"?ca_file={cert}&cert_file={cert}&key_file={private}"
        async with store_at(f"rediss://127.0.0.1:{port}{login}") as store:
            assert await put(store, "r")
        assert server.client.exists("ullage:{t.t}:d:r")
        stranger = RedisStore(parse_address(f"rediss://127.0.0.1:{port}"), StoreOptions(), Clock())
        with pytest.raises(ConfigError, match="ca_file"):
            await stranger.open()
        await stranger.close()


async def test_together_waits_for_all() -> None:
    """A failure is raised after all others have ended."""
    ended = []

    async def call(fails: bool) -> int:
        if fails:
            raise Unavailable("gone")
        await asyncio.sleep(0.01)
        ended.append(1)
        return 1

    assert await together([call(False), call(False)]) == [1, 1]
    with pytest.raises(Unavailable):
        await together([call(True), call(False)])
    assert len(ended) == 3
