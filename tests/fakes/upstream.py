"""A scripted OpenAI-compatible upstream on real sockets, for tests, the demo and the benchmark.

    with FakeUpstream() as fake:
        fake.queue(answer(completion("hi")), events(*chunks("hi")), pieces(b"data: {", Pause(0.2), CUT))
        ...                                    # send requests to fake.url
        first, second = fake.wait(2)
        assert first.body == b"…" and second.wait_gone(2)

It runs in a thread of its own, so it serves blocking and asynchronous callers alike. Replies are used in the
order in which requests arrive; when none is queued, `fake.otherwise(received)` is asked, which by default
answers chat requests with a short completion (streamed when asked for) and anything else with an echo. A
queued reply may also be a function of the request; it runs in the server's thread and must not block.

A reply is made by
    answer(value)       JSON with its length
    body(data)          any bytes with their length
    events(*items)      an event stream, chunked: objects become `data:` events, bytes go as they are
    pieces(*steps)      a chunked body in steps: bytes, Pause(seconds), CUT, CLOSE, HANG
    raw(*steps)         the whole response in steps, head included; the connection closes after it
    silence(), cut()    no answer at all; the connection reset before any byte
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, cast

import httptools
import msgspec
from msgspec import Struct


class Pause(Struct, frozen=True):
    """Nothing for some seconds."""

    seconds: float


class End(Enum):
    """How a reply can stop without being complete."""

    CUT = "the connection is reset"
    CLOSE = "the connection is closed in an orderly way"
    HANG = "nothing more comes until the peer leaves"


CUT: Final = End.CUT
CLOSE: Final = End.CLOSE
HANG: Final = End.HANG

Step: TypeAlias = bytes | Pause | End
Fields: TypeAlias = Iterable[tuple[str, str]] | Mapping[str, str]
Framing: TypeAlias = Literal["length", "chunked", "raw"]


class Reply(Struct, frozen=True):
    """One scripted response."""

    status: int
    headers: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    framing: Framing


def answer(value: object, status: int = 200, headers: Fields = ()) -> Reply:
    """Return a JSON reply."""
    return body(msgspec.json.encode(value), status, _with_type(headers, "application/json"))


def body(data: bytes, status: int = 200, headers: Fields = ()) -> Reply:
    """Return a reply of these bytes, with exactly these fields and the length."""
    return Reply(status, _pairs(headers), (data,), "length")


def events(*items: object, done: bool = True, headers: Fields = ()) -> Reply:
    """Return an event stream; `done` adds the final `[DONE]`."""
    steps = [_event(item) for item in items] + ([b"data: [DONE]\n\n"] if done else [])
    return pieces(*steps, headers=headers)


def pieces(*steps: Step, status: int = 200, headers: Fields = ()) -> Reply:
    """Return a chunked reply, an event stream unless the fields say otherwise."""
    return Reply(status, _with_type(headers, "text/event-stream"), steps, "chunked")


def raw(*steps: Step) -> Reply:
    """Return a reply whose every byte is given, status line included."""
    return Reply(0, (), steps, "raw")


def silence() -> Reply:
    """Return no answer at all."""
    return raw(HANG)


def cut() -> Reply:
    """Reset the connection before any byte of an answer."""
    return raw(CUT)


def completion(text: str | None, calls: Iterable[tuple[str, str, str]] = (), **more: object) -> dict[str, object]:
    """Return a chat completion; `calls` are (id, name, arguments)."""
    message: dict[str, object] = {"role": "assistant", "content": text}
    made = [
        {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call, name, arguments in calls
    ]
    if made:
        message["tool_calls"] = made
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if made else "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    head = {"id": "chatcmpl-fake", "object": "chat.completion", "created": 1, "model": "fake"}
    return {**head, "choices": [choice], "usage": usage, **more}


def chunks(text: str, finish: str | None = "stop") -> list[dict[str, object]]:
    """Return the chunk objects of a streamed text, a word each."""
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word + " "} for word in text.split()]
    out = [_chunk(delta, None) for delta in deltas]
    return [*out, _chunk({}, finish)] if finish else out


class Received:
    """One request as it arrived."""

    def __init__(self, connection: int) -> None:
        self.connection = connection  # which one since the start, from 0
        self.method = ""
        self.target = b""  # path and query as they came
        self.headers: list[tuple[bytes, bytes]] = []  # in order, in the case they came in
        self.body = b""
        self.came = time.monotonic()
        self.left: float | None = None  # when the peer went away before the reply was complete
        self.replied = threading.Event()  # the reply is complete, or can no longer be
        self._gone = threading.Event()

    def header(self, name: str) -> str | None:
        """Return the first value of a field, whatever its case."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition(b"?")[0].decode("latin-1")

    @property
    def json(self) -> dict[str, Any]:
        """The decoded body, an object."""
        return msgspec.json.decode(self.body, type=dict[str, Any])

    def wait_gone(self, timeout: float = 5.0) -> bool:
        """Wait until the peer has left before its reply was complete; False when it has not."""
        return self._gone.wait(timeout)

    def leave(self) -> None:
        """Note that the peer went away."""
        self.left = time.monotonic()
        self._gone.set()
        self.replied.set()


Scripted: TypeAlias = Reply | Callable[[Received], Reply]


