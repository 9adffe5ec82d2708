"""The chat route over real sockets: bodies, limits, errors, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator

import httpx
import openai
import pytest

from proxy.app import create_app
from proxy.errors import Limited
from proxy.exchange import Exchange, Responder
from tests.fakes.serving import parts, serving
from tests.fakes.upstream import (
    CUT,
    HANG,
    FakeUpstream,
    Pause,
    answer,
    body,
    chunks,
    completion,
    events,
    pieces,
    raw,
    silence,
)

KEY = {"authorization": "Bearer sk-client"}
PATH = "/v1/chat/completions"


@pytest.fixture
def url(fake: FakeUpstream) -> Iterator[str]:
    """Give the address of a relay in front of the fake."""
    with serving(create_app(parts(fake.url))) as served:
        yield served


def connect(url: str) -> socket.socket:
    """Open a connection of our own."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def request(data: bytes, *more: str) -> bytes:
    """Return the bytes of a chat request."""
    lines = [f"POST {PATH} HTTP/1.1", "Host: x", "Authorization: Bearer k", f"Content-Length: {len(data)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + data


def until(connection: socket.socket, mark: bytes) -> bytes:
    """Read until some bytes have come, or the end."""
    got = b""
    while mark not in got and (data := connection.recv(65536)):
        got += data
    return got


class TestAnswers:
    """What the upstream says reaches the client."""

    def test_a_completion_is_relayed(self, fake: FakeUpstream, url: str) -> None:
        """Request and answer pass byte for byte, with the upstream's fields and nothing of ours."""
        sent = b'{ "model":"m", "messages":[], "seed":12345678901234567890 }'
        fake.queue(body(b'{"id": 1.0}', 200, {"Content-Type": "application/json", "Date": "then", "Server": "up"}))
        response = httpx.post(url + PATH, content=sent, headers=KEY)
        assert fake.received[0].body == sent
        assert (response.status_code, response.content) == (200, b'{"id": 1.0}')
        want = [("content-type", "application/json"), ("date", "then"), ("server", "up"), ("content-length", "11")]
        assert response.headers.multi_items() == want

    def test_a_stream_is_relayed_as_it_comes(self, fake: FakeUpstream, url: str) -> None:
        """Each event leaves before the next one arrives."""
        fake.queue(pieces(b"data: 1\n\n", Pause(0.3), b"data: 2\n\n"))
        with httpx.stream("POST", url + PATH, content=b"{}", headers=KEY) as response:
            came = [(time.monotonic(), data) for data in response.iter_raw()]
        assert [data for _, data in came] == [b"data: 1\n\n", b"data: 2\n\n"]

    @pytest.mark.parametrize("status", [400, 401, 429, 500, 503, 529])
    def test_errors_of_the_upstream_are_its_own(self, fake: FakeUpstream, url: str, status: int) -> None:
        """An upstream's error keeps status, fields and bytes, and is not repeated."""
        fake.queue(body(b"<html>", status, {"retry-after": "7", "x-should-retry": "true"}))
        response = httpx.post(url + PATH, content=b"{}", headers=KEY)
        assert (response.status_code, response.content) == (status, b"<html>")
        assert response.headers["retry-after"] == "7"
        assert len(fake.received) == 1

    def test_the_official_client(self, fake: FakeUpstream, url: str) -> None:
        """The official client gets completions and streams through the gateway."""
        client = openai.OpenAI(base_url=url + "/v1", api_key="sk-client", max_retries=0)
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
        fake.queue(answer(completion("whole")), events(*chunks("in parts")))
        whole = client.chat.completions.create(model="m", messages=messages)
        streamed = client.chat.completions.create(model="m", messages=messages, stream=True)
        assert whole.choices[0].message.content == "whole"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == "in parts "
        client.close()

    def test_a_broken_stream_is_broken_for_the_client(self, fake: FakeUpstream, url: str) -> None:
        """When the upstream breaks off, so does the answer: no ending is invented."""
        fake.queue(pieces(b"data: 1\n\n", Pause(0.05), CUT))
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream("POST", url + PATH, content=b"{}", headers=KEY) as response,
        ):
            response.read()

    def test_continue_both_ways(self, fake: FakeUpstream, url: str) -> None:
        """A client that waits for 100 Continue gets it; one from the upstream is not passed on."""
        interim = b"HTTP/1.1 100 Continue\r\n\r\n"
        fake.queue(raw(interim, Pause(0.05), b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"))
        with connect(url) as connection:
            connection.sendall(request(b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 2"))
            assert until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
            connection.sendall(b"{}")
            got = until(connection, b"fine")
        assert got.startswith(b"HTTP/1.1 200")
        assert fake.received[0].header("expect") is None


class TestLimits:
    """Bodies over the limit."""

    @pytest.fixture
    def url(self, fake: FakeUpstream) -> Iterator[str]:
        """Give a relay that takes 100,000 bytes."""
        with serving(create_app(parts(fake.url, max_body_bytes=100_000))) as served:
            yield served

    @pytest.mark.parametrize("path", [PATH, "/v1/files"])
    @pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
    def test_too_large(self, fake: FakeUpstream, url: str, path: str, *, is_chunked: bool) -> None:
        """A larger body is a 413 in OpenAI's shape, declared or not, and the gateway serves on."""
        data = b"x" * 300_000
        parts_of_it = (data[i : i + 50_000] for i in range(0, len(data), 50_000))
        with httpx.Client() as client:
            response = client.post(url + path, content=parts_of_it if is_chunked else data, headers=KEY)
            assert response.status_code == 413
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("ullage_error", "too_large")
            assert client.post(url + PATH, content=b"{}", headers=KEY).status_code == 200
        assert [received.path for received in fake.received] == [PATH]

    def test_the_limit_itself_passes(self, fake: FakeUpstream, url: str) -> None:
        """A body of exactly the limit is served."""
        assert httpx.post(url + PATH, content=b"x" * 100_000, headers=KEY).status_code == 200
        assert len(fake.received[0].body) == 100_000

    def test_a_large_body_passes(self, fake: FakeUpstream) -> None:
        """20 MB arrive as they were sent."""
        data = b"\xff\x00" * 10_000_000
        with serving(create_app(parts(fake.url))) as url:
            assert httpx.post(url + PATH, content=data, headers=KEY, timeout=30).status_code == 200
        assert fake.received[0].body == data


class TestOwnErrors:
    """Errors of ours have OpenAI's shape."""

    def test_no_upstream(self) -> None:
        """A refused connection is a 502 that says what to look at."""
        with serving(create_app(parts("http://127.0.0.1:9/v1"))) as url:
            response = httpx.post(url + PATH, content=b"{}", headers=KEY)
        assert response.status_code == 502
        assert response.headers["content-type"] == "application/json"
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("ullage_error", "upstream_unreachable")
        assert "is it up?" in error["message"]

    def test_errors_and_bugs_of_the_gateway(self, fake: FakeUpstream) -> None:
        """What a gateway raises is answered: its own errors as they say, bugs as a plain 500."""
        for raised, status, code in (Limited("slowly"), 429, "limited"), (ValueError("secret"), 500, "internal"):
            with serving(create_app(parts(fake.url, Raising(raised)))) as url:
                response = httpx.post(url + PATH, content=b"{}", headers=KEY)
            assert response.status_code == status
            assert response.json()["error"]["code"] == code
            assert "secret" not in response.text

    def test_no_credential_from_elsewhere(self, fake: FakeUpstream, url: str) -> None:
        """The configured key serves this machine alone, under a loopback name."""
        assert httpx.post(url + PATH, content=b"{}").status_code == 200
        assert fake.received[0].header("authorization") == "Bearer sk-configured"
        for foreign in {"host": "evil.test"}, {"x-forwarded-for": "1.2.3.4"}, {"origin": "http://evil.test"}:
            response = httpx.post(url + PATH, content=b"{}", headers=foreign)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthenticated")
        assert len(fake.received) == 1


class TestDepartures:
    """A client that leaves ends the upstream call at once."""

    @pytest.mark.parametrize("resets", [False, True])
    @pytest.mark.parametrize("where", ["before the head", "after the head", "in the middle"])
    def test_leaving(self, fake: FakeUpstream, url: str, where: str, *, resets: bool) -> None:
        """Closed or reset, before, after or within the answer: the upstream is let go and the gateway serves on."""
        fake.queue(silence() if where == "before the head" else pieces(b"data: 1\n\n" if "mid" in where else b"", HANG))
        connection = connect(url)
        connection.sendall(request(b"{}"))
        (received,) = fake.wait()
        if where != "before the head":
            until(connection, b"data:" if "mid" in where else b"\r\n\r\n")
        if resets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        assert received.wait_gone(2)
        assert httpx.post(url + PATH, content=b"{}", headers=KEY).status_code == 200

    def test_leaving_within_the_request(self, fake: FakeUpstream, url: str) -> None:
        """A client that leaves before its body is complete costs nothing upstream."""
        with connect(url) as connection:
            connection.sendall(request(b"x" * 1000)[:-10])
        assert httpx.post(url + PATH, content=b"{}", headers=KEY).status_code == 200
        assert len(fake.received) == 1

    def test_work_after_the_answer_is_not_cancelled(self, fake: FakeUpstream) -> None:
        """What a gateway does after the answer is complete goes on although the client has left."""
        gateway = Lasting()
        with serving(create_app(parts(fake.url, gateway))) as url:
            with connect(url) as connection:
                connection.sendall(request(b"{}", "Connection: close"))
                until(connection, b"done")
            assert gateway.ended.wait(2)

    def test_many_departures_leave_nothing_behind(self, fake: FakeUpstream, url: str) -> None:
        """After a hundred clients that left, no upstream connection is still in use."""
        fake.otherwise = lambda _: silence()
        connections = [connect(url) for _ in range(100)]
        for connection in connections:
            connection.sendall(request(b"{}"))
        everyone = fake.wait(100)
        for connection in connections:
            connection.close()
        assert all(received.wait_gone(5) for received in everyone)


class Raising:
    """A gateway that fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def handle(self, exchange: Exchange, responder: Responder) -> None:
        """Fail."""
        raise self._error


class Lasting:
    """A gateway that has something to do after its answer."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    async def handle(self, exchange: Exchange, responder: Responder) -> None:
        """Answer, then go on for a while."""
        await responder.start(200, [(b"content-type", b"text/plain")])
        await responder.finish(json.dumps("done").encode())
        await asyncio.sleep(0.3)
        self.ended.set()
