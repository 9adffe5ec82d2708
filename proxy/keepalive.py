"""Comments that keep a silent event stream alive while an upstream thinks or a hidden round runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

COMMENT = b": keep-alive\n\n"


_CHECKS = 4  # looks per period, so that a silence is noticed at most a quarter late


class KeepAlive:
    """Sends an SSE comment whenever nothing was sent for `seconds`; 0: never.

    Whoever sends events sets `is_lively`; only whole events are ever sent, so a comment always falls between two. One
    timer runs per stream and looks at the mark a few times per period, so an event costs one assignment.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]], seconds: float) -> None:
        self.is_lively = False
        self._send = send
        self._period = seconds / _CHECKS
        self._silent = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        if self._period > 0:
            self._timer = self._loop.call_later(self._period, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    def _look(self) -> None:
        self._silent = 0 if self.is_lively else self._silent + 1
        self.is_lively = False
        if self._silent >= _CHECKS and (self._comment is None or self._comment.done()):
            self._silent = 0
            self._comment = asyncio.ensure_future(self._write())
        self._timer = self._loop.call_later(self._period, self._look)

    async def _write(self) -> None:
        """Send one comment; that the client has left is noticed elsewhere."""
        try:
            await self._send(COMMENT)
        except (ConnectionError, RuntimeError):
            return
