"""Who may look at what the gateway keeps, and who may administrate: the rule for all that is outside of /v1.

A client sees its own tenant's things with the credential that it uses under /v1 anyway. The administrator sees
all. With `server.admin_key` set that is who presents it, from wherever; without it, who has no credential and
asks straight from this machine (see `locality`). Everybody else has no business here.

Nothing but the request decides, so that the rule can be tried without a server.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import Final

from msgspec import Struct

from proxy.errors import Unauthenticated
from proxy.headers import Headers
from proxy.locality import is_local
from proxy.tenants import ANONYMOUS, CREDENTIAL_HEADERS, identify, tenant_of


class Viewer(Struct, frozen=True):
    """Who asks: a tenant, who sees its own things, or the administrator (`tenant` is None), who sees all."""

    tenant: str | None


ADMINISTRATOR: Final = Viewer(None)


def admit(peer: str, headers: Headers, secret: bytes, admin_key: str | None) -> Viewer:
    """Return as whom a request (header names in lower case) may look; raises Unauthenticated.

    `peer` is the address of the other end ("": unknown), `secret` names the tenants. A credential is always taken
    at its word: a local client that presents one sees its tenant alone.
    """
    if admin_key is not None and _presents(headers, admin_key):
        return ADMINISTRATOR
    tenant = identify(headers, secret, None, is_loopback=False).tenant
    if tenant != ANONYMOUS:
        return Viewer(tenant)
    if not is_administrator(peer, headers, admin_key):
        raise _refusal(admin_key)
    return ADMINISTRATOR


def is_administrator(peer: str, headers: Headers, admin_key: str | None) -> bool:
    """Tell whether a request may administrate, whatever other credential it presents."""
    return is_local(peer, headers) if admin_key is None else _presents(headers, admin_key)


def _presents(headers: Headers, admin_key: str) -> bool:
    """Tell whether a credential is this key; the time it takes depends on neither, as digests are compared."""
    wanted = tenant_of(admin_key.encode(), b"")
    return any(name in CREDENTIAL_HEADERS and compare_digest(tenant_of(value, b""), wanted) for name, value in headers)


def _refusal(admin_key: str | None) -> Unauthenticated:
    local = "without one, programs on this machine alone see anything, asked directly and by a loopback name"
    keyed = "server.admin_key, presented so, shows everything"
    return Unauthenticated(
        "no credential: send the key that you use under /v1 as 'Authorization: Bearer …' to see what is kept for it; "
        + (local if admin_key is None else keyed)
    )
