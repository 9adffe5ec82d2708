"""Hearing what an upstream complains of, without taking anything from the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from proxy.complaint import NONE, Complaint, hear
from proxy.core.overflow import Overflow
from proxy.errors import UpstreamError
from proxy.upstream import UpstreamResponse

JSON = "application/json"
SSE = "text/event-stream"
pytestmark = pytest.mark.anyio
TOO_LONG = {
    "error": {"message": "This model's maximum context length is 8192 tokens.", "type": "invalid_request_error"}
}
NO_TOOLS = {"error": {"message": "tools is not supported in this model"}}
PAIRING = {"error": {"message": "messages with role 'tool' must follow tool_calls"}}
TELLING = Overflow(window_tokens=8192)


class Pieces(httpx.AsyncByteStream):
    """A body that arrives in pieces; a number is a pause in seconds, an error breaks it off."""

    def __init__(self, *pieces: bytes | float | Exception) -> None:
        self.pieces = pieces
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, bytes):
                yield piece
            else:
                await asyncio.sleep(piece)

    async def aclose(self) -> None:
        """Note that somebody let go of it."""
        self.is_closed = True


def answer(status: int, body: object, kind: str = JSON) -> UpstreamResponse:
    """Return a whole answer in two pieces."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return UpstreamResponse(status, [(b"content-type", kind.encode())], Pieces(data[:7], data[7:]))


def stream(*pieces: bytes | float | Exception) -> UpstreamResponse:
    """Return an event stream."""
    return UpstreamResponse(200, [(b"Content-Type", SSE.encode())], Pieces(*pieces))


def event(value: object) -> bytes:
    """Return an event as it is sent."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("status", "body", "heard"),
    [
        (400, TOO_LONG, Complaint(TELLING)),
        (413, TOO_LONG, Complaint(TELLING)),
        (422, TOO_LONG, Complaint(TELLING)),
        (500, TOO_LONG, Complaint(TELLING)),
        (200, TOO_LONG, Complaint(TELLING)),
        (401, TOO_LONG, NONE),
        (429, TOO_LONG, NONE),
        (400, NO_TOOLS, Complaint(names_tool=True)),
        (501, NO_TOOLS, Complaint(names_tool=True)),
        (500, NO_TOOLS, NONE),
        (400, PAIRING, NONE),
        (400, {"error": {"message": "temperature must be at most 2"}}, NONE),
        (200, {"choices": []}, NONE),
        (404, b"<html>not here</html>", NONE),
    ],
)
async def test_what_is_heard(status: int, body: object, heard: Complaint) -> None:
    """An overflow is heard whatever its status; words about tools only where a tool is refused."""
    assert await hear(answer(status, body), 100_000) == heard


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_the_answer_stays_whole(status: int) -> None:
    """Whoever relays the answer gets all of it."""
    response = answer(status, TOO_LONG)
    await hear(response, 100_000)
    assert json.loads(await response.read()) == TOO_LONG


@pytest.mark.parametrize("at", range(1, len(event(TOO_LONG))))
async def test_an_error_at_the_beginning_of_a_stream(at: int) -> None:
    """It is heard however the stream is cut, behind comments, and is still there afterwards."""
    data = event(TOO_LONG)
    response = stream(b": waiting\n\n", data[:at], data[at:], b"data: [DONE]\n\n")
    assert await hear(response, 100_000) == Complaint(TELLING)
    assert await response.read() == b": waiting\n\n" + data + b"data: [DONE]\n\n"


async def test_a_stream_that_says_something_first() -> None:
    """Once a token was sent an error is the client's to see; nothing behind the first event is waited for."""
    chunk = event({"choices": [{"delta": {"content": "x"}}]})
    response = stream(chunk, 600.0, event(TOO_LONG))
    assert await hear(response, 100_000) == NONE
    assert await anext(aiter(response)) == chunk
    await response.close()


async def test_a_silent_stream_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that thinks long is relayed unseen, with what comes later."""
    monkeypatch.setattr("proxy.complaint.PATIENCE_SECONDS", 0.01)
    response = stream(0.1, b"data: late\n\n")
    assert await hear(response, 100_000) == NONE
    assert await response.read() == b"data: late\n\n"


async def test_a_small_prompt_is_not_looked_at() -> None:
    """What fits every model is relayed without a look."""
    response = stream(600.0)
    assert await hear(response, 100) == NONE
    await response.close()


async def test_an_answer_that_breaks_off_does_so_for_the_reader() -> None:
    """Listening raises nothing; what came before the end is relayed first."""
    response = stream(b": begun\n\n", httpx.ReadError("gone"))
    assert await hear(response, 100_000) == NONE
    body = aiter(response)
    assert await anext(body) == b": begun\n\n"
    with pytest.raises(UpstreamError):
        await anext(body)


async def test_a_client_that_leaves_meanwhile() -> None:
    """The connection is closed when the listener is cancelled."""
    body = Pieces(600.0)
    task = asyncio.create_task(hear(UpstreamResponse(400, [], body), 100_000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert body.is_closed
