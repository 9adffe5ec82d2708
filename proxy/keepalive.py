"""Comments that keep a silent event stream alive while an upstream thinks or a hidden round runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

COMMENT = b": keep-alive\n\n"


class KeepAlive:
    """Sends an SSE comment whenever nothing was sent for `seconds`; 0: never.

    Only whole events are ever passed to `send`, so a comment always falls between two. One timer runs per stream and
    looks at the time of the last event when it fires, so an event costs one assignment.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]], seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        if self._seconds > 0:
            self._timer = self._loop.call_later(self._seconds, self._fire)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    async def send(self, data: bytes) -> None:
        """Pass whole events on."""
        self._last = self._loop.time()
        await self._send(data)

    def _fire(self) -> None:
        due = self._last + self._seconds
        now = self._loop.time()
        if now >= due and (self._comment is None or self._comment.done()):
            self._last = now
            due = now + self._seconds
            self._comment = asyncio.ensure_future(self._write())
        self._timer = self._loop.call_at(max(due, now + self._seconds / 10), self._fire)

    async def _write(self) -> None:
        """Send one comment; that the client has left is noticed elsewhere."""
        try:
            await self._send(COMMENT)
        except (ConnectionError, RuntimeError):
            return
