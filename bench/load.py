"""Sends requests as cheaply as can be: raw bytes over a few open connections, one request at a time on each."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import cast

from bench.cells import Cell

CONNECTIONS = 4
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_EDITS = re.compile(rb"\r\nx-ullage-compaction: *applied; edits=(\d+)", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"


class Failed(Exception):
    """An answer is not what it has to be; the text is its head."""


class Load:
    """The connections to one target, with the histories of one cell."""

    def __init__(self, port: int, cell: Cell) -> None:
        self._port = port
        self._cell = cell
        self._connections: list[_Connection] = []

    async def open(self) -> None:
        """Connect."""
        loop = asyncio.get_running_loop()
        for number in range(CONNECTIONS):
            sender = _Connection(_requests(self._cell, number))
            await loop.create_connection(lambda made=sender: made, "127.0.0.1", self._port)  # type: ignore[misc]  # mypy cannot infer such lambdas
            self._connections.append(sender)

    async def run(self, count: int) -> list[float]:
        """Send so many requests, shared among the connections, and return how many seconds each took."""
        shares = [count // CONNECTIONS] * CONNECTIONS
        times = await asyncio.gather(*(c.run(n) for c, n in zip(self._connections, shares, strict=True)))
        return [seconds for part in times for seconds in part]

    def edits(self) -> int:
        """Return how many edits the last answers tell of."""
        found = {_EDITS.search(connection.head) for connection in self._connections}
        return max(int(edits[1]) if edits else 0 for edits in found)

    def close(self) -> None:
        """Disconnect."""
        for connection in self._connections:
            connection.transport.close()


class _Connection(asyncio.Protocol):
    def __init__(self, next_request: Callable[[], bytes]) -> None:
        self._next_request = next_request
        self._times: list[float] = []
        self._left = 0
        self._done: asyncio.Future[list[float]] | None = None
        self._began = 0.0
        self._data = b""  # of the answer: its head, and later its end
        self._missing: int | None = None  # bytes of the body; None: the head is not complete, -1: it is chunked
        self.head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or Failed("the connection was closed"))

    def run(self, count: int) -> asyncio.Future[list[float]]:
        self._done = asyncio.get_running_loop().create_future()
        self._times, self._left = [], count
        self._send()
        return self._done

    def _send(self) -> None:
        self._data, self._missing = b"", None
        request = self._next_request()
        self._began = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._missing is None:
            data = self._begin(data)
            if self._missing is None:
                return
        if self._missing >= 0:
            self._missing -= len(data)
            if self._missing == 0:
                self._finish()
            return
        self._data = (self._data + data)[-len(_LAST_CHUNK) :]
        if self._data == _LAST_CHUNK:
            self._finish()

    def _begin(self, data: bytes) -> bytes:
        """Take what belongs to the head and return the rest."""
        self._data += data
        self.head, found, rest = self._data.partition(b"\r\n\r\n")
        if found:
            length = _LENGTH.search(self.head)
            self._missing, self._data = int(length[1]) if length else -1, b""
        return rest

    def _finish(self) -> None:
        self._times.append(time.perf_counter() - self._began)
        self._left -= 1
        if not self.head.startswith(b"HTTP/1.1 200"):
            self._end(Failed(self.head.decode("latin-1")))
        elif self._left:
            self._send()
        else:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if error:
            self._done.set_exception(error)
        else:
            self._done.set_result(self._times)


def _requests(cell: Cell, number: int) -> Callable[[], bytes]:
    """Return what gives the next request of a connection, head included."""
    bodies = cell.bodies(number)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-bench\r\n"
        f"accept: {'text/event-stream' if cell.streamed else 'application/json'}\r\n"
        f"content-type: application/json\r\nx-ullage-policy: {cell.preset}\r\nuser-agent: bench\r\ncontent-length: "
    ).encode()
    if cell.kind == "growing":
        return lambda: _with_length(head, bodies())
    request = _with_length(head, bodies())
    return lambda: request


def _with_length(head: bytes, body: bytes) -> bytes:
    return b"%b%d\r\n\r\n%b" % (head, len(body), body)
