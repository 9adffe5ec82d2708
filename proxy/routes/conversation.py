"""One HTTP exchange with an ASGI server: reads the body, answers, and learns at once when the client leaves.

No ASGI server cancels a handler that is still waiting for an upstream; each reports the client's departure
through `receive`. So while a handler works, a second task listens there and cancels the first one. With
uvicorn `receive` also returns when the answer is complete, so the listener ends by itself in the usual case.
An upload listens while it is read, the second task takes over when the body is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from litestar.types import Receive, Scope, Send

from proxy.errors import ProxyError, TooLarge, error_body
from proxy.exchange import Exchange
from proxy.headers import Headers
from proxy.vitals import Vitals

log = logging.getLogger(__name__)

_LEVELS = logging.getLevelNamesMapping()
_SMALL_BYTES = 1_048_576  # worth holding, so that the request can be repeated on a stale connection


class ClientLeft(Exception):
    """The client went away before its request was complete."""


class Conversation:
    """A request and its answer on one connection; the `Responder` of the gateway."""

    __slots__ = (
        "_departed",
        "_listener",
        "_receive",
        "_refusal",
        "_send",
        "_task",
        "_vitals",
        "finished",
        "scope",
        "started",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, vitals: Vitals) -> None:
        self.scope: Any = scope  # a dict of many shapes; the keys of "http" are used
        self._receive = receive
        self._send = send
        self._vitals = vitals
        self._task: asyncio.Task[Any] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._departed = False
        self._refusal: TooLarge | None = None  # of an upload that is already being sent on
        self.started = False
        self.finished = False

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        self.started = True
        if self._vitals.draining:
            # The client's next request should go to another process.
            headers = [*headers, (b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, data: bytes) -> None:
        """Send a part of the body at once; waits while the client reads too slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Send the last part of the body and complete the answer."""
        self.finished = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, error: ProxyError) -> None:
        """Answer with an error in OpenAI's shape."""
        data = error_body(error)
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        await self.start(error.status, head)
        await self.finish(data)

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of this exchange; it is cancelled when the client leaves, its errors are answered."""
        self._task = task = asyncio.current_task()
        try:
            await self._attempt(work)
        except asyncio.CancelledError:
            if self._departed and task is not None:
                task.uncancel()
                log.debug("client left: %s %s", self.scope["method"], self.scope["path"])
            elif self._vitals.draining:
                log.warning("cut at the end of the drain: %s %s", self.scope["method"], self.scope["path"])
            else:
                raise
        finally:
            if self._listener is not None:
                self._listener.cancel()

    def listen(self) -> None:
        """Have the work cancelled from now on when the client leaves; the body must have been read."""
        self._listener = asyncio.get_running_loop().create_task(self._wait_for_departure())

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body and start to listen; raises TooLarge."""
        self.refuse_if_declared_larger(limit_bytes)
        data, is_last = await self._next()
        if not is_last:
            data = await self._read_on(data, limit_bytes)
        elif len(data) > limit_bytes:
            raise _too_large(limit_bytes)
        self.listen()
        return data

    async def read_or_stream(self, limit_bytes: int) -> tuple[bytes, AsyncIterator[bytes] | None]:
        """Return a small body whole, a larger one as an iterator; raises TooLarge, also while it is iterated."""
        if 0 < self.refuse_if_declared_larger(limit_bytes) <= _SMALL_BYTES:
            return await self.read(limit_bytes), None
        data, is_last = await self._next()
        if not is_last:
            return b"", self._stream(data, limit_bytes)
        if len(data) > limit_bytes:
            raise _too_large(limit_bytes)
        self.listen()
        return data, None

    def exchange(self, body: bytes, upload: AsyncIterator[bytes] | None = None) -> Exchange:
        """Return what the gateway sees of this request."""
        scope = self.scope
        peer = scope["client"]
        return Exchange(
            method=scope["method"],
            path=scope["raw_path"].decode("latin-1"),
            raw_query=scope["query_string"],
            headers=scope["headers"],
            peer=peer[0] if peer else "",
            body=body,
            upload=upload,
        )

    def refuse_if_declared_larger(self, limit_bytes: int) -> int:
        """Return the declared length, 0 when there is none; raises TooLarge before the body is read."""
        declared = next((value for name, value in self.scope["headers"] if name == b"content-length"), b"0")
        if int(declared) > limit_bytes:
            raise _too_large(limit_bytes)
        return int(declared)

    async def _attempt(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ClientLeft:
            log.debug("client left in its request: %s", self.scope["path"])
        except ProxyError as raised:
            error = self._refusal or raised
            log.log(_LEVELS[error.level.upper()], "%s: %s", error.code, error.message)
            await self._fail(error)
        except Exception:
            log.exception("internal error: %s %s", self.scope["method"], self.scope["path"])
            await self._fail(ProxyError("The gateway failed; its log says why."))

    async def _fail(self, error: ProxyError) -> None:
        # What was begun is left incomplete, so that the server cuts the connection.
        if not self.started:
            await self.answer(error)

    async def _next(self) -> tuple[bytes, bool]:
        message: Any = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        return message.get("body", b""), not message.get("more_body", False)

    async def _read_on(self, first: bytes, limit_bytes: int) -> bytes:
        parts = [first]
        size, is_last = len(first), False
        while not is_last:
            data, is_last = await self._next()
            parts.append(data)
            size += len(data)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
        return b"".join(parts)

    async def _stream(self, first: bytes, limit_bytes: int) -> AsyncIterator[bytes]:
        """Yield the body; it is read by the transport's own task, so a departure must end the work's."""
        size, data, is_last = 0, first, False
        while True:
            size += len(data)
            if size > limit_bytes:
                self._refusal = _too_large(limit_bytes)
                raise self._refusal
            if data:
                yield data
            if is_last:
                break
            try:
                data, is_last = await self._next()
            except ClientLeft:
                self._leave()
                raise
        self.listen()

    async def _wait_for_departure(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        if not self.finished and self._task is not None:
            self._departed = True
            self._task.cancel()


def _too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit_bytes} bytes (server.max_body_bytes).")