class FakeUpstream:
    """The server; see the module's text."""

    def __init__(self, *, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.received: list[Received] = []
        self.otherwise: Callable[[Received], Reply] = reply_by_default
        self.keep = True  # False: requests are not recorded (long benchmarks)
        self.connections = 0  # ever opened
        self.present: set[_Connection] = set()
        self._queue: deque[Scripted] = deque()
        self._arrival = threading.Condition()
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it on other sockets only
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="fake-upstream", daemon=True)

    @property
    def url(self) -> str:
        """The OpenAI base URL, with /v1."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self.present)

    def queue(self, *replies: Scripted) -> None:
        """Add replies for the next requests."""
        self._queue.extend(replies)

    def wait(self, count: int = 1, timeout: float = 5.0) -> list[Received]:
        """Wait until so many requests have arrived and return all; raises AssertionError otherwise."""
        with self._arrival:
            if not self._arrival.wait_for(lambda: len(self.received) >= count, timeout):
                msg = f"{count} requests expected within {timeout} s, {len(self.received)} came"
                raise AssertionError(msg)
            return list(self.received)

    def start(self) -> Self:
        """Serve from now on."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving and drop all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def note(self, received: Received) -> Reply:
        """Record a request and return its reply."""
        with self._arrival:
            scripted = self._queue.popleft() if self._queue else self.otherwise
            if self.keep:
                self.received.append(received)
            self._arrival.notify_all()
        return scripted if isinstance(scripted, Reply) else scripted(received)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            self._loop.create_server(lambda: _Connection(self), sock=self._socket, ssl=self._tls),
        )
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._drop_connections())
        self._loop.close()

    async def _drop_connections(self) -> None:
        for connection in list(self.present):
            connection.transport.abort()
            await connection.lost.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)


class _Connection(asyncio.Protocol):
    """One client connection: parses requests, plays replies."""

    def __init__(self, fake: FakeUpstream) -> None:
        self._fake = fake
        self._parser = httptools.HttpRequestParser(self)
        self._parts: list[bytes] = []
        self._playing: asyncio.Task[None] | None = None
        self._current: Received | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._number = self._fake.connections
        self._fake.connections += 1
        self._fake.present.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fake.present.discard(self)
        self.lost.set()
        if self._playing is not None:
            self._playing.cancel()
        if self._current is not None:
            self._current.leave()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._current = Received(self._number)
        self._parts = []

    def on_url(self, url: bytes) -> None:
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._request.method = self._parser.get_method().decode()
        if (self._request.header("expect") or "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        received = self._request
        received.body = b"".join(self._parts)
        reply = self._fake.note(received)
        if reply.framing == "length" and isinstance(reply.steps[0], bytes):
            self.transport.write(_head(reply) + (b"" if received.method == "HEAD" else reply.steps[0]))
            self._complete(received)
        else:
            self._playing = asyncio.get_running_loop().create_task(self._play(reply, received))

    @property
    def _request(self) -> Received:
        assert self._current is not None, "bytes of no request"
        return self._current

    def _complete(self, received: Received) -> None:
        self._current = None
        received.replied.set()
        if (received.header("connection") or "").lower() == "close":
            self.transport.close()

    async def _play(self, reply: Reply, received: Received) -> None:
        if reply.framing == "chunked":
            self.transport.write(_head(reply))
        for step in reply.steps:
            if isinstance(step, End):
                await self._end(step)
                return
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif step:  # an empty chunk would end the body
                self.transport.write(b"%x\r\n%b\r\n" % (len(step), step) if reply.framing == "chunked" else step)
                await asyncio.sleep(0)  # one write a step
        if reply.framing == "chunked":
            self.transport.write(b"0\r\n\r\n")
        self._complete(received)
        if reply.framing == "raw":
            self.transport.close()

    async def _end(self, end: End) -> None:
        if end is HANG:
            await asyncio.get_running_loop().create_future()
        if end is CUT:
            await asyncio.sleep(0.02)  # what was written before must have left
            plug: socket.socket = self.transport.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()


def reply_by_default(received: Received) -> Reply:
    """Answer chat requests with a short text and anything else with what came."""
    if received.method == "POST" and received.path.endswith("/chat/completions"):
        fields = _fields(received.body)
        return events(*chunks("hello there")) if fields.get("stream") is True else answer(completion("hello there"))
    echo = {
        "method": received.method,
        "target": received.target.decode("latin-1"),
        "bytes": len(received.body),
    }
    return answer(echo)


def _fields(data: bytes) -> dict[str, object]:
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _head(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{name}: {value}" for name, value in reply.headers)]
    if reply.framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
    elif not any(name.lower() == "content-length" for name, _ in reply.headers):
        lines.append(f"Content-Length: {sum(len(step) for step in reply.steps if isinstance(step, bytes))}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _event(item: object) -> bytes:
    return item if isinstance(item, bytes) else b"data: " + msgspec.json.encode(item) + b"\n\n"


def _chunk(delta: Mapping[str, str], finish: str | None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    return {**head, "choices": [choice]}


def _pairs(headers: Fields) -> tuple[tuple[str, str], ...]:
    return tuple(headers.items() if isinstance(headers, Mapping) else headers)


def _with_type(headers: Fields, kind: str) -> tuple[tuple[str, str], ...]:
    pairs = _pairs(headers)
    typed = any(name.lower() == "content-type" for name, _ in pairs)
    return pairs if typed else (("Content-Type", kind), *pairs)
