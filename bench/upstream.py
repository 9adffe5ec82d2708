"""A provider as fast as can be: `python -m bench.upstream`. It prints "port N" and serves until it is ended.

It reads requests without understanding them and answers each with the same bytes: one object, or, for whoever accepts
an event stream, a chunked stream of 20 events, each in a write of its own.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import cast

import msgspec
import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb"\r\naccept: *text/event-stream", re.IGNORECASE)
_EVENTS = 20
_HEAD = {"id": "chatcmpl-bench", "created": 1, "model": "bench"}
_TEXT = "a few words more, "


def _whole() -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": _TEXT * _EVENTS}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
    body = msgspec.json.encode({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": usage})
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _events() -> list[bytes]:
    deltas = [{"role": "assistant", "content": ""}, *[{"content": _TEXT}] * (_EVENTS - 3), {}]
    choices = [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"} for delta in deltas]
    chunks = [_HEAD | {"object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
    events = [b"data: %b\n\n" % data for data in (*map(msgspec.json.encode, chunks), b"[DONE]")]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    pieces = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    return [head + pieces[0], *pieces[1:-1], pieces[-1] + b"0\r\n\r\n"]


class _Connection(asyncio.Protocol):
    whole = _whole()
    events = _events()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._head = b""
        self._missing = 0  # bytes of the body
        self._is_stream = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._missing -= len(data)
        else:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._head, 0, end)
            self._is_stream = _STREAM.search(self._head, 0, end) is not None
            self._missing = end + 4 + (int(length[1]) if length else 0) - len(self._head)
            self._head = b""
        if self._missing == 0:
            self._answer(0)

    def _answer(self, at: int) -> None:
        if not self._is_stream:
            self._transport.write(self.whole)
        elif at < len(self.events):
            self._transport.write(self.events[at])
            self._loop.call_soon(self._answer, at + 1)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(loop), "127.0.0.1", 0)
    sys.stdout.write(f"port {server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
