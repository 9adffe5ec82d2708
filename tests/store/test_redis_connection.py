"""How Redis is spoken to when it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.exceptions import RedisError

from proxy.errors import Unavailable
from proxy.store import redis_connection
from proxy.store.redis_address import Address
from proxy.store.redis_connection import Connection

pytestmark = pytest.mark.anyio


class Silence:
    """A server that counts what it is asked, and answers only when it likes to."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.answers: list[bytes] = []
        self.hangs_up = False  # when it has no answer
        self.was_asked = asyncio.Event()  # something that it has no answer to

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read commands, and answer as long as there are answers."""
        while data := await reader.read(65536):
            self.asked.append(data)
            if self.answers:
                writer.write(self.answers.pop(0))
            elif self.hangs_up:
                break
            else:
                self.was_asked.set()
        writer.close()


@asynccontextmanager
async def silent_server() -> AsyncIterator[tuple[Silence, Connection]]:
    """Serve, and give a connection to it."""
    silence = Silence()
    server = await asyncio.start_server(silence.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = Connection(Address("standalone", (("127.0.0.1", port),)))
    try:
        yield silence, connection
    finally:
        await connection.close()
        server.close()
        await server.wait_closed()


async def test_who_is_silent_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one call without an answer the others fail at once; later one of them finds out whether it is back."""
    monkeypatch.setattr(redis_connection, "PAUSE", 3600.0)
    async with silent_server() as (silence, connection):
        for _ in range(20):
            with pytest.raises(Unavailable, match="answer"):
                await connection.command("k", "GET", "k")
        assert len(silence.asked) == 1
        connection._pauses[""] = 0.0  # the moment is over
        calls = [connection.command("k", "GET", "k") for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {Unavailable}
        assert len(silence.asked) == 2
        connection._pauses[""] = 0.0
        silence.answers = [b"$1\r\n1\r\n", b"$1\r\nv\r\n", b"$1\r\nw\r\n"]  # schema, then twice what is asked for
        assert await connection.command("k", "GET", "k") == b"v"
        assert await connection.command("k", "GET", "k") == b"w"


async def test_a_refusal_is_no_silence() -> None:
    """A server that refuses something is asked again by the next call."""
    async with silent_server() as (silence, connection):
        silence.answers = [b"$1\r\n1\r\n", b"-ERR no\r\n", b"$1\r\nv\r\n"]
        with pytest.raises(Unavailable, match="refuses this: no"):
            await connection.command("k", "GET", "k")
        assert await connection.command("k", "GET", "k") == b"v"


async def test_nothing_is_sent_twice() -> None:
    """A command whose connection broke is not repeated: it may have been executed."""
    async with silent_server() as (silence, connection):
        silence.answers, silence.hangs_up = [b"$1\r\n1\r\n"], True
        with pytest.raises(Unavailable):
            await connection.command("k", "INCR", "k")
        assert sum(b"INCR" in data for data in silence.asked) == 1


async def test_an_attempt_tells_what_the_client_says() -> None:
    """The opening sees the error itself, to decide whether waiting can mend it."""
    async with silent_server() as (silence, connection):
        silence.answers = [b"-ERR DB index is out of range\r\n"]
        with pytest.raises(RedisError, match="out of range"):
            await connection.attempt()


async def test_a_cancelled_call_leaves_no_answer_behind() -> None:
    """The next call does not get the answer that nobody waited for any more."""
    async with silent_server() as (silence, connection):
        silence.answers = [b"$1\r\n1\r\n"]
        call = asyncio.create_task(connection.command("k", "GET", "k"))
        await silence.was_asked.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        silence.answers = [b"$4\r\nnext\r\n"]
        assert await connection.command("l", "GET", "l") == b"next"
