"""Asks upstreams: a thin httpx transport over aiohttp's sockets, called directly.

A relay wants none of a client's comforts: no redirects, cookies, decoding, automatic fields, pool limit.
Calling the transport itself costs a fifth of `httpx.AsyncClient`; tests may put an `httpx.MockTransport` in
its place. What holds here, against aiohttp's habits, and is tested:

- no cookies kept; no field that the caller did not give, but Host and framing; duplicates, order, case kept
- the URL leaves as it came; the body comes back as it was sent, coded or not
- header fields of 64 KiB and more, any number of connections
- a small body is written together with its head, without a task of its own; a large one without a warning
- a request is sent again, once and on a new connection, if a kept connection ended before the first byte of
  an answer and the body is at hand: the upstream closed it while idle. Nothing else is ever sent twice
- cancelling `open` or closing a response closes its connection at once, unless the answer was complete
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from functools import lru_cache, partial
from typing import Any, Final, cast

import aiohttp
import httpx
import yarl
from msgspec import Struct

from proxy.connection import BUFFER_BYTES, Attempt, Connector, Request
from proxy.errors import Garbled, TimedOut, Unreachable, UpstreamError
from proxy.headers import Headers, as_text
from proxy.links import Links
from proxy.target import UpstreamTarget

_MAX_FIELD_BYTES: Final = 256 * 1024
_MAX_FIELDS: Final = 1000
_SERVABLE: Final = range(200, 600)


class UpstreamRequest(Struct, frozen=True):
    """What is asked of an upstream."""

    target: UpstreamTarget
    method: str
    path: str  # the client's, under /v1
    headers: Headers
    raw_query: bytes = b""
    body: bytes | AsyncIterable[bytes] = b""
    length: int | None = None  # bytes of a streamed body; None: unknown


class LastAnswer(Struct, frozen=True):
    """How an upstream answered last."""

    at: float  # seconds since 1970
    status: int | None = None
    code: str | None = None  # of our error, when it did not answer


class UpstreamResponse:
    """An answer whose head has arrived: iterate over its body as it comes, then `close`."""

    __slots__ = ("_body", "_head", "_next", "_stream", "headers", "status")

    def __init__(self, status: int, headers: Headers, stream: httpx.AsyncByteStream) -> None:
        self.status = status
        self.headers = headers
        self._stream = stream
        self._body = aiter(stream)
        self._head = b""  # read ahead
        self._next: asyncio.Future[bytes] | None = None  # being read ahead

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        kinds = (value for name, value in self.headers if name.lower() == b"content-type")
        return next(kinds, b"").lower().lstrip().startswith(b"text/event-stream")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body's bytes as they arrive; raises UpstreamError when the answer breaks off."""
        if self._head:
            head, self._head = self._head, b""
            yield head
        try:
            if self._next is not None and (data := await self._next):
                yield data
            async for data in self._body:
                yield data
        except httpx.HTTPError as error:
            raise _explained(error) from error

    async def peek(self, is_enough: Callable[[bytes], bool], seconds: float) -> bytes:
        """Read until this is enough of the body, it ends, or so long; all of it is still yielded to who iterates.

        Never raises: an answer that breaks off does so for who iterates. Whoever gives up waiting closes it.
        """
        deadline = time.monotonic() + seconds
        while not is_enough(self._head):
            self._next = self._next or asyncio.ensure_future(_next(self._body))
            try:
                await asyncio.wait({self._next}, timeout=max(0.0, deadline - time.monotonic()))
            except asyncio.CancelledError:
                await self.close()
                raise
            if not self._next.done() or self._next.exception() or not self._next.result():
                break
            self._head += self._next.result()
            self._next = None
        return self._head

    async def hold(self) -> bytes:
        """Read the whole body, which is still yielded to who iterates; as `peek` does in all else."""
        pieces = [self._head]
        try:
            async for data in self._body:
                pieces.append(data)  # noqa: PERF401 - what came before a fault counts
        except httpx.HTTPError as error:
            self._next = asyncio.get_running_loop().create_future()
            self._next.set_exception(error)
        except asyncio.CancelledError:
            await self.close()
            raise
        self._head = b"".join(pieces)
        return self._head

    async def read(self) -> bytes:
        """Return the whole body and close."""
        try:
            return b"".join([data async for data in self])
        finally:
            await self.close()

    async def close(self) -> None:
        """Let go of the connection: it is kept if the answer is complete, else closed. May be repeated."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._stream.aclose()


async def _next(body: AsyncIterator[bytes]) -> bytes:
    return await anext(body, b"")


class Transport:
    """Opens requests to upstreams and remembers how each answered last."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.links = Links()  # so that a request of ours is known when it comes back
        self._transport = transport or AiohttpTransport(links=self.links)
        self.last_answers: dict[str, LastAnswer] = {}  # by origin

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request and wait for the head of its answer; raises UpstreamError."""
        origin = request.target.origin
        try:
            response = await self._transport.handle_async_request(_seam_request(request))
        except httpx.HTTPError as error:
            mapped = _explained(error)
            self.last_answers[origin] = LastAnswer(time.time(), code=mapped.code)
            raise mapped from error
        stream = cast("httpx.AsyncByteStream", response.stream)
        status = response.status_code
        if status not in _SERVABLE:
            await stream.aclose()
            self.last_answers[origin] = LastAnswer(time.time(), code=Garbled.code)
            raise Garbled(f"Upstream {origin}: answered with status {status}, which no client understands.")
        self.last_answers[origin] = LastAnswer(time.time(), status=status)
        return UpstreamResponse(status, response.headers.raw, stream)

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()


def _seam_request(request: UpstreamRequest) -> httpx.Request:
    url = request.target.url(request.path, as_text(request.raw_query))
    body, headers = request.body, request.headers
    stream: Any = httpx.ByteStream(body) if isinstance(body, bytes) else body
    if request.length is not None:
        headers = [*headers, (b"content-length", str(request.length).encode())]
    extensions = {"target": request.target, "url": url, "body": body}
    return httpx.Request(request.method, _httpx_url(url), headers=headers, stream=stream, extensions=extensions)


_ERRORS: Final[tuple[tuple[type[httpx.HTTPError], type[UpstreamError]], ...]] = (
    (httpx.TimeoutException, TimedOut),
    (httpx.RemoteProtocolError, Garbled),
    (httpx.HTTPError, Unreachable),
)


def _explained(error: httpx.HTTPError) -> UpstreamError:
    kind = next(ours for theirs, ours in _ERRORS if isinstance(error, theirs))
    return kind(str(error) or type(error).__name__)


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Sends httpx requests that carry an `UpstreamTarget`, exactly as they are."""

    def __init__(self, *, connections: int = 0, links: Links | None = None) -> None:
        """Bound the number of connections open at a time (0: no bound) and note them in `links`."""
        self._connections = connections
        self._links = links or Links()
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer as soon as its head is here; raises httpx.TransportError."""
        # Sessions belong to the running loop, so they are made at the first use.
        if self._kept is None:
            self._kept = _open_session(Connector(self._links, limit=self._connections))
        attempt = Attempt(request.headers.raw, request.extensions["body"])
        try:
            answer = await _send(self._kept, request, attempt)
        except (aiohttp.ClientError, OSError) as error:
            if not attempt.may_be_repeated(error):
                raise _translated(error, request) from error
            answer = await self._repeat(request, attempt)
        return httpx.Response(answer.status, headers=cast("Any", answer.raw_headers), stream=_Body(answer, request))

    async def _repeat(self, request: httpx.Request, attempt: Attempt) -> aiohttp.ClientResponse:
        if self._fresh is None:
            self._fresh = _open_session(Connector(self._links, force_close=True))
        try:
            return await _send(self._fresh, request, attempt)
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(error, request) from error

    async def aclose(self) -> None:
        """Close all connections."""
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()


class _Body(httpx.AsyncByteStream):
    """The body of an answer, raw, as it arrives."""

    __slots__ = ("_answer", "_request")

    def __init__(self, answer: aiohttp.ClientResponse, request: httpx.Request) -> None:
        self._answer = answer
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = self._answer.content.readany
        try:
            while data := await read():
                yield data
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(error, self._request) from error

    async def aclose(self) -> None:
        self._answer.close()


def _open_session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(
        connector=connector,
        request_class=Request,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=BUFFER_BYTES,
        max_line_size=_MAX_FIELD_BYTES,
        max_field_size=_MAX_FIELD_BYTES,
        max_headers=_MAX_FIELDS,
    )
    # aiohttp would repeat GET, PUT and DELETE whatever had happened to the connection; that is decided here.
    session._retry_connection = False  # noqa: SLF001 - there is no public switch
    return session


async def _send(session: aiohttp.ClientSession, request: httpx.Request, attempt: Attempt) -> aiohttp.ClientResponse:
    target: UpstreamTarget = request.extensions["target"]
    return await session.request(
        request.method,
        _yarl_url(request.extensions["url"]),
        data=attempt,
        allow_redirects=False,
        proxy=target.proxy,
        ssl=True if target.tls is None else target.tls,
        timeout=_timeout(target.connect_seconds, target.read_seconds),
    )


_yarl_url = lru_cache(maxsize=1024)(partial(yarl.URL, encoded=True))
_httpx_url = lru_cache(maxsize=1024)(httpx.URL)


@lru_cache(maxsize=64)
def _timeout(connect: float, read: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect, sock_read=read)


# The first that fits; specific before general.
_FAULTS: Final[tuple[tuple[type[Exception], type[httpx.TransportError], str], ...]] = (
    (aiohttp.SocketTimeoutError, httpx.ReadTimeout, "sent nothing for {to.read_seconds:g} s (timeout.read)"),
    (TimeoutError, httpx.ConnectTimeout, "took no connection in {to.connect_seconds:g} s (timeout.connect)"),
    (
        aiohttp.ClientConnectorCertificateError,
        httpx.ConnectError,
        "its certificate is not trusted; name the authority in ca_file ({error.certificate_error})",
    ),
    (aiohttp.ClientConnectorSSLError, httpx.ConnectError, "speaks no TLS; is it http? ({error.os_error})"),
    (aiohttp.ClientConnectorDNSError, httpx.ConnectError, "its name is unknown; check base_url and network"),
    (aiohttp.ClientProxyConnectionError, httpx.ProxyError, "its proxy is down; check HTTPS_PROXY ({error})"),
    (aiohttp.ClientHttpProxyError, httpx.ProxyError, "refused by the proxy, see HTTPS_PROXY ({error.status})"),
    (aiohttp.ClientConnectorError, httpx.ConnectError, "cannot be reached; is it up? ({error.os_error})"),
    (aiohttp.ClientPayloadError, httpx.RemoteProtocolError, "broke off in the middle of its answer"),
    (aiohttp.ClientResponseError, httpx.RemoteProtocolError, "its answer is no HTTP ({error.message!r:.200})"),
    (Exception, httpx.ReadError, "closed the connection without an answer"),
)


def _translated(error: Exception, request: httpx.Request) -> httpx.TransportError:
    """Return the httpx error that stands for one of aiohttp, with words for the person who can mend it."""
    target: UpstreamTarget = request.extensions["target"]
    kind, words = next((to, words) for of, to, words in _FAULTS if isinstance(error, of))
    return kind(f"Upstream {target.origin}: {words.format(to=target, error=error)}.", request=request)
