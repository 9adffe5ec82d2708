"""Connections as a relay needs them: aiohttp's own classes, told to add nothing and to know what they did.

- no field that the caller did not give, but Host and framing; duplicates, order and case kept
- a small body is written together with its head, without a task of its own; a large one without a warning
- a connection knows whether it served before and whether anything came for the present request, so that a request
  that a kept connection swallowed can be told from one that was refused
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from functools import partial
from typing import Any, Final, cast

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection as Lent
from multidict import CIMultiDict

from proxy.gathering import Gathered
from proxy.headers import Headers, as_text
from proxy.links import Link, Links

BUFFER_BYTES: Final = 256 * 1024
"""Of an answer; up to here a body is handed to the socket in one go, too."""

_IDLE_SECONDS: Final = 60.0
_NO_CONTENT_TYPE: Final[CIMultiDict[None]] = CIMultiDict({"content-type": None})  # must not be added


class Attempt:
    """One request on its way: what is sent, over which connection."""

    __slots__ = ("body", "connection", "headers", "is_reused")

    def __init__(self, headers: Headers, body: bytes | AsyncIterable[bytes]) -> None:
        self.headers = headers
        self.body = body
        self.connection: Connection | None = None
        self.is_reused = False

    def may_be_repeated(self, error: Exception) -> bool:
        """Tell whether a kept connection turned out to be closed, and the body is still at hand."""
        return (
            isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError))
            and not isinstance(error, aiohttp.ClientConnectorError)
            and self.is_reused
            and self.connection is not None
            and self.connection.is_silent
            and isinstance(self.body, bytes)
        )

    def __bool__(self) -> bool:
        """Tell aiohttp that there is a body, so that it asks `Request` about it."""
        return True


class Connection(ResponseHandler):
    """A connection that knows whether it served before and whether anything came for the present request."""

    served = 0
    is_silent = True
    _link: Link | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, links: Links) -> None:
        super().__init__(loop)
        self._links = links

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the connection, so that a request of ours is known when it comes back."""
        super().connection_made(transport)
        self._link = self._links.add(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._links.discard(self._link)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in bytes of an answer."""
        self.is_silent = False
        super().data_received(data)


class Connector(aiohttp.TCPConnector):
    """Makes connections of our kind and notes them in `links`."""

    def __init__(self, links: Links, *, limit: int = 0, force_close: bool = False) -> None:
        idle = None if force_close else _IDLE_SECONDS
        super().__init__(limit=limit, force_close=force_close, keepalive_timeout=idle, ttl_dns_cache=30)
        # aiohttp has no parameter for the class of its connections.
        self._factory = cast("Any", partial(Connection, self._loop, links))


class Request(aiohttp.ClientRequest):
    """A request with the given fields alone, whose small body goes in the same write as its head."""

    def __init__(self, *args: Any, data: Attempt, **options: Any) -> None:  # noqa: ANN401 - what aiohttp gives
        self.attempt = data
        super().__init__(*args, data=data, **options)

    def update_headers(self, headers: object) -> None:  # noqa: ARG002 - aiohttp's own
        """Take the caller's fields as they are."""
        host = self.url.host_port_subcomponent or ""
        fields = [(as_text(name), as_text(value)) for name, value in self.attempt.headers]
        self.headers = CIMultiDict([("Host", host), *fields])

    def update_auto_headers(self, skip_auto_headers: object) -> None:  # noqa: ARG002 - aiohttp's own
        """Add none."""
        self._skip_auto_headers = _NO_CONTENT_TYPE

    def update_body_from_data(self, body: Attempt, _stacklevel: int = 3) -> None:
        """Keep a small body for the write of the head."""
        data = body.body
        if not isinstance(data, bytes):
            super().update_body_from_data(data, _stacklevel)
        elif len(data) > BUFFER_BYTES:
            super().update_body_from_data(_Large(data), _stacklevel)
        elif data:
            self.headers["Content-Length"] = str(len(data))
        else:
            super().update_body_from_data(None, _stacklevel)

    async def send(self, conn: Lent) -> aiohttp.ClientResponse:
        """Write the request; head and small body go in one write."""
        attempt = self.attempt
        connection = cast("Connection", conn.protocol)
        attempt.connection = connection
        attempt.is_reused = connection.served > 0
        connection.served += 1
        connection.is_silent = True
        transport = connection.transport
        if self._body is not None or transport is None or transport.is_closing():
            return await super().send(conn)
        gathered = Gathered()
        connection.transport = cast("asyncio.Transport", gathered)
        try:
            response = await super().send(conn)
        finally:
            connection.transport = transport
        transport.writelines([*gathered.parts, cast("bytes", attempt.body)])
        return response


class _Large(aiohttp.Payload):
    """A large body at hand: aiohttp's own class for bytes warns about it and joins it with the head."""

    _autoclose = True

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self._size = len(value)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return cast("bytes", self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        writer.send_headers()
        await writer.write(self._value)
