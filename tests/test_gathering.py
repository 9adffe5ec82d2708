"""Two writes that leave as one, and never later than the loop's next turn."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from proxy.gathering import Gathered, HeldHead

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Recorded:
    """A transport that records what it is told."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def write(self, data: bytes) -> None:
        """Record."""
        self.calls.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        """Record."""
        self.calls.append(parts)

    def close(self) -> None:
        """Record."""
        self.calls.append("close")

    def is_closing(self) -> bool:
        """Be open."""
        return False

    pause_reading = resume_reading = close

    def get_extra_info(self, name: str) -> Any:
        """Return the name."""
        return name


def held() -> tuple[HeldHead, Recorded]:
    """Return a transport that holds heads back, and the one behind it."""
    recorded = Recorded()
    return HeldHead(cast("asyncio.Transport", recorded)), recorded


async def test_head_and_body_leave_together() -> None:
    """A head that is followed by a body in the same turn is sent with it, later writes by themselves."""
    transport, recorded = held()
    transport.write(HEAD)
    transport.write(b"body")
    transport.write(b"more")
    await asyncio.sleep(0)
    assert recorded.calls == [[HEAD, b"body"], b"more"]


async def test_a_head_alone_leaves_at_once() -> None:
    """A head that nothing follows is sent when the loop turns."""
    transport, recorded = held()
    transport.write(HEAD)
    assert recorded.calls == []
    await asyncio.sleep(0)
    assert recorded.calls == [HEAD]


async def test_closing_sends_what_is_held() -> None:
    """Nothing is lost when the connection is closed."""
    transport, recorded = held()
    transport.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert recorded.calls == [HEAD, "close"]


async def test_everything_else_is_the_transports() -> None:
    """Questions are answered by the real transport."""
    transport, _ = held()
    assert (transport.get_extra_info("peername"), transport.is_closing()) == ("peername", False)


def test_gathering() -> None:
    """What is gathered is kept in its order."""
    gathered = Gathered()
    gathered.write(b"a")
    gathered.writelines([b"b", b"c"])
    assert (gathered.parts, gathered.is_closing()) == ([b"a", b"b", b"c"], False)
