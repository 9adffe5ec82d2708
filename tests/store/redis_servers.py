"""Redis servers that tests start on loopback and end again: one, a cluster, a master with a replica and a Sentinel."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec import structs
from redis.backoff import NoBackoff
from redis.retry import Retry

from proxy.store.base import StoreOptions
from proxy.store.redis import RedisStore
from proxy.store.redis_address import parse_address

PATIENCE = 20.0  # seconds that a server may take to come up, or to agree with others
PASSPHRASE = "correct horse battery staple"
GIVEN = "ULLAGE_TEST_REDIS_URL"


class Server:
    """A process on a port of its own that keeps its data in memory alone."""

    def __init__(self, *options: str, role: str = "redis-server") -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not on the path")
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="redis-"))
        self._command = [program]
        if role == "sentinel":
            (self.folder / "sentinel.conf").touch()
            self._command += ["sentinel.conf", "--sentinel"]
        else:
            self._command += ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]
        self._command += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), *options]
        self.process: subprocess.Popen[bytes] | None = None
        self.client = client_of(self.port)

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.process = subprocess.Popen(self._command, cwd=self.folder, stdout=subprocess.DEVNULL)
        wait_until(self.client.ping)

    def freeze(self) -> None:
        """Stop the process where it is: it keeps its connections and answers nothing."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process go on."""
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once; all that it kept is gone."""
        if self.process is not None:
            self._send(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _send(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def discard(self) -> None:
        """End the process and delete what it left."""
        self.client.close()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"redis://127.0.0.1:{self.port}"


@contextmanager
def running(*options: str) -> Iterator[Server]:
    """Run one server for a while."""
    server = Server(*options)
    try:
        server.start()
        yield server
    finally:
        server.discard()


@contextmanager
def running_cluster(patience: int = 15_000) -> Iterator[list[Server]]:
    """Run a cluster of three masters for a while; after so many milliseconds of silence a node counts as dead."""
    servers = [cluster_node(patience) for _ in range(3)]
    try:
        for server in servers:
            server.start()
        form_cluster(servers)
        yield servers
    finally:
        for server in servers:
            server.discard()


def cluster_node(patience: int) -> Server:
    """Make a node that belongs to no cluster yet."""
    bus = str(free_port())
    return Server("--cluster-enabled", "yes", "--cluster-node-timeout", str(patience), "--cluster-port", bus)


def form_cluster(servers: list[Server]) -> None:
    """Give each node its part of the slots, and let them meet."""
    ends = [16384 * i // len(servers) for i in range(len(servers) + 1)]
    for number, server in enumerate(servers):
        server.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", ends[number], ends[number + 1] - 1)
    for server, known in itertools.permutations(servers, 2):
        introduce(server, known)
    wait_until(lambda: all(is_whole(server, len(servers)) for server in servers))


def introduce(server: Server, known: Server) -> None:
    """Let a node meet another one."""
    bus = int(known.client.config_get("cluster-port")["cluster-port"])
    server.client.execute_command("CLUSTER", "MEET", "127.0.0.1", known.port, bus)


def is_whole(server: Server, nodes: int) -> bool:
    """Whether a node finds all slots served and knows so many nodes."""
    info = server.client.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:%d\r" % nodes in info


def cluster_url(servers: list[Server]) -> str:
    """Return the URL of a cluster."""
    return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)


@contextmanager
def running_sentinel() -> Iterator[tuple[Server, Server, Server]]:
    """Run a master, its replica and a Sentinel that watches them as `main` for a while."""
    master, replica, sentinel = Server(), Server(), Server(role="sentinel")
    try:
        master.start()
        replica.start()
        replica.client.execute_command("REPLICAOF", "127.0.0.1", master.port)
        wait_until(lambda: replica.client.info("replication")["master_link_status"] == "up")
        sentinel.start()
        sentinel.client.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", master.port, 1)
        for name, value in (("down-after-milliseconds", 400), ("failover-timeout", 3000)):
            sentinel.client.execute_command("SENTINEL", "SET", "main", name, value)
        wait_until(lambda: bool(sentinel.client.execute_command("SENTINEL", "REPLICAS", "main")))
        yield master, replica, sentinel
    finally:
        for server in (sentinel, replica, master):
            server.discard()


def follow(master: Server, replica: Server) -> None:
    """Wait until a replica has all that its master has now."""
    offset = master.client.info("replication")["master_repl_offset"]
    wait_until(lambda: replica.client.info("replication")["slave_repl_offset"] >= offset)


def client_of(port: int, **options: Any) -> Any:
    """Return a plain client, to look at a server from outside."""
    return redis.Redis(port=port, socket_timeout=10, retry=Retry(NoBackoff(), 0), **options)


def everything(client: Any) -> bytes:
    """Return all keys and values of a server as it would save them, the values also as they are shown."""
    found = []
    for name in client.scan_iter(count=1000):
        read = {
            b"string": lambda name: [client.get(name)],
            b"hash": lambda name: [part for pair in client.hgetall(name).items() for part in pair],
            b"list": lambda name: client.lrange(name, 0, -1),
            b"zset": lambda name: client.zrange(name, 0, -1),
            b"set": client.smembers,
        }
        found += [name, client.dump(name) or b"", *read[client.type(name)](name)]
    return b"\n".join(found)


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_until(is_so: Callable[[], object]) -> None:
    """Ask until it is so."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(redis.RedisError):
            if is_so():
                return
        time.sleep(0.02)
    pytest.fail("a server does not come up")


class RedisPlace:
    """A prefix of its own on servers that are there already."""

    shared = True
    _number = 0

    def __init__(self, url: str) -> None:
        RedisPlace._number += 1
        self.prefix = f"test.{os.getpid()}.{RedisPlace._number}"
        self.url = f"{url}{'&' if '?' in url else '?'}prefix={self.prefix}"
        self._nodes = nodes_of(url)

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> RedisStore:
        """Make a store on the prefix."""
        return RedisStore(parse_address(self.url), options, clock)

    def discard(self) -> None:
        """Delete all that is under the prefix."""
        for node in self._nodes:
            for key in node.scan_iter(f"{self.prefix}:*", count=1000):
                node.unlink(key)
            node.close()


class EncryptedRedisPlace(RedisPlace):
    """The same with a key."""

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> RedisStore:
        """Make a store with a key."""
        return super().store(structs.replace(options, encryption_keys=(PASSPHRASE,)), clock)


def nodes_of(url: str) -> list[Any]:
    """Return plain clients of all servers that a URL names."""
    address = parse_address(url)
    login: dict[str, Any] = {"username": address.username, "password": address.password, "db": address.database}
    if address.tls:
        login |= {"ssl": True, "ssl_ca_certs": address.ca_file}
    return [redis.Redis(host=host, port=port, **login) for host, port in address.hosts]
