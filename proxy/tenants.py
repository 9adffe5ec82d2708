"""Who is calling: in pass-through mode the tenant is a keyed hash of the client's own credential."""

from __future__ import annotations

import msgspec

from proxy.core.history import digest
from proxy.errors import Unauthenticated

ANONYMOUS = "anonymous"
CREDENTIAL_HEADERS = (b"authorization", b"x-api-key", b"api-key")
Headers = list[tuple[bytes, bytes]]


class Caller(msgspec.Struct, frozen=True):
    """A tenant, and the credential headers that go upstream in place of the client's (none: as they came)."""

    tenant: str
    credential: tuple[tuple[bytes, bytes], ...] = ()


def identify(headers: Headers, secret: bytes, api_key: str | None, *, is_loopback: bool) -> Caller:
    """Return the caller of a request in pass-through mode.

    The client's credential goes upstream unchanged; only a request without one uses `upstream.api_key`, and only from
    loopback.
    """
    for wanted in CREDENTIAL_HEADERS:
        for name, value in headers:
            if name == wanted and value.strip():
                return Caller(tenant_of(value, secret))
    if api_key is None:
        return Caller(ANONYMOUS)
    if not is_loopback:
        raise Unauthenticated(
            "no credential: send your provider's key as 'Authorization: Bearer …'; "
            "the key configured for the gateway serves local clients alone"
        )
    return Caller(ANONYMOUS, (bearer(api_key),))


def bearer(api_key: str) -> tuple[bytes, bytes]:
    """Return the header that presents a key to an upstream."""
    return b"authorization", b"Bearer " + api_key.encode()


def without_credential(headers: Headers) -> Headers:
    """Return the fields without those that present a credential."""
    return [pair for pair in headers if pair[0] not in CREDENTIAL_HEADERS]


def tenant_of(credential: bytes, secret: bytes) -> str:
    """Return the name of the tenant that a credential stands for; it does not give the credential away."""
    credential = credential.strip()
    if credential[:7].lower() == b"bearer ":
        credential = credential[7:].strip()
    return "t_" + digest(b"tenant", credential, key=secret).hex()
