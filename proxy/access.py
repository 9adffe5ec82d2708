"""Where a relayed request goes and with which credential; clients bring the provider's key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from proxy.exchange import Exchange
from proxy.headers import Headers, request_headers
from proxy.target import UpstreamTarget
from proxy.tenants import CREDENTIAL_HEADERS, identify


class Destination(Struct, frozen=True):
    """Where a request goes and the fields that it takes along."""

    target: UpstreamTarget
    headers: Headers


class Access(Protocol):
    """Decides about a request by its credential."""

    async def admit(self, exchange: Exchange) -> Destination:
        """Return where the request goes, its body unchanged; raises Unauthenticated or Forbidden."""
        ...


class Provider(Struct, frozen=True):
    """An upstream and the key to be lent to local clients without one."""

    target: UpstreamTarget
    api_key: str | None = None


class PassThrough:
    """One upstream, the client's own credential."""

    def __init__(self, provider: Callable[[], Provider]) -> None:
        """Take a function that gives the provider in force now, so that a reload needs no new object."""
        self._provider = provider

    async def admit(self, exchange: Exchange) -> Destination:
        """Return the upstream with the client's fields; raises Unauthenticated."""
        provider = self._provider()
        headers = request_headers(exchange.headers)
        # A browser asks for permission (OPTIONS) without a credential: that needs none and spends nothing.
        if exchange.method != "OPTIONS" and not has_credential(headers):
            is_loopback = exchange.client_is_loopback
            # The secret only names the tenant, which a relayed request does not need.
            headers += identify(exchange.headers, b"", provider.api_key, is_loopback=is_loopback).credential
        return Destination(provider.target, headers)


def has_credential(headers: Headers) -> bool:
    """Tell whether a client presents a credential in one of the usual fields."""
    return any(name in CREDENTIAL_HEADERS and value.strip() for name, value in headers)
