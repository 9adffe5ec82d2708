"""Comments fall between events, and only into silence."""

from __future__ import annotations

import asyncio

import pytest

from proxy.keepalive import COMMENT, KeepAlive

pytestmark = pytest.mark.anyio


class Line:
    """Collects what is sent; may fail like a client that left."""

    def __init__(self, *, gone: bool = False) -> None:
        self.sent: list[bytes] = []
        self.fell_silent_twice = asyncio.Event()
        self._gone = gone

    async def send(self, data: bytes) -> None:
        """Take a piece."""
        if self._gone:
            raise ConnectionResetError
        self.sent.append(data)
        if self.sent.count(COMMENT) == 2:
            self.fell_silent_twice.set()


async def test_silence_is_filled() -> None:
    """After the time a comment is sent, and again after as much silence."""
    line = Line()
    await line.send(b"event")
    with KeepAlive(line.send, 0.02):
        async with asyncio.timeout(5):
            await line.fell_silent_twice.wait()
    assert line.sent[0] == b"event"


async def test_nothing_is_sent_before_its_time_or_after_the_end() -> None:
    """A lively stream gets no comment, and neither does one that is over."""
    line = Line()
    with KeepAlive(line.send, 60) as alive:
        for _ in range(3):
            alive.is_lively = True
            await asyncio.sleep(0.01)
    assert line.sent == []


async def test_a_lively_stream_gets_no_comment() -> None:
    """However many periods pass, a mark in each of them keeps comments away."""
    line = Line()
    with KeepAlive(line.send, 60) as alive:
        for _ in range(30):
            alive.is_lively = True
            alive._look()
        assert alive._comment is None
        for _ in range(4):
            alive._look()
        assert alive._comment is not None


async def test_zero_means_never() -> None:
    """No timer runs at all."""
    line = Line()
    with KeepAlive(line.send, 0):
        await asyncio.sleep(0.05)
    assert line.sent == []


async def test_a_client_that_left_breaks_nothing() -> None:
    """A comment that cannot be sent is let go; the departure is noticed by whoever sends next."""
    line = Line(gone=True)
    with KeepAlive(line.send, 0.01):
        await asyncio.sleep(0.05)
    assert line.sent == []
