"""A cluster: each key belongs to one of 16384 slots, and each slot to one node, which may change at any time.

The map of slots is read from any node, and again after whatever hints that it is out of date. A command that a node
sends elsewhere (MOVED, ASK) was not run, so it is run there; one that got no answer is not repeated.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as Disconnected,
)
from redis.exceptions import (
    TimeoutError as Silent,
)

from proxy.store.redis_address import Address, Host
from proxy.store.redis_places import Part, make_client, send, together

REDIRECTIONS = 5  # at most, for one command
MOVING = 0.02  # seconds until a key that is being moved is asked for again
SLOTS = 16384


class ClusterPlace:
    """The nodes of a cluster."""

    patience = 0.95

    def __init__(self, address: Address) -> None:
        self._address = address
        self._clients: dict[Host, Redis] = {}
        self._owners: list[Host | None] = [None] * SLOTS
        self._stale = True
        self._silent: Host | None = None  # asked for the map after all others
        self._lock = asyncio.Lock()

    def node_of(self, key: str | bytes) -> str:
        """Return the address of a key's owner."""
        return str(self._owners[_slot_of(key)])

    def spread(self, keys: list[str]) -> list[str]:
        """Return one key for each node."""
        first: dict[Host | None, str] = {}
        for key in keys:
            first.setdefault(self._owners[_slot_of(key)], key)
        return list(first.values())

    async def execute(self, key: str | bytes, parts: tuple[Part, ...]) -> Any:  # noqa: ANN401 - replies are of any type
        """Run a command on the owner of a key."""
        slot = _slot_of(key)
        if self._stale or self._owners[slot] is None:
            await self._read_map()
        for _ in range(REDIRECTIONS):
            host = self._owners[slot]
            if host is None:
                break
            try:
                return await send(self._client(host), parts)
            except MovedError as moved:
                self._owners[slot] = (moved.host or host[0], moved.port)
                self._stale = True
            except AskError as ask:
                return await self._ask((ask.host or host[0], ask.port), parts)
            except TryAgainError:
                await asyncio.sleep(MOVING)
            except (Disconnected, Silent, ClusterDownError, asyncio.CancelledError):
                self._silent, self._stale = host, True
                raise
        self._stale = True
        raise ClusterDownError("the slot has no owner", status_code="CLUSTERDOWN")

    async def _ask(self, host: Host, parts: tuple[Part, ...]) -> Any:  # noqa: ANN401 - replies are of any type
        """Run a command where a slot is being moved to."""
        pipeline = self._client(host).pipeline(transaction=False)
        pipeline.execute_command("ASKING")
        pipeline.execute_command(*parts)
        replies = await pipeline.execute()
        return replies[1]

    async def everywhere(self, parts: tuple[Part, ...]) -> list[Any]:
        """Run a command on every node that owns slots."""
        if self._stale:
            await self._read_map()
        owners = sorted({host for host in self._owners if host is not None})
        return await together(send(self._client(host), parts) for host in owners)

    async def _read_map(self) -> None:
        """Ask the nodes in turn who owns what; raises the last error if none can tell."""
        async with self._lock:
            if not self._stale:
                return
            hosts = dict.fromkeys((*(host for host in self._owners if host), *self._address.hosts))
            for host in sorted(hosts, key=lambda host: host == self._silent):
                try:
                    self._use_map(host, await send(self._client(host), ("CLUSTER", "SLOTS")))
                except (RedisError, OSError) as error:
                    self._silent, failure = host, error
                except asyncio.CancelledError:
                    self._silent = host
                    raise
                else:
                    return
            raise failure

    def _use_map(self, asked: Host, rows: list[Any]) -> None:
        owners: list[Host | None] = [None] * SLOTS
        for first, last, primary, *_ in rows:
            host = (primary[0].decode() if primary[0] else asked[0], int(primary[1]))
            owners[first : last + 1] = [host] * (last + 1 - first)
        self._owners, self._stale = owners, False

    def _client(self, host: Host) -> Redis:
        if host not in self._clients:
            self._clients[host] = make_client(self._address, host)
        return self._clients[host]

    async def close(self) -> None:
        """Let go of all connections."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()


def _slot_of(key: str | bytes) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)
