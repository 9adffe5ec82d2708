"""Relays an exchange verbatim: preset `off`, every other route of /v1, the baseline of the benchmark."""

from __future__ import annotations

from proxy.access import Access
from proxy.exchange import Exchange, Responder
from proxy.headers import Headers, response_headers
from proxy.upstream import Transport, UpstreamRequest


class RelayGateway:
    """A gateway that changes nothing."""

    def __init__(self, transport: Transport, access: Access, marks: Headers | None = None) -> None:
        """Take fields of our own (`marks`) to be added to answers."""
        self._transport = transport
        self._access = access
        self._marks = marks or []

    async def handle(self, exchange: Exchange, responder: Responder) -> None:
        """Send the request on and the answer back, each as it comes."""
        destination = await self._access.admit(exchange)
        request = UpstreamRequest(
            target=destination.target,
            method=exchange.method,
            path=exchange.path,
            headers=destination.headers,
            raw_query=exchange.raw_query,
            body=exchange.body if exchange.upload is None else exchange.upload,
            length=None if exchange.upload is None else _declared_length(exchange),
        )
        response = await self._transport.open(request)
        try:
            headers = response_headers(response.headers, response.status)
            await responder.start(response.status, headers + self._marks)
            async for data in response:
                await responder.send(data)
            await responder.finish()
        finally:
            await response.close()


def _declared_length(exchange: Exchange) -> int | None:
    declared = exchange.header(b"content-length")
    return None if declared is None else int(declared)
