"""How the store speaks to Redis: within a time limit, in scripts, and without waiting again for who was silent.

A call to a server that does not answer costs as much time as its place allows. Then the server is taken for frozen: for
a moment calls to it fail at once, after which one call finds out whether it is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as Silent

from proxy.errors import ConfigError, Unavailable
from proxy.store.redis_address import Address
from proxy.store.redis_cluster import ClusterPlace
from proxy.store.redis_errors import explain
from proxy.store.redis_keys import Keys, as_bytes
from proxy.store.redis_places import OnePlace, Part, Place, together
from proxy.store.redis_scripts import Script

T = TypeVar("T")

SCHEMA = 1
PAUSE = 0.5  # seconds for which a server that was silent is left alone
ALL = "all"  # stands for all servers where the name of one is expected
CALLS = 48  # at most at a time; the others wait within their time limit


class Connection:
    """Sends commands and scripts; raises StoreErrors only, except for `attempt`."""

    def __init__(self, address: Address) -> None:
        self.keys = Keys(address.prefix)
        self._place: Place = ClusterPlace(address) if address.kind == "cluster" else OnePlace(address)
        self._pauses: dict[str, float] = {}
        self._room = asyncio.Semaphore(CALLS)
        self._checked = False
        self._closed = False

    async def command(self, key: str | bytes, *parts: Part) -> Any:  # noqa: ANN401 - replies are of any type
        """Run a command on the server that has a key."""
        return await self._within(key, lambda: self._place.execute(key, parts))

    async def run(self, script: Script, root: str, *arguments: Part) -> Any:  # noqa: ANN401 - replies are of any type
        """Run a script on the keys of one tenant."""
        return await self._within(root, lambda: self._run(script, root, arguments))

    async def _run(self, script: Script, root: str, arguments: tuple[Part, ...]) -> Any:  # noqa: ANN401 - as above
        try:
            return await self._place.execute(root, ("EVALSHA", script.digest, 1, root, *arguments))
        except NoScriptError:
            return await self._place.execute(root, ("EVAL", script.text, 1, root, *arguments))

    async def everywhere(self, *parts: Part) -> list[Any]:
        """Run a command on every server that takes writes."""
        return await self._within(None, lambda: self._place.everywhere(parts))

    def spread(self, keys: list[str]) -> list[str]:
        """Return those keys that are the first on their server."""
        return self._place.spread(keys)

    async def _within(self, key: str | bytes | None, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call and say what its failure means."""
        try:
            return await self._timed(key, call)
        except ConfigError as error:
            raise Unavailable(error.message) from error
        except (RedisError, OSError) as error:
            raise explain(error) from error

    async def attempt(self) -> None:
        """Connect and look at the schema; raises what the client raises, and ConfigError for a newer schema."""
        await self._timed(self.keys.schema, self._check)

    async def _timed(self, key: str | bytes | None, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call in time; `key` tells which server is asked, None all of them."""
        if self._closed:
            raise Unavailable("the store is closed")
        node = ALL if key is None else self._place.node_of(key)
        self._ask_for(node)
        is_sent = False
        try:
            async with asyncio.timeout(self._place.patience), self._room:
                is_sent = True
                await self._check()
                reply = await call()
        except (TimeoutError, Silent):
            if is_sent:
                self._pauses[node] = time.monotonic() + PAUSE
            raise Unavailable("Redis does not answer") from None
        except (RedisError, ConfigError):
            self._pauses.pop(node, None)  # whoever refuses is not frozen
            raise
        self._pauses.pop(node, None)
        return reply

    def _ask_for(self, node: str) -> None:
        """Let a call pass, unless the server was silent a moment ago; after that moment let one find out for all."""
        until, now = self._pauses.get(node), time.monotonic()
        if until is not None:
            if now < until:
                raise Unavailable("Redis did not answer a moment ago")
            self._pauses[node] = now + self._place.patience

    async def _check(self) -> None:
        """Look at the schema once, creating it in an empty place."""
        if self._checked:
            return
        key = self.keys.schema
        found = await self._place.execute(key, ("GET", key))
        if found is None:
            await self._place.execute(key, ("SET", key, SCHEMA, "NX"))
        elif not found.isdigit() or int(found) > SCHEMA:
            raise ConfigError(
                f"store.url: what lies under {key!r} has schema {found.decode(errors='replace')}, this version knows "
                f'{SCHEMA}; start the newer ullage that wrote it, or choose another "?prefix="',
                param="store.url",
            )
        self._checked = True

    async def register(self, tenant: str) -> None:
        """Put a tenant on the list of all, and the schema in its place: the server may have been emptied."""
        tenants, schema = self.keys.tenants, self.keys.schema
        await together(
            [
                self.command(tenants, "SADD", tenants, as_bytes(tenant)),
                self.command(schema, "SET", schema, SCHEMA, "NX"),
            ]
        )

    async def close(self) -> None:
        """Let go of all connections."""
        self._closed = True
        await self._place.close()
