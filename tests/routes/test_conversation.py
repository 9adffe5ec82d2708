"""A conversation, driven without a server: bodies, departures, cancellations, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from proxy.errors import Limited, TooLarge
from proxy.headers import Headers
from proxy.routes.conversation import ClientLeft, Conversation
from proxy.vitals import Vitals

pytestmark = pytest.mark.anyio

GONE = {"type": "http.disconnect"}


class Connection:
    """An ASGI server with one request."""

    def __init__(self, messages: Iterable[dict[str, Any]], headers: Headers | None = None) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for message in messages:
            self.incoming.put_nowait(message)
        self.sent: list[dict[str, Any]] = []
        self.vitals = Vitals()
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/v1/x",
            "raw_path": b"/v1/x",
            "query_string": b"a=1",
            "headers": headers or [],
            "client": ("10.0.0.1", 1),
        }
        self.conversation = Conversation(
            cast("Any", scope), cast("Any", self.incoming.get), cast("Any", self._take), self.vitals
        )

    async def _take(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        """What was answered."""
        return b"".join(message.get("body", b"") for message in self.sent)


def part(data: bytes, *, more: bool = False) -> dict[str, Any]:
    """Return a message with a part of a body."""
    return {"type": "http.request", "body": data, "more_body": more}


async def forever() -> None:
    """Wait."""
    await asyncio.get_running_loop().create_future()


class TestBodies:
    """Reading."""

    async def test_whole(self) -> None:
        """All parts of a body are joined."""
        connection = Connection([part(b"a", more=True), part(b"b", more=True), part(b"c")])
        assert await connection.conversation.read(3) == b"abc"

    @pytest.mark.parametrize(
        "messages", [[part(b"abcd")], [part(b"ab", more=True), part(b"cd")], [part(b"ab", more=True)] * 3]
    )
    async def test_too_large(self, messages: list[dict[str, Any]]) -> None:
        """A body is refused as soon as it is larger than the limit, in one part or in many."""
        with pytest.raises(TooLarge, match="larger than 3 bytes"):
            await Connection(messages).conversation.read(3)

    async def test_declared_too_large(self) -> None:
        """A body that declares to be too large is refused before it is read."""
        connection = Connection([part(b"abcd")], [(b"content-length", b"4")])
        with pytest.raises(TooLarge):
            await connection.conversation.read_or_stream(3)
        assert connection.incoming.qsize() == 1

    async def test_streamed(self) -> None:
        """A body in parts is given part by part; empty parts are left out."""
        connection = Connection([part(b"a", more=True), part(b"", more=True), part(b"b")])
        body, upload = await connection.conversation.read_or_stream(10)
        assert body == b""
        assert upload is not None
        assert [data async for data in upload] == [b"a", b"b"]

    async def test_streamed_too_large(self) -> None:
        """A streamed body is stopped where it gets too large."""
        connection = Connection([part(b"ab", more=True), part(b"cd")])
        _, upload = await connection.conversation.read_or_stream(3)
        assert upload is not None
        assert await anext(upload) == b"ab"
        with pytest.raises(TooLarge):
            await anext(upload)

    async def test_small_ones_are_whole(self) -> None:
        """A small body of known length is collected, so that its request can be repeated."""
        connection = Connection([part(b"a", more=True), part(b"b")], [(b"content-length", b"2")])
        assert await connection.conversation.read_or_stream(10) == (b"ab", None)

    async def test_the_exchange(self) -> None:
        """The gateway sees method, raw path, query, fields and peer."""
        connection = Connection([], [(b"a", b"b")])
        exchange = connection.conversation.exchange(b"body")
        assert (exchange.method, exchange.path, exchange.raw_query) == ("POST", "/v1/x", b"a=1")
        assert (exchange.headers, exchange.peer, exchange.body) == ([(b"a", b"b")], "10.0.0.1", b"body")


class TestDepartures:
    """Clients that leave."""

    async def test_while_waiting(self) -> None:
        """Work that waits is cancelled when the client leaves, and nothing is raised."""
        connection = Connection([part(b"")])
        ended = asyncio.Event()

        async def work() -> None:
            await connection.conversation.read(10)
            connection.incoming.put_nowait(GONE)
            try:
                await forever()
            finally:
                ended.set()

        await asyncio.create_task(connection.conversation.run(work()))
        assert ended.is_set()
        assert connection.sent == []

    async def test_within_the_body(self) -> None:
        """A client that leaves within its request gets no answer."""
        connection = Connection([part(b"a", more=True), GONE])

        async def work() -> None:
            await connection.conversation.read(10)

        await asyncio.create_task(connection.conversation.run(work()))
        assert connection.sent == []

    async def test_within_an_upload(self) -> None:
        """A client that leaves within an upload ends the work that waits for the upstream."""
        connection = Connection([part(b"a", more=True), GONE])

        async def work() -> None:
            _, upload = await connection.conversation.read_or_stream(10)
            assert upload is not None

            async def pump() -> None:
                with pytest.raises(ClientLeft):
                    assert [data async for data in upload] == []

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pump())
                await forever()

        await asyncio.create_task(connection.conversation.run(work()))
        assert connection.sent == []

    async def test_after_the_answer(self) -> None:
        """What follows the complete answer is not cancelled."""
        connection = Connection([part(b"")])
        ended = asyncio.Event()

        async def work() -> None:
            await connection.conversation.read(10)
            await connection.conversation.start(200, [])
            await connection.conversation.finish()
            connection.incoming.put_nowait(GONE)
            await asyncio.sleep(0.05)
            ended.set()

        await asyncio.create_task(connection.conversation.run(work()))
        assert ended.is_set()

    async def test_others_may_cancel(self) -> None:
        """A cancellation that comes from elsewhere is passed on, except at the end of a drain."""
        for is_draining in (False, True):
            connection = Connection([])
            connection.vitals.draining = is_draining
            task = asyncio.create_task(connection.conversation.run(forever()))
            await asyncio.sleep(0)
            task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(result, asyncio.CancelledError) is not is_draining


class TestErrors:
    """Work that fails."""

    async def test_before_the_answer(self) -> None:
        """An error of ours is answered with its status and shape."""
        connection = Connection([])

        async def work() -> None:
            raise Limited("slowly")

        await connection.conversation.run(work())
        assert connection.sent[0]["status"] == 429
        assert connection.body == (
            b'{"error":{"message":"slowly","type":"ullage_error","param":null,"code":"limited"}}'
        )

    async def test_within_the_answer(self) -> None:
        """An answer that has begun is left incomplete, so that the server cuts the connection."""
        connection = Connection([])

        async def work() -> None:
            await connection.conversation.start(200, [])
            await connection.conversation.send(b"part")
            raise ValueError

        await connection.conversation.run(work())
        assert connection.body == b"part"
        assert connection.sent[-1]["more_body"] is True

    async def test_an_upload_that_gets_too_large(self) -> None:
        """What the transport makes of a refused upload is not what the client is told."""
        connection = Connection([part(b"ab", more=True), part(b"cd")])

        async def work() -> None:
            _, upload = await connection.conversation.read_or_stream(3)
            assert upload is not None
            try:
                assert [data async for data in upload] == []
            except TooLarge:
                raise Limited("something else") from None

        await connection.conversation.run(work())
        assert connection.sent[0]["status"] == 413


async def test_draining_answers_close() -> None:
    """While the process drains, answers ask clients to come back elsewhere."""
    connection = Connection([])
    connection.vitals.draining = True
    await connection.conversation.start(200, [(b"a", b"b")])
    assert connection.sent[0]["headers"] == [(b"a", b"b"), (b"connection", b"close")]
