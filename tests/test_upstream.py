"""The transport: what leaves and comes back is exact, faults are named, nothing is sent twice."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import subprocess
import threading
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import respx

from proxy.errors import Garbled, TimedOut, Unreachable
from proxy.headers import Headers
from proxy.target import Reach, UpstreamTarget, make_target
from proxy.upstream import AiohttpTransport, Transport, UpstreamRequest, UpstreamResponse
from tests.fakes.upstream import (
    CLOSE,
    CUT,
    HANG,
    FakeUpstream,
    Pause,
    Received,
    answer,
    body,
    cut,
    pieces,
    raw,
    silence,
)

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
JSON: Headers = [(b"content-type", b"application/json")]


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    """Give a transport with its own connections."""
    transport = Transport()
    yield transport
    await transport.close()


def target(fake: FakeUpstream, *, connect: float = 2.0, read: float = 5.0) -> UpstreamTarget:
    """Return the fake's address, reached directly."""
    return make_target(fake.url, Reach(connect, read), {})


def post(fake: FakeUpstream, data: bytes = b"{}", headers: Headers = JSON, *, read: float = 5.0) -> UpstreamRequest:
    """Return a chat request."""
    return UpstreamRequest(target(fake, read=read), "POST", CHAT, headers, body=data)


def get(fake: FakeUpstream, path: str = "/v1/models", headers: Headers | None = None) -> UpstreamRequest:
    """Return a GET request."""
    return UpstreamRequest(target(fake), "GET", path, headers or [])


def fields(received: Received) -> list[tuple[bytes, bytes]]:
    """Return the fields that arrived, without those that every request needs."""
    return [pair for pair in received.headers if pair[0].lower() not in {b"host", b"content-length"}]


async def seen(fake: FakeUpstream, count: int = 1) -> list[Received]:
    """Wait for requests without blocking the loop."""
    return await asyncio.to_thread(fake.wait, count)


async def has_gone(received: Received) -> bool:
    """Wait until the peer has left, without blocking the loop."""
    return await asyncio.to_thread(received.wait_gone)


class TestWhatLeaves:
    """Requests reach the upstream exactly as they were given."""

    async def test_body_method_and_path_are_exact(self, fake: FakeUpstream, transport: Transport) -> None:
        """A request arrives with its own method, path and bytes."""
        await (await transport.open(post(fake, b'{"a": 1.0}'))).read()
        (received,) = fake.received
        assert (received.method, received.target, received.body) == ("POST", CHAT.encode(), b'{"a": 1.0}')

    async def test_no_field_is_added(self, fake: FakeUpstream, transport: Transport) -> None:
        """Nothing but host and length joins the caller's fields."""
        await (await transport.open(post(fake, headers=[]))).read()
        await (await transport.open(get(fake))).read()
        assert [fields(received) for received in fake.received] == [[], []]

    async def test_fields_keep_order_case_and_duplicates(self, fake: FakeUpstream, transport: Transport) -> None:
        """Fields arrive in their order, in their case and as often as they were given."""
        given = [
            (b"X-B", b"1"),
            (b"x-a", b"2"),
            (b"X-B", b"3"),
            (b"Cookie", b"a=1"),
            (b"Accept-Encoding", b"br"),
        ]
        await (await transport.open(get(fake, headers=given))).read()
        assert fields(fake.received[0]) == given

    async def test_values_beyond_ascii_survive(self, fake: FakeUpstream, transport: Transport) -> None:
        """A field value in UTF-8 arrives with the same bytes."""
        given = [(b"x-name", "Zoë €".encode())]
        await (await transport.open(get(fake, headers=given))).read()
        assert fields(fake.received[0]) == given

    @pytest.mark.parametrize(
        ("path", "query"),
        [
            ("/v1/files/a%2Fb%20c/~x", b"after=%7E&x=%C3%A9+1&empty=&=v&flag"),
            ("/v1/a//b/", b"q=a/b?c"),
            ("/v1/x;p=1,2/(y)'*!$", b"[]=%5B%5D&e=%e2%82%ac"),
        ],
    )
    async def test_path_and_query_are_not_requoted(
        self, fake: FakeUpstream, transport: Transport, path: str, query: bytes
    ) -> None:
        """No byte of path or query is decoded, encoded or sorted on its way."""
        request = UpstreamRequest(target(fake), "GET", path, [], query)
        await (await transport.open(request)).read()
        assert fake.received[0].target == path.encode() + b"?" + query

    @pytest.mark.parametrize("size", [0, 1, 256 * 1024, 256 * 1024 + 1, 3_000_000])
    async def test_bodies_of_any_size(self, fake: FakeUpstream, transport: Transport, size: int) -> None:
        """A body arrives whole with its length, large ones without a warning."""
        data = b"x" * size
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await (await transport.open(post(fake, data))).read()
        (received,) = fake.received
        assert received.body == data
        assert received.header("content-length") == str(size)
        assert received.header("transfer-encoding") is None

    async def test_streamed_body_with_length(self, fake: FakeUpstream, transport: Transport) -> None:
        """A body that is still arriving is passed on under its declared length."""
        request = UpstreamRequest(target(fake), "PUT", "/v1/files", JSON, body=arriving(b"ab", b"cde"), length=5)
        await (await transport.open(request)).read()
        (received,) = fake.received
        assert (received.body, received.header("content-length")) == (b"abcde", "5")
        assert received.header("transfer-encoding") is None

    async def test_streamed_body_of_unknown_length(self, fake: FakeUpstream, transport: Transport) -> None:
        """A body of unknown length is passed on in chunks, without a length."""
        request = UpstreamRequest(target(fake), "POST", "/v1/files", JSON, body=arriving(b"ab", b"cde"))
        await (await transport.open(request)).read()
        (received,) = fake.received
        assert (received.body, received.header("transfer-encoding")) == (b"abcde", "chunked")
        assert received.header("content-length") is None

    async def test_a_cookie_reaches_nobody_else(self, fake: FakeUpstream, transport: Transport) -> None:
        """A cookie set for one client is not sent with the next request."""
        fake.queue(answer({}, headers={"Set-Cookie": "session=secret; Path=/"}))
        response = await transport.open(get(fake))
        await response.read()
        await (await transport.open(get(fake))).read()
        assert (b"Set-Cookie", b"session=secret; Path=/") in response.headers
        assert fake.received[1].header("cookie") is None


