"""Whether a Redis server is fit to keep a store: its version, what it does when it is full or restarted.

Eviction and missing persistence do not stop the store from working; they let it forget. So they are findings, to be
logged at the start and shown by whoever looks into the health of an installation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from proxy.errors import ConfigError, StoreError
from proxy.store.redis_connection import Connection

OLDEST = (6, 2)
"""Renewals use ZADD with GT, which is new in 6.2; what is older gets no security fixes either."""

Info = Mapping[str, str]


async def inspect(connection: Connection) -> list[str]:
    """Return what is wrong with the servers, one sentence each; raises ConfigError if one is too old."""
    try:
        replies = await connection.everywhere("INFO")
    except StoreError as error:
        return [f"the servers cannot be looked at: {error.message}"]
    infos = [_parse_info(reply) for reply in replies]
    for info in infos:
        check_version(info)
    saves = await _saves(connection) or [None] * len(infos)
    found = [finding for info, save in zip(infos, saves, strict=False) for finding in judge(info, save)]
    return list(dict.fromkeys(found))


def check_version(info: Info) -> None:
    """Raise ConfigError for a server that lacks what the scripts need."""
    version = info.get("redis_version", "")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise ConfigError(
            f"store.url: the server is Redis {version}; 6.2 or newer is needed (for ZADD with GT)", param="store.url"
        )


def judge(info: Info, save: str | None) -> list[str]:
    """Return what a server is not fit for; `save` is its setting of that name, None if it does not tell."""
    found = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and info.get("maxmemory", "0") != "0":
        found.append(
            f"Redis may drop originals and decisions when it is full (maxmemory-policy {policy}); set it to noeviction"
        )
    if save == "" and info.get("aof_enabled") == "0":
        found.append(
            "Redis keeps nothing over a restart (neither appendonly nor save); set appendonly yes, or sessions are lost"
        )
    return found


async def _saves(connection: Connection) -> Sequence[str | None] | None:
    """Return the setting `save` of each server, None if they do not tell."""
    try:
        replies = await connection.everywhere("CONFIG", "GET", "save")
    except StoreError:
        return None  # managed servers keep their settings to themselves, and are backed up by their owner
    return [reply[1].decode() if len(reply) > 1 else "unknown" for reply in replies]


def _parse_info(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in lines if colon}
