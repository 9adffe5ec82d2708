"""Where commands go: to one server, or to the one that Sentinels call the master (for a cluster: `redis_cluster`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from proxy.store.redis_address import Address, Host

T = TypeVar("T")
Part = str | bytes | int | float

SILENCE = 0.4  # seconds after which a server that says nothing is given up
SENTINEL_SILENCE = 0.12  # the same for one of several Sentinels
FOLLOW = 1.0  # seconds between two questions to Sentinels who the master is
CONNECTIONS = 64  # at most, to one server


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Make several calls at a time; all have ended when the first failure is raised."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


class Place(Protocol):
    """One way in which servers hang together. All calls raise what the client raises."""

    patience: float
    """Seconds that one call may take, whatever happens."""

    def node_of(self, key: str | bytes) -> str:
        """Return a name of the server that has a key, as far as is known."""

    def spread(self, keys: list[str]) -> list[str]:
        """Return those keys that are the first on their server."""

    async def execute(self, key: str | bytes, parts: tuple[Part, ...]) -> Any:  # noqa: ANN401 - replies are of any type
        """Run a command where a key is."""

    async def everywhere(self, parts: tuple[Part, ...]) -> list[Any]:
        """Run a command on every server that takes writes."""

    async def close(self) -> None:
        """Let go of all connections."""


class OnePlace:
    """One server takes all commands; which one that is, is fixed or asked from Sentinels."""

    patience = 0.45

    def __init__(self, address: Address) -> None:
        self._asked = 0.0
        self._sentinel = _sentinel(address) if address.kind == "sentinel" else None
        if self._sentinel is None:
            self._client = make_client(address, address.hosts[0])
        else:
            options = {**_options(address), "max_connections": CONNECTIONS}
            self._client = self._sentinel.master_for(address.service, **options)
            self._client.response_callbacks.clear()

    def node_of(self, key: str | bytes) -> str:
        """Return the only name."""
        del key
        return ""

    def spread(self, keys: list[str]) -> list[str]:
        """Return one key."""
        return keys[:1]

    async def execute(self, key: str | bytes, parts: tuple[Part, ...]) -> Any:  # noqa: ANN401 - replies are of any type
        """Run a command."""
        del key
        await self._follow()
        return await send(self._client, parts)

    async def _follow(self) -> None:
        """Ask the Sentinels now and then: one that is master no more takes writes for a while, and loses them."""
        pool = self._client.connection_pool
        now = time.monotonic()
        if isinstance(pool, SentinelConnectionPool) and now - self._asked > FOLLOW:
            self._asked = now
            with contextlib.suppress(RedisError):  # without Sentinels the master that is known is used
                await pool.get_master_address()  # type: ignore[no-untyped-call]  # the library's is open

    async def everywhere(self, parts: tuple[Part, ...]) -> list[Any]:
        """Run a command once."""
        return [await send(self._client, parts)]

    async def close(self) -> None:
        """Let go of all connections."""
        await self._client.aclose()
        await self._client.connection_pool.disconnect()
        if self._sentinel is not None:
            await self._sentinel.aclose()


async def send(client: Redis, parts: tuple[Part, ...]) -> Any:  # noqa: ANN401 - replies are of any type
    """Run a command on one server."""
    return await client.execute_command(*parts)  # type: ignore[no-untyped-call]  # the library's is open


def make_client(address: Address, host: Host) -> Redis:
    """Return a client of one server, which connects when it is used, and gives replies as they came."""
    options = _options(address)
    client = Redis(host=host[0], port=host[1], max_connections=CONNECTIONS, **options)
    client.response_callbacks.clear()
    return client


def _options(address: Address) -> dict[str, Any]:
    """Return what the client library is told about every connection; it must not try again by itself."""
    options: dict[str, Any] = {
        "db": address.database,
        "username": address.username,
        "password": address.password,
        **_transport(address, SILENCE),
    }
    return options


def _transport(address: Address, silence: float) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "socket_timeout": silence,
        "socket_connect_timeout": silence,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "driver_info": None,
    }
    if not address.tls:
        return plain
    return {
        **plain,
        "ssl": True,
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_ca_certs": address.ca_file,
        "ssl_certfile": address.cert_file,
        "ssl_keyfile": address.key_file,
    }


def _sentinel(address: Address) -> Sentinel:
    login = {"username": address.sentinel_username, "password": address.sentinel_password}
    options = {**login, **_transport(address, SENTINEL_SILENCE)}
    return Sentinel(address.hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call]  # the library's is open
