"""An upstream that is the gateway itself: refused when the configuration is taken.

A client's `OPENAI_BASE_URL` leads to the gateway, and the gateway takes its upstream from that same variable. What a
comparison of addresses does not see (a free port, another name of this machine) is found at run time (see `links`).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from proxy.errors import ConfigError
from proxy.settings import Server
from proxy.settings_loader import DEFAULT, Loaded, source_of
from proxy.tables import dotted

_HERE: Final = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1", "::"})  # noqa: S104 - compared, not bound
_PORTS: Final = {"http": 80, "https": 443}


def refuse_own_address(loaded: Loaded) -> None:
    """Raise ConfigError if an upstream is the gateway itself."""
    settings = loaded.settings
    for name in (DEFAULT, *settings.upstreams):
        base_url = settings.upstream_named(name).base_url
        if _is_own(base_url, settings.server):
            table = ("upstream",) if name == DEFAULT else ("upstreams", name)
            key = (*table, "base_url")
            source = source_of(key, loaded.origins) or DEFAULT
            message = f"{source}: {dotted(key)}: {base_url} is this gateway itself, so every request would come back"
            raise ConfigError(f"{message}; {_mend(source)}", param=dotted(key))


def _mend(source: str) -> str:
    if source.startswith("OPENAI_"):
        return "that variable is for the client's terminal: unset it here, or name the provider with --upstream"
    return "name the provider, like https://api.openai.com/v1"


def _is_own(base_url: str, server: Server) -> bool:
    parts = urlsplit(base_url)
    if server.port != (parts.port or _PORTS.get(parts.scheme)):
        return False
    host, own = (parts.hostname or "").rstrip("."), server.host.lower()
    return host == own or (host in _HERE and own in _HERE)
