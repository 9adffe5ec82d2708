"""Where an upstream is and how it is reached: joined URLs, time-outs, trusted roots, proxy.

A base URL is what an OpenAI client would be given: its path stands for the client's `/v1`. So
`https://x/v1`, `https://x/v1/` and `http://x/openai/deployments/d` lead `/v1/models` to
`https://x/v1/models` and `http://x/openai/deployments/d/models`. A bare host (`https://x`, `https://x/`)
means `https://x/v1`. A query in the base URL is put before the client's. Path and query of the client are
appended byte for byte.

Proxies follow the usual variables: `HTTPS_PROXY`, `HTTP_PROXY` by the upstream's scheme, else `ALL_PROXY`,
upper case first; `NO_PROXY` holds host names (with their subdomains), addresses, networks (`10.0.0.0/8`),
each with an optional port, or `*`. A loopback upstream is never asked through a proxy.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from proxy.errors import ConfigError
from proxy.locality import is_loopback_host

_CLIENT_PREFIX: Final = "/v1"
_PORTS: Final = {"http": 80, "https": 443}
_UNSAFE: Final = re.compile(r"[^\x21-\x7e]")


class UpstreamTarget(Struct, frozen=True):
    """One upstream, ready to be asked."""

    origin: str  # "https://api.openai.com"
    prefix: str  # what replaces the client's /v1: "/v1", "/openai/deployments/d"
    query: str = ""  # from the base URL
    connect_seconds: float = 5.0
    read_seconds: float = 600.0  # between two arrivals of bytes
    proxy: str | None = None
    tls: ssl.SSLContext | None = None  # None: the default roots

    def url(self, path: str, raw_query: str = "") -> str:
        """Return the upstream's URL for a client path under /v1."""
        query = f"{self.query}&{raw_query}" if self.query and raw_query else self.query or raw_query
        address = self.origin + self.prefix + path.removeprefix(_CLIENT_PREFIX)
        return f"{address}?{query}" if query else address


class Reach(Struct, frozen=True):
    """How an upstream is reached, beside its base URL."""

    connect_seconds: float = 5.0
    read_seconds: float = 600.0
    ca_file: str | None = None


def make_target(base_url: str, reach: Reach, environ: Mapping[str, str], *, key: str = "upstream") -> UpstreamTarget:
    """Check a base URL and return its target; raises ConfigError that names `key` and the mend."""
    parts = _split(base_url, key)
    host = parts.hostname or ""
    name = f"[{host}]" if ":" in host else _ascii(host, key)
    port = _port(parts, key)
    origin = f"{parts.scheme}://{name}" + (f":{port}" if port and port != _PORTS[parts.scheme] else "")
    return UpstreamTarget(
        origin=origin,
        prefix=parts.path.rstrip("/") or _CLIENT_PREFIX,
        query=parts.query,
        connect_seconds=reach.connect_seconds,
        read_seconds=reach.read_seconds,
        proxy=find_proxy(origin, environ),
        tls=_trusting(reach.ca_file, key) if reach.ca_file else None,
    )


def find_proxy(origin: str, environ: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy that the environment names for this origin, or None."""
    parts = urlsplit(origin)
    host = parts.hostname or ""
    port = parts.port or _PORTS[parts.scheme]
    if is_loopback_host(host) or _is_excepted(host, port, _variable(environ, "NO_PROXY")[1]):
        return None
    name, value = _variable(environ, f"{parts.scheme.upper()}_PROXY", "ALL_PROXY")
    if not value:
        return None
    proxy = value if "://" in value else f"http://{value}"
    if urlsplit(proxy).scheme not in _PORTS or not urlsplit(proxy).hostname:
        msg = f"{name}: only http:// and https:// proxies can be used; mend it or add {host} to NO_PROXY"
        raise ConfigError(msg)
    return proxy


def _split(base_url: str, key: str) -> SplitResult:
    mend = "give it as for an OpenAI client, like https://api.openai.com/v1"
    try:
        parts = urlsplit(base_url.strip())
    except ValueError as error:
        msg = f"{key}.base_url: {error}; {mend}"
        raise ConfigError(msg) from error
    if parts.scheme not in _PORTS or not parts.hostname:
        msg = f"{key}.base_url: {base_url!r} is no http or https address; {mend}"
        raise ConfigError(msg)
    if parts.username or parts.password:
        msg = f"{key}.base_url: must not hold a credential; put it into {key}.api_key"
        raise ConfigError(msg)
    if parts.fragment or _UNSAFE.search(parts.path + parts.query):
        msg = f"{key}.base_url: has a fragment, a blank or a character that must be percent-encoded; {mend}"
        raise ConfigError(msg)
    return parts


def _port(parts: SplitResult, key: str) -> int | None:
    try:
        return parts.port
    except ValueError as error:
        msg = f"{key}.base_url: {error}"
        raise ConfigError(msg) from error


def _ascii(host: str, key: str) -> str:
    try:
        return host if host.isascii() else host.encode("idna").decode()
    except UnicodeError as error:
        msg = f"{key}.base_url: {host!r} is no host name ({error})"
        raise ConfigError(msg) from error


def _trusting(ca_file: str, key: str) -> ssl.SSLContext:
    """Return a context that trusts the default roots and those of the file."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_verify_locations(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        msg = f"{key}.ca_file: {ca_file} cannot be used ({error}); it must be a file of PEM certificates"
        raise ConfigError(msg) from error
    return context


def _variable(environ: Mapping[str, str], *names: str) -> tuple[str, str]:
    """Return the first of these variables that is set, in upper or lower case, with its value."""
    for name in names:
        for spelling in (name, name.lower()):
            if value := environ.get(spelling, "").strip():
                return spelling, value
    return names[0], ""


def _is_excepted(host: str, port: int, exceptions: str) -> bool:
    return any(_matches(host.rstrip("."), port, entry) for entry in exceptions.replace(",", " ").lower().split())


def _matches(host: str, port: int, entry: str) -> bool:
    if entry == "*":
        return True
    address = _address(host)
    if network := _network(entry):
        return address is not None and address in network
    name, _, wanted = entry.rpartition(":") if entry.count(":") == 1 or "]:" in entry else (entry, "", "")
    if wanted and wanted != str(port):
        return False
    name = name.strip("[]").removeprefix("*").removeprefix(".")
    return host == name or host.endswith(f".{name}") or (address is not None and address == _address(name))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        return None
