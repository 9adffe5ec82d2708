"""What a `redis:` URL says: which servers, how they hang together, as whom to speak to them, and where in them.

    redis://[user[:password]@]host[:port][/database]
    redis+sentinel://[user[:password]@]host[:port],host[:port]/service[/database]
    redis+cluster://[user[:password]@]host[:port],host[:port]

With `rediss` in place of `redis` everything is said over TLS. After a question mark: `prefix` (what all keys begin
with), `ca_file`, `cert_file` and `key_file` (PEM, for TLS), `sentinel_username` and `sentinel_password`.
"""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

Kind = Literal["standalone", "sentinel", "cluster"]
Host = tuple[str, int]

SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("standalone", False),
    "rediss": ("standalone", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
"""For each scheme what it leads to, and whether over TLS."""

PORT = 6379
SENTINEL_PORT = 26379
PREFIX = "ullage"
_OPTIONS = {"prefix", "ca_file", "cert_file", "key_file", "sentinel_username", "sentinel_password"}
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]:/@?#\s]+)(?::(?P<port>\d{1,5}))?")


class Address(Struct, frozen=True):
    """A URL taken apart; `service` is the name of a Sentinel's master, `hosts` are the Sentinels then."""

    kind: Kind
    hosts: tuple[Host, ...]
    service: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    prefix: str = PREFIX


def parse_address(url: str) -> Address:
    """Take a URL apart; raises ValueError that says what is wrong with it."""
    scheme, _, rest = url.partition(":")
    kind, tls = SCHEMES[scheme]
    if not rest.startswith("//"):
        raise ValueError(f'"{scheme}:" is followed by two slashes and a host')
    place, _, query = rest[2:].partition("?")
    place, _, path = place.partition("/")
    login, _, hosts = place.rpartition("@")
    username, _, password = login.partition(":")
    service, database = _parse_path(kind, path)
    found = _parse_hosts(hosts, SENTINEL_PORT if kind == "sentinel" else PORT)
    if kind == "standalone" and len(found) > 1:
        raise ValueError(f'"{scheme}:" leads to one host; for several there are redis+sentinel: and redis+cluster:')
    return Address(
        kind=kind,
        hosts=found,
        service=service,
        database=database,
        username=unquote(username) or None,
        password=unquote(password) or None,
        tls=tls,
        **_parse_query(query, kind, tls=tls),
    )


def _parse_hosts(text: str, port: int) -> tuple[Host, ...]:
    hosts: list[Host] = []
    for part in text.split(","):
        found = _HOST.fullmatch(part)
        if found is None:
            raise ValueError("a host is missing" if not part else "a host is written as name or name:port")
        given = int(found["port"] or port)
        if not 0 < given < 1 << 16:
            raise ValueError(f"there is no port {given}")
        hosts.append((found["name"].strip("[]"), given))
    return tuple(hosts)


def _parse_path(kind: Kind, path: str) -> tuple[str, int]:
    """Return service and database."""
    parts = [unquote(part) for part in path.split("/") if part]
    service = ""
    if kind == "sentinel":
        if not parts:
            raise ValueError("after the Sentinels comes a slash and the name of the service that they watch")
        service = parts.pop(0)
    if kind == "cluster" and parts not in ([], ["0"]):
        raise ValueError("a cluster has no database but 0")
    if len(parts) > 1 or (parts and not re.fullmatch(r"\d{1,6}", parts[0])):
        raise ValueError("the database is a number")
    return service, int(parts[0]) if parts else 0


def _parse_query(query: str, kind: Kind, *, tls: bool) -> dict[str, str]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in given.items():
        if name not in _OPTIONS:
            raise ValueError(f'the option "{name}" is not known; there are {", ".join(sorted(_OPTIONS))}')
        if name.endswith("_file") and not tls:
            raise ValueError(f'"{name}" is for TLS: use "rediss"')
        if name.startswith("sentinel_") and kind != "sentinel":
            raise ValueError(f'"{name}" is for Sentinels')
        if not value or (name == "prefix" and not re.fullmatch(r"[A-Za-z0-9_.:-]+", value)):
            raise ValueError(f'"{name}" must not be empty, and a prefix holds letters, digits, and _ . : - alone')
    return given
