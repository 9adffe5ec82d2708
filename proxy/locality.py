"""Whether a request was made by a program on this machine, directly and under a loopback name.

Only such a request may spend the configured key without a credential of its own, or administrate without a
key. The peer's address alone does not tell: a reverse proxy on this machine forwards strangers, a page in a
local browser asks for its author, and a foreign name can be pointed at 127.0.0.1 by its owner's DNS.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from proxy.headers import Headers

_FORWARDED: Final = frozenset({b"forwarded", b"via"})
_FORWARDED_PREFIX: Final = b"x-forwarded-"
_OWN_SITE: Final = frozenset({b"same-origin", b"none"})


def is_local(peer: str, headers: Headers) -> bool:
    """Tell whether a request (header names in lower case) comes straight from this machine."""
    if not is_loopback_host(peer):
        return False
    fields = dict(headers)
    host = fields.get(b"host", b"").decode("latin-1").lower()
    return (
        _is_loopback_authority(host)
        and _FORWARDED.isdisjoint(fields)
        and not any(name.startswith(_FORWARDED_PREFIX) for name in fields)
        and fields.get(b"sec-fetch-site", b"none") in _OWN_SITE
        and fields.get(b"origin", b"").decode("latin-1").lower() in {"", f"http://{host}", f"https://{host}"}
    )


@lru_cache(maxsize=1024)
def is_loopback_host(host: str) -> bool:
    """Tell whether a host name or address (without port and brackets) is this machine's loopback."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


@lru_cache(maxsize=1024)
def _is_loopback_authority(authority: str) -> bool:
    try:
        return is_loopback_host(urlsplit(f"//{authority}").hostname or "")
    except ValueError:
        return False
