"""One client turn from its first upstream answer to the last byte: drives the interceptor and does what it commands.

The interceptor decides, this module acts: it reads the upstream, writes to the client, has reads answered, opens the
next hidden round and has hidden turns written down before the client can answer them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec

from proxy.core.intercept import (
    Answered,
    Body,
    Broke,
    CloseUpstream,
    Command,
    Emit,
    Ended,
    Event,
    Finished,
    Interceptor,
    Opened,
    Read,
    Received,
    Refuse,
    Refused,
    Remember,
    Reopen,
    ToolUse,
)
from proxy.core.ledger import HiddenTurn
from proxy.errors import UpstreamError
from proxy.exchange import Responder
from proxy.headers import Headers
from proxy.keepalive import KeepAlive
from proxy.upstream import UpstreamResponse

_OK = range(200, 300)
_PATIENCE_SECONDS = 0.1
# Of the first round's headers these no longer fit an answer that may be spliced.
_BODY_HEADERS = frozenset(
    {b"content-length", b"content-encoding", b"transfer-encoding", b"content-md5", b"digest", b"etag"}
)


class Rounds(Protocol):
    """What a turn needs from the gateway."""

    async def open(self, messages: tuple[bytes, ...], *, with_tool: bool) -> UpstreamResponse:
        """Open the next upstream round, these hidden messages appended."""
        ...

    async def answer(self, uses: tuple[ToolUse, ...]) -> tuple[str, ...]:
        """Answer calls of the reading tool."""
        ...

    async def remember(self, turn: HiddenTurn) -> None:
        """Write a hidden turn down, confirmed; failing to do so costs a cached prefix and no more."""
        ...


class Summary(msgspec.Struct):
    """What a turn came to, for the session's statistics."""

    rounds: int = 1
    reads: int = 0
    finished: Finished | None = None


class Turn:
    """Runs the interceptor over one client turn."""

    def __init__(self, machine: Interceptor, rounds: Rounds | None, responder: Responder) -> None:
        """Without `rounds` the machine must have no tool to be called."""
        self._machine = machine
        self._rounds = rounds
        self._responder = responder
        self._send: Callable[[bytes], Awaitable[None]] = responder.send
        self._line = KeepAlive(responder.send, 0)
        self._reopen: Reopen | None = None
        self._refusal: Refuse | None = None
        self._is_over = False  # nothing that follows in the present stream matters
        self.summary = Summary()

    async def stream(self, response: UpstreamResponse, headers: Headers, keepalive_seconds: float) -> None:
        """Relay an event stream, splicing hidden rounds into it."""
        kept = [(k, v) for k, v in headers if k.lower() not in _BODY_HEADERS]
        await self._responder.start(response.status, kept)
        with KeepAlive(self._responder.send, keepalive_seconds) as self._line:
            await self._perform(self._machine.receive(Opened()))
            upcoming: UpstreamResponse | None = response
            while upcoming is not None:
                upcoming = await self._pump(upcoming)
        await self._responder.finish()

    async def whole(self, status: int, body: bytes, headers: Headers) -> None:
        """Answer with one body, hidden rounds resolved; `status` and `body` are those of the first round."""
        pieces: list[bytes] = []
        self._send = _appending(pieces)
        await self._perform(self._machine.receive(Body(body)))
        while self._reopen is not None:
            await self._next_whole(self._reopen)
        data = b"".join(pieces)
        if self._refusal is not None:
            status, data = self._refusal.status, self._refusal.body
        if data != body:
            headers = [(k, v) for k, v in headers if k.lower() not in _BODY_HEADERS]
        headers = [(k, v) for k, v in headers if k.lower() != b"content-length"]
        await self._responder.start(status, [*headers, (b"content-length", b"%d" % len(data))])
        await self._responder.finish(data)

    async def _next_whole(self, reopen: Reopen) -> None:
        self._reopen = None
        event: Event
        try:
            response = await self._open(reopen)
            body = await response.read()
            event = Body(body) if response.status in _OK else Refused(response.status, body)
        except UpstreamError as error:
            event = Broke(error.message)
        await self._perform(self._machine.receive(event))

    async def _pump(self, response: UpstreamResponse) -> UpstreamResponse | None:
        """Feed one upstream stream to the interceptor; return the next round's, if there is one."""
        event: Event = Ended()
        try:
            async with asyncio.timeout(None) as patience:
                async for data in response:
                    await self._perform(self._machine.receive(Received(data)))
                    if self._is_over and patience.when() is None:
                        # The end of the body is about to come: with it the connection can be used again.
                        patience.reschedule(asyncio.get_running_loop().time() + _PATIENCE_SECONDS)
        except TimeoutError:
            pass
        except UpstreamError as error:
            event = Broke(error.message)
        finally:
            self._is_over = False
            await response.close()
        await self._perform(self._machine.receive(event))
        while self._reopen is not None:
            upcoming = await self._next_stream(self._reopen)
            if upcoming is not None:
                return upcoming
        return None

    async def _next_stream(self, reopen: Reopen) -> UpstreamResponse | None:
        self._reopen = None
        try:
            response = await self._open(reopen)
            if response.status in _OK and response.is_event_stream:
                return response
            body = await response.read()
            event: Event = Body(body) if response.status in _OK else Refused(response.status, body)
        except UpstreamError as error:
            event = Broke(error.message)
        await self._perform(self._machine.receive(event))
        return None

    @property
    def _hidden(self) -> Rounds:
        if self._rounds is None:
            raise AssertionError("only a compacted request has hidden rounds")
        return self._rounds

    async def _open(self, reopen: Reopen) -> UpstreamResponse:
        self.summary.rounds += 1
        return await self._hidden.open(reopen.messages, with_tool=reopen.tool)

    async def _perform(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Emit):
                self._line.is_lively = True
                await self._send(command.data)
            else:
                await self._act(command)

    async def _act(self, command: Command) -> None:
        match command:
            case Read(calls):
                self.summary.reads += len(calls)
                answers = await self._hidden.answer(calls)
                await self._perform(self._machine.receive(Answered(answers)))
            case Reopen():
                self._reopen = command
            case Remember(turn):
                await self._hidden.remember(turn)
            case Refuse():
                self._refusal = command
            case CloseUpstream():
                self._is_over = True
            case Finished():
                self.summary.finished = command


def _appending(pieces: list[bytes]) -> Callable[[bytes], Awaitable[None]]:
    async def send(data: bytes) -> None:
        pieces.append(data)

    return send