class TestWhatComesBack:
    """Answers come back as the upstream sent them."""

    async def test_fields_keep_order_case_and_duplicates(self, fake: FakeUpstream, transport: Transport) -> None:
        """Response fields come in their order, in their case and as often as they were sent."""
        sent = [("X-Request-ID", "r"), ("Set-Cookie", "a=1"), ("x-b", "é"), ("Set-Cookie", "b=2")]
        fake.queue(body(b"ok", headers=sent))
        response = await transport.open(get(fake))
        assert await response.read() == b"ok"
        want = [(name.encode(), value.encode("latin-1")) for name, value in sent]
        assert response.headers == [*want, (b"Content-Length", b"2")]

    async def test_coded_bodies_stay_coded(self, fake: FakeUpstream, transport: Transport) -> None:
        """A compressed body is not unpacked, and its coding stays declared."""
        packed = gzip.compress(b"hello")
        fake.queue(body(packed, headers={"Content-Encoding": "gzip"}))
        response = await transport.open(get(fake))
        assert await response.read() == packed
        assert (b"Content-Encoding", b"gzip") in response.headers

    async def test_pieces_come_as_they_are_sent(self, fake: FakeUpstream, transport: Transport) -> None:
        """The first piece is there before the last one was sent."""
        fake.queue(pieces(b"data: 1\n\n", Pause(0.3), b"data: 2\n\n"))
        response = await transport.open(get(fake))
        assert response.is_event_stream
        arrived = [data async for data in response]
        await response.close()
        assert arrived == [b"data: 1\n\n", b"data: 2\n\n"]

    async def test_long_fields_and_many_fields(self, fake: FakeUpstream, transport: Transport) -> None:
        """Fields of 64 KiB and more than a hundred of them are accepted in both directions."""
        sent = [("x-long", "v" * 66_000), *((f"x-{i}", "v") for i in range(300))]
        given = [(name.encode(), value.encode()) for name, value in sent]
        fake.queue(body(b"", headers=sent))
        response = await transport.open(get(fake, headers=given))
        await response.read()
        assert response.headers[:-1] == given
        assert fields(fake.received[0]) == given

    async def test_redirects_are_answers(self, fake: FakeUpstream, transport: Transport) -> None:
        """A redirect is handed on, not followed."""
        fake.queue(body(b"", 307, {"Location": "http://127.0.0.1:9/"}))
        response = await transport.open(post(fake))
        await response.read()
        assert (response.status, len(fake.received)) == (307, 1)

    @pytest.mark.parametrize("status", [204, 304])
    async def test_answers_without_body(self, fake: FakeUpstream, transport: Transport, status: int) -> None:
        """Statuses that forbid a body end at their head, even with a length, and the connection serves on."""
        fake.queue(body(b"", status, {"Content-Length": "5"}))
        response = await transport.open(get(fake))
        assert (response.status, await response.read()) == (status, b"")
        await (await transport.open(get(fake))).read()
        assert fake.connections == 1

    async def test_head_requests(self, fake: FakeUpstream, transport: Transport) -> None:
        """The answer to HEAD keeps the length of the body that it does not have."""
        fake.queue(body(b"12345"))
        request = UpstreamRequest(target(fake), "HEAD", "/v1/models", [])
        response = await transport.open(request)
        assert await response.read() == b""
        assert (b"Content-Length", b"5") in response.headers

    async def test_interim_answers_are_passed_over(self, fake: FakeUpstream, transport: Transport) -> None:
        """100 Continue and 103 Early Hints before the answer are not taken for it."""
        interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        fake.queue(raw(interim, Pause(0.05), b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"))
        response = await transport.open(post(fake))
        assert (response.status, await response.read()) == (200, b"fine")

    async def test_a_body_that_ends_with_the_connection(self, fake: FakeUpstream, transport: Transport) -> None:
        """An answer of HTTP/1.0 style is complete when the connection closes."""
        fake.queue(raw(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall ", Pause(0.05), b"of it", CLOSE))
        assert await (await transport.open(get(fake))).read() == b"all of it"

    async def test_an_early_answer_to_an_upload(self, fake: FakeUpstream, transport: Transport) -> None:
        """An answer that comes before the upload is complete is handed on."""
        with listening(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno") as port:
            where = make_target(f"http://127.0.0.1:{port}/v1", Reach(2, 5), {})
            request = UpstreamRequest(where, "POST", "/v1/files", [], body=endless(), length=10**9)
            response = await transport.open(request)
            assert (response.status, await response.read()) == (413, b"no")


class TestConnections:
    """Connections are kept when an answer was complete and closed at once when it is not wanted any more."""

    async def test_connections_are_reused(self, fake: FakeUpstream, transport: Transport) -> None:
        """Requests one after the other share a connection."""
        for _ in range(3):
            await (await transport.open(post(fake))).read()
        assert fake.connections == 1

    async def test_there_is_no_cap(self, fake: FakeUpstream, transport: Transport) -> None:
        """150 requests are open at the same time."""
        fake.otherwise = lambda _: silence()
        tasks = [asyncio.create_task(transport.open(get(fake))) for _ in range(150)]
        await seen(fake, 150)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def test_cancelling_before_the_head_closes(self, fake: FakeUpstream, transport: Transport) -> None:
        """A request that is cancelled while the upstream thinks ends there at once."""
        fake.queue(silence())
        task = asyncio.create_task(transport.open(post(fake)))
        (received,) = await seen(fake)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await has_gone(received)

    async def test_closing_in_the_middle_closes(self, fake: FakeUpstream, transport: Transport) -> None:
        """An answer that is closed before its end ends upstream at once."""
        fake.queue(pieces(b"data: 1\n\n", HANG))
        response = await transport.open(post(fake))
        assert await anext(aiter(response)) == b"data: 1\n\n"
        await response.close()
        assert await has_gone(fake.received[0])

    async def test_cancelling_an_upload_closes(self, fake: FakeUpstream, transport: Transport) -> None:
        """An upload whose request is cancelled does not go on."""
        with listening(b"") as port:
            where = make_target(f"http://127.0.0.1:{port}/v1", Reach(2, 5), {})
            request = UpstreamRequest(where, "POST", "/v1/files", [], body=endless())
            task = asyncio.create_task(transport.open(request))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    @pytest.mark.parametrize("data", [b"", b"again", b"x" * 300_000], ids=["none", "small", "large"])
    async def test_a_kept_connection_that_was_closed_is_replaced(
        self, fake: FakeUpstream, transport: Transport, data: bytes
    ) -> None:
        """A request on a kept connection that turns out to be closed is sent again, once, on a new one."""
        await (await transport.open(post(fake))).read()
        fake.queue(cut(), answer({"ok": 1}))
        assert await (await transport.open(post(fake, data))).read() == b'{"ok":1}'
        assert [received.body for received in fake.received] == [b"{}", data, data]
        assert len({received.connection for received in fake.received}) == 2

    async def test_it_is_replaced_only_once(self, fake: FakeUpstream, transport: Transport) -> None:
        """When the new connection closes as well, that is the answer."""
        await (await transport.open(post(fake))).read()
        fake.queue(cut(), cut())
        with pytest.raises(Unreachable, match="closed the connection"):
            await transport.open(post(fake))
        assert len(fake.received) == 3

    @pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
    async def test_a_new_connection_is_not_replaced(
        self, fake: FakeUpstream, transport: Transport, method: str
    ) -> None:
        """A request that a new connection took is never sent twice, whatever its method."""
        fake.queue(cut())
        with pytest.raises(Unreachable):
            await transport.open(UpstreamRequest(target(fake), method, "/v1/x", [], body=b""))
        assert len(fake.received) == 1

    @pytest.mark.parametrize("end", [CUT, CLOSE])
    async def test_an_answer_that_began_is_not_asked_for_again(
        self, fake: FakeUpstream, transport: Transport, end: object
    ) -> None:
        """A kept connection that closes after the first byte of an answer is not replaced."""
        await (await transport.open(post(fake))).read()
        fake.queue(raw(b"HTTP/1.1 200 OK\r\n", CUT if end is CUT else CLOSE))
        with pytest.raises(Unreachable):
            await transport.open(post(fake))
        assert len(fake.received) == 2

    async def test_an_upload_is_not_sent_again(self, fake: FakeUpstream, transport: Transport) -> None:
        """A streamed body is gone once it was sent, so its request is not repeated."""
        await (await transport.open(post(fake))).read()
        fake.queue(cut())
        request = UpstreamRequest(target(fake), "POST", "/v1/files", [], body=arriving(b"x"), length=1)
        with pytest.raises(Unreachable):
            await transport.open(request)
        assert len(fake.received) == 2


class TestFaults:
    """Faults become errors of ours that say what to do."""

    async def test_refused(self, transport: Transport) -> None:
        """A refused connection is told from a lost one, with the address."""
        where = make_target(f"http://127.0.0.1:{free_port()}/v1", Reach(), {})
        with pytest.raises(Unreachable, match=r"Upstream http://127\.0\.0\.1:\d+: cannot be reached; is it up\?"):
            await transport.open(UpstreamRequest(where, "GET", "/v1/models", []))
        assert transport.last_answers[where.origin].code == "upstream_unreachable"

    async def test_unknown_name(self, transport: Transport) -> None:
        """A name that does not exist says so."""
        where = make_target("http://nowhere.invalid/v1", Reach(), {})
        with pytest.raises(Unreachable, match="its name is unknown"):
            await transport.open(UpstreamRequest(where, "GET", "/v1/models", []))

    async def test_silence_before_the_head(self, fake: FakeUpstream, transport: Transport) -> None:
        """An upstream that says nothing for the read time-out is given up, and the connection closed."""
        fake.queue(silence())
        with pytest.raises(TimedOut, match=r"sent nothing for 0\.2 s \(timeout\.read\)"):
            await transport.open(post(fake, read=0.2))
        assert await has_gone(fake.received[0])

    async def test_silence_in_the_middle(self, fake: FakeUpstream, transport: Transport) -> None:
        """The read time-out counts from byte to byte, not from the start."""
        fake.queue(pieces(b"1", Pause(0.3), b"2", Pause(0.3), b"3", HANG))
        response = await transport.open(post(fake, read=0.5))
        arrived: list[bytes] = []
        with pytest.raises(TimedOut):
            await collect(response, arrived)
        await response.close()
        assert arrived == [b"1", b"2", b"3"]
        assert await has_gone(fake.received[0])

    async def test_no_connection_in_time(self, transport: Transport) -> None:
        """A host that takes no connection is given up after the connect time-out."""
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            address = full.getsockname()
            plugs = [socket.socket() for _ in range(8)]
            for plug in plugs:
                plug.setblocking(False)
                plug.connect_ex(address)
            where = make_target(f"http://127.0.0.1:{address[1]}/v1", Reach(0.2, 5), {})
            with pytest.raises(TimedOut, match=r"no connection in 0\.2 s"):
                await transport.open(UpstreamRequest(where, "GET", "/v1/models", []))
            for plug in plugs:
                plug.close()

    @pytest.mark.parametrize(
        "junk", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 banana\r\n\r\n", b"\x15\x03\x01\x00\x02\x02"]
    )
    async def test_no_http(self, fake: FakeUpstream, transport: Transport, junk: bytes) -> None:
        """Bytes that are no HTTP are called so."""
        fake.queue(raw(junk))
        with pytest.raises(Garbled, match="is no HTTP"):
            await transport.open(post(fake))

    @pytest.mark.parametrize("status", [b"101 Switching Protocols", b"600 Huh", b"999 Huh"])
    async def test_statuses_that_nobody_can_be_given(
        self, fake: FakeUpstream, transport: Transport, status: bytes
    ) -> None:
        """A status outside of HTTP's classes is an error of ours."""
        fake.queue(raw(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n"))
        with pytest.raises(Garbled, match="answered with status"):
            await transport.open(post(fake))

    @pytest.mark.parametrize("end", [CUT, CLOSE])
    @pytest.mark.parametrize("head", [b"Content-Length: 100\r\n", b"Transfer-Encoding: chunked\r\n"])
    async def test_broken_off(self, fake: FakeUpstream, transport: Transport, head: bytes, end: object) -> None:
        """A body that stops short of its length or its last chunk is an error after the bytes that came."""
        start = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n"
        part = b"4\r\npart\r\n" if b"chunked" in head else b"part"
        fake.queue(raw(start, Pause(0.02), part, CUT if end is CUT else CLOSE))
        response = await transport.open(post(fake))
        arrived: list[bytes] = []
        with pytest.raises((Garbled, Unreachable), match=r"broke off|closed the connection"):
            await collect(response, arrived)
        assert b"".join(arrived) == b"part"
        await response.close()

    async def test_outcomes_are_remembered(self, fake: FakeUpstream, transport: Transport) -> None:
        """The last answer of each upstream is known."""
        fake.queue(body(b"", 429))
        await (await transport.open(post(fake))).read()
        assert transport.last_answers[target(fake).origin].status == 429


class TestProxies:
    """Upstreams behind a proxy."""

    async def test_plain_http_goes_through_the_proxy(self, fake: FakeUpstream, transport: Transport) -> None:
        """A plain request names the whole URL to the proxy, byte for byte, and carries its credential."""
        environ = {"HTTP_PROXY": f"http://user:pass@127.0.0.1:{fake.port}"}
        where = make_target("http://upstream.test/v1", Reach(), environ)
        await (await transport.open(UpstreamRequest(where, "GET", "/v1/a%2Fb", [], b"x=%7E"))).read()
        (received,) = fake.received
        assert received.target == b"http://upstream.test/v1/a%2Fb?x=%7E"
        assert received.header("host") == "upstream.test"
        assert received.header("proxy-authorization") == "Basic dXNlcjpwYXNz"

    async def test_tls_is_tunnelled(self, transport: Transport, authority: Authority) -> None:
        """A request under TLS passes the proxy in a tunnel and is protected to the upstream."""
        with FakeUpstream(tls=authority.server()) as fake:
            async with tunnel(fake.port) as (port, asked):
                environ = {"https_proxy": f"127.0.0.1:{port}"}
                reach = Reach(ca_file=str(authority.certificate))
                where = make_target("https://upstream.test/v1", reach, environ)
                assert await (await transport.open(UpstreamRequest(where, "GET", "/v1/models", []))).read()
            assert asked == [b"CONNECT upstream.test:443 HTTP/1.1"]
            assert fake.received[0].target == b"/v1/models"

    async def test_a_dead_proxy_is_named(self, transport: Transport) -> None:
        """A proxy that cannot be reached is told from an upstream that cannot."""
        environ = {"HTTP_PROXY": f"http://127.0.0.1:{free_port()}"}
        where = make_target("http://upstream.test/v1", Reach(), environ)
        with pytest.raises(Unreachable, match="its proxy is down; check HTTPS_PROXY"):
            await transport.open(UpstreamRequest(where, "GET", "/v1/models", []))

    async def test_a_proxy_that_refuses(self, fake: FakeUpstream, transport: Transport) -> None:
        """A proxy's refusal of the tunnel is passed on as what it is."""
        fake.queue(body(b"", 403))
        environ = {"HTTPS_PROXY": f"http://127.0.0.1:{fake.port}"}
        where = make_target("https://upstream.test/v1", Reach(), environ)
        with pytest.raises(Unreachable, match=r"refused by the proxy.*403"):
            await transport.open(UpstreamRequest(where, "GET", "/v1/models", []))


class TestTls:
    """Upstreams under TLS."""

    async def test_an_authority_of_ones_own(self, transport: Transport, authority: Authority) -> None:
        """With its authority in `ca_file` an upstream is trusted."""
        with FakeUpstream(tls=authority.server()) as fake:
            where = make_target(fake.url, Reach(ca_file=str(authority.certificate)), {})
            response = await transport.open(UpstreamRequest(where, "GET", "/v1/models", []))
            assert (response.status, await response.read() != b"") == (200, True)

    async def test_an_unknown_authority(self, transport: Transport, authority: Authority) -> None:
        """Without it the error says which key to set."""
        with FakeUpstream(tls=authority.server()) as fake:
            where = make_target(fake.url, Reach(), {})
            with pytest.raises(Unreachable, match="not trusted; name the authority in ca_file"):
                await transport.open(UpstreamRequest(where, "GET", "/v1/models", []))

    async def test_https_to_a_plain_port(self, fake: FakeUpstream, transport: Transport) -> None:
        """TLS spoken to a server without it is recognised."""
        where = make_target(fake.url.replace("http:", "https:"), Reach(), {})
        with pytest.raises((Unreachable, Garbled)):
            await transport.open(UpstreamRequest(where, "GET", "/v1/models", []))


class TestSeam:
    """The same calls over httpx's own test doubles."""

    async def test_respx_sees_the_request(self) -> None:
        """A mocked transport gets the whole URL, the fields and the body, and its answer comes back."""
        router = respx.Router()
        route = router.post("https://api.test/v1/chat/completions?a=%2F").respond(201, json={"ok": True})
        transport = Transport(httpx.MockTransport(router.async_handler))
        where = make_target("https://api.test", Reach(), {})
        response = await transport.open(UpstreamRequest(where, "POST", CHAT, JSON, b"a=%2F", b"{}"))
        assert (response.status, await response.read()) == (201, b'{"ok":true}')
        sent = route.calls.last.request
        assert (sent.content, sent.headers["content-type"]) == (b"{}", "application/json")

    async def test_errors_of_httpx_are_ours(self) -> None:
        """Whatever transport is used, its errors become ours."""

        def fail(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectTimeout("slow", request=request)

        transport = Transport(httpx.MockTransport(fail))
        where = make_target("https://api.test", Reach(), {})
        with pytest.raises(TimedOut, match="slow"):
            await transport.open(UpstreamRequest(where, "GET", "/v1/models", []))

    async def test_a_cap_can_be_set(self, fake: FakeUpstream) -> None:
        """With one connection allowed, the second request waits for the first."""
        transport = Transport(AiohttpTransport(connections=1))
        fake.queue(pieces(b"1", Pause(0.2), b"2"))
        first = await transport.open(post(fake))
        waiting = asyncio.create_task(transport.open(post(fake)))
        assert await first.read() == b"12"
        await (await waiting).read()
        await transport.close()
        assert fake.connections == 1


async def arriving(*parts: bytes) -> AsyncIterator[bytes]:
    """Yield the parts of an upload."""
    for part in parts:
        await asyncio.sleep(0)
        yield part


async def endless() -> AsyncIterator[bytes]:
    """Yield an upload that does not end."""
    while True:
        await asyncio.sleep(0)
        yield b"x" * 65536


async def collect(response: UpstreamResponse, into: list[bytes]) -> None:
    """Read a body, keeping what came before an error."""
    async for data in response:  # not a comprehension: what came before an error must stay
        into.append(data)  # noqa: PERF401 - the comprehension would lose them


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class listening:  # noqa: N801 - used like a function
    """A server that answers the first bytes of a request and never reads the rest."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._ended = threading.Event()

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._server.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._server.close()

    def _serve(self) -> None:
        peer, _ = self._server.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(self._reply)
            self._ended.wait(10)


class Authority:
    """A certificate that signs itself, for 127.0.0.1 and upstream.test."""

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "certificate.pem"
        self._key = folder / "key.pem"
        names = "subjectAltName=IP:127.0.0.1,DNS:upstream.test"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-nodes", "-days", "2", "-subj", "/CN=test", "-addext", names]
        command += ["-keyout", str(self._key), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True)

    def server(self) -> ssl.SSLContext:
        """Return the server's side."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self._key)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Give a certificate authority of our own."""
    return Authority(tmp_path_factory.mktemp("authority"))


@asynccontextmanager
async def tunnel(port: int) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Serve a proxy that tunnels everything to a port; give its own port and the request lines it got."""
    asked: list[bytes] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0])
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], asked
    server.close()
