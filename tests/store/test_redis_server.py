"""Whether a server is fit to keep a store."""

from __future__ import annotations

import pytest

from proxy.errors import ConfigError
from proxy.store import redis_server
from proxy.store.redis_address import parse_address
from proxy.store.redis_connection import Connection
from proxy.store.redis_server import check_version, inspect, judge
from tests.store.redis_servers import running

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("info", "save", "found"),
    [
        ({"aof_enabled": "1"}, "", []),
        ({"aof_enabled": "0"}, "3600 1", []),
        ({"aof_enabled": "0"}, None, []),
        ({"aof_enabled": "0"}, "", ["appendonly"]),
        ({"maxmemory": "100", "maxmemory_policy": "noeviction"}, None, []),
        ({"maxmemory": "0", "maxmemory_policy": "allkeys-lru"}, None, []),
        ({"maxmemory": "100", "maxmemory_policy": "volatile-ttl"}, None, ["volatile-ttl"]),
        ({"maxmemory": "9", "maxmemory_policy": "allkeys-lfu", "aof_enabled": "0"}, "", ["allkeys-lfu", "appendonly"]),
    ],
)
def test_what_makes_a_server_forget(info: dict[str, str], save: str | None, found: list[str]) -> None:
    """Eviction counts where there is a limit, and persistence where the server tells of it."""
    findings = judge(info, save)
    assert len(findings) == len(found)
    assert all(word in finding for word, finding in zip(found, findings, strict=True))


@pytest.mark.parametrize(("version", "fits"), [("6.0.16", False), ("6.2.0", True), ("7.0.15", True), ("10.1", True)])
def test_an_old_server_is_refused(version: str, fits: bool) -> None:
    """Before 6.2 the scripts do not run."""
    if fits:
        check_version({"redis_version": version})
        return
    with pytest.raises(ConfigError, match="or newer is needed"):
        check_version({"redis_version": version})


@pytest.mark.redis
async def test_a_real_server_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server says of itself is understood; one that does not tell is not blamed for it."""
    with running() as server:
        connection = Connection(parse_address(server.url))
        assert ["appendonly" in finding for finding in await inspect(connection)] == [True]
        server.client.config_set("save", "3600 1")
        assert await inspect(connection) == []
        server.client.config_set("save", "")
        server.client.acl_setuser("default", commands=["-config"])
        assert await inspect(connection) == []
        monkeypatch.setattr(redis_server, "OLDEST", (99, 0))
        with pytest.raises(ConfigError):
            await inspect(connection)
        server.kill()
        assert ["cannot be looked at" in finding for finding in await inspect(connection)] == [True]
        await connection.close()
