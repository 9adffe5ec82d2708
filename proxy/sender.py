"""The upstream requests of one exchange: the client's own, and those that the gateway makes on its behalf."""

from __future__ import annotations

from typing import Final

import msgspec

from proxy.access import Provider
from proxy.exchange import Exchange
from proxy.headers import Headers, request_headers
from proxy.tenants import Caller, bearer, without_credential
from proxy.upstream import UpstreamRequest

# They stand for the client's request; one of ours under the same key would get that one's answer, or a refusal.
_OF_ONE_REQUEST: Final = frozenset({b"idempotency-key", b"x-idempotency-key", b"x-request-id", b"x-client-request-id"})


class Sender:
    """Makes the upstream requests of one exchange."""

    def __init__(self, exchange: Exchange, provider: Provider, caller: Caller) -> None:
        self._exchange = exchange
        self._provider = provider
        self._caller = caller

    def towards(self, provider: Provider) -> Sender:
        """Return the sender of requests to another model's upstream: with that one's key, never with the client's."""
        if provider.target.origin == self._provider.target.origin:
            return Sender(self._exchange, provider, self._caller)
        key = () if provider.api_key is None else (bearer(provider.api_key),)
        stripped = msgspec.structs.replace(self._exchange, headers=without_credential(self._exchange.headers))
        return Sender(stripped, provider, Caller(self._caller.tenant, key))

    def first(self, body: bytes, *, readable: bool) -> UpstreamRequest:
        """Return the request that the client asked for; `readable` asks for an answer without a content coding."""
        return self._request(body, self._headers(body, readable=readable))

    def further(self, body: bytes) -> UpstreamRequest:
        """Return a request of the gateway's own: a retry, a hidden round or a summary."""
        return self._request(body, [pair for pair in self._headers(body, readable=True) if not _is_bound(pair)])

    def _headers(self, body: bytes, *, readable: bool) -> Headers:
        changed = body is not self._exchange.body
        return [*request_headers(self._exchange.headers, changed=changed, readable=readable), *self._caller.credential]

    def _request(self, body: bytes, headers: Headers) -> UpstreamRequest:
        return UpstreamRequest(
            target=self._provider.target,
            method=self._exchange.method,
            path=self._exchange.path,
            headers=headers,
            raw_query=self._exchange.raw_query,
            body=body,
        )


def _is_bound(pair: tuple[bytes, bytes]) -> bool:
    return pair[0] in _OF_ONE_REQUEST
