"""Relayed routes over real sockets: everything under /v1 passes byte for byte, odd paths do not pass."""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.app import create_app
from proxy.routes.relay import has_dot_segment
from tests.fakes.serving import parts, serving
from tests.fakes.upstream import HANG, FakeUpstream, Pause, body, cut, pieces, silence

KEY = {"authorization": "Bearer sk-client"}


@pytest.fixture
def url(fake: FakeUpstream) -> Iterator[str]:
    """Give the address of a relay in front of the fake."""
    with serving(create_app(parts(fake.url))) as served:
        yield served


def raw_request(url: str, line: str, *more: str) -> bytes:
    """Send a request line as it is; return everything that comes back."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        head = [f"{line} HTTP/1.1", f"Host: {host}:{port}", "Authorization: Bearer k", "Connection: close", *more]
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        got = b""
        while data := connection.recv(65536):
            got += data
    return got


class TestVerbatim:
    """Methods, paths, fields and bodies pass as they are."""

    @pytest.mark.parametrize(
        ("method", "path", "data"),
        [
            ("GET", "/v1/models", b""),
            ("GET", "/v1/chat/completions/chatcmpl-1?order=asc", b""),
            ("DELETE", "/v1/files/file-1", b""),
            ("PUT", "/v1/x/y%2Fz?a=%2F&b", b"\x00\xff"),
            ("PATCH", "/v1/threads/t_1", b'{"a":1}'),
            ("POST", "/v1/audio/transcriptions", bytes(range(256)) * 8000),
            ("POST", "/v1/chat/completions/", b"{}"),
            ("OPTIONS", "/v1/chat/completions", b""),
        ],
    )
    def test_any_method_and_path(self, fake: FakeUpstream, url: str, method: str, path: str, data: bytes) -> None:
        """Every route and method but the served one reaches the upstream unchanged, and its answer the client."""
        response = httpx.request(method, url + path, content=data, headers={**KEY, "content-type": "application/x"})
        (received,) = fake.received
        assert (received.method, received.target.decode(), received.body) == (method, path, data)
        assert received.header("authorization") == "Bearer sk-client"
        assert (response.status_code, response.json()["bytes"]) == (200, len(data))

    def test_head(self, fake: FakeUpstream, url: str) -> None:
        """HEAD keeps the length of the body that is not sent."""
        fake.queue(body(b"12345", 200, {"x-a": "b"}))
        response = httpx.head(url + "/v1/models", headers=KEY)
        assert (response.headers["content-length"], response.headers["x-a"], response.content) == ("5", "b", b"")

    def test_fields(self, fake: FakeUpstream, url: str) -> None:
        """Fields of the connection and of ours stay here, all others go up in order, with duplicates."""
        given = [
            "Connection: keep-alive, X-Hop",
            "X-Hop: 1",
            "TE: trailers",
            "Proxy-Authorization: Basic x",
            "X-Ullage-Session: s",
            "X-B: 1",
            "X-A: 2",
            "X-B: 3",
            "Accept-Encoding: br;q=1",
            "User-Agent: me",
        ]
        raw_request(url, "GET /v1/models", *given)
        names = [(name.lower(), value) for name, value in fake.received[0].headers]
        assert names[1:] == [
            (b"authorization", b"Bearer k"),
            (b"x-b", b"1"),
            (b"x-a", b"2"),
            (b"x-b", b"3"),
            (b"accept-encoding", b"br;q=1"),
            (b"user-agent", b"me"),
        ]

    def test_response_fields(self, fake: FakeUpstream, url: str) -> None:
        """Fields of the upstream's connection stay there, all others come down; nothing is added."""
        fake.queue(
            body(
                b"x",
                200,
                [
                    ("Connection", "keep-alive, x-foo"),
                    ("x-foo", "1"),
                    ("Keep-Alive", "timeout=5"),
                    ("Set-Cookie", "a"),
                    ("Set-Cookie", "b"),
                    ("Access-Control-Allow-Origin", "*"),
                ],
            )
        )
        response = httpx.get(url + "/v1/models", headers=KEY)
        assert response.headers.multi_items() == [
            ("set-cookie", "a"),
            ("set-cookie", "b"),
            ("access-control-allow-origin", "*"),
            ("content-length", "1"),
        ]

    def test_coded_answers(self, fake: FakeUpstream, url: str) -> None:
        """A compressed answer arrives compressed, a plain one plain."""
        packed = gzip.compress(b"hello")
        fake.queue(body(packed, 200, {"Content-Encoding": "gzip"}), body(b"hello"))
        with httpx.stream("GET", url + "/v1/models", headers=KEY) as response:
            assert b"".join(response.iter_raw()) == packed
        assert "content-encoding" not in httpx.get(url + "/v1/models", headers=KEY).headers

    @pytest.mark.parametrize("status", [204, 304])
    def test_answers_without_body(self, fake: FakeUpstream, url: str, status: int) -> None:
        """Statuses without a body pass, whatever length they declare."""
        fake.queue(body(b"", status, {"Content-Length": "5", "ETag": "x"}))
        response = httpx.get(url + "/v1/models", headers=KEY)
        assert (response.status_code, response.content, response.headers["etag"]) == (status, b"", "x")

    @pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
    def test_other_formats_say_that_they_are_bypassed(self, fake: FakeUpstream, url: str, path: str) -> None:
        """The other wire formats are relayed, and the answer says why nothing was compacted."""
        response = httpx.post(url + path, content=b"{}", headers=KEY)
        assert response.headers["x-ullage-compaction"] == "bypassed; reason=format"
        assert "x-ullage-compaction" not in httpx.get(url + path + "/1", headers=KEY).headers
        assert fake.received[0].body == b"{}"

    def test_a_preflight_needs_no_credential(self, fake: FakeUpstream, url: str) -> None:
        """A browser's OPTIONS is the upstream's to answer and spends no key."""
        fake.queue(body(b"", 204, {"Access-Control-Allow-Origin": "http://a"}))
        response = httpx.options(url + "/v1/chat/completions", headers={"origin": "http://a"})
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (204, "http://a")
        assert fake.received[0].header("authorization") is None


class TestStreaming:
    """Bodies are passed on while they arrive."""

    def test_an_upload_is_not_collected(self, fake: FakeUpstream, url: str) -> None:
        """The upstream has the start of an upload before the client has sent its end."""
        seen: list[int] = []

        def slowly() -> Iterator[bytes]:
            yield b"x" * 100_000
            end = time.monotonic() + 5
            while not fake.open_connections and time.monotonic() < end:
                time.sleep(0.01)
            seen.append(fake.open_connections)
            yield b"y"

        httpx.post(url + "/v1/files", content=slowly(), headers=KEY)
        assert seen == [1]
        assert fake.received[0].body == b"x" * 100_000 + b"y"
        assert fake.received[0].header("transfer-encoding") == "chunked"

    def test_a_declared_length_is_kept(self, fake: FakeUpstream, url: str) -> None:
        """A large upload with a length goes up with that length."""
        data = b"x" * 3_000_000
        httpx.post(url + "/v1/files", content=data, headers=KEY)
        (received,) = fake.received
        assert (received.header("content-length"), received.header("transfer-encoding")) == ("3000000", None)
        assert received.body == data

    def test_an_answer_is_not_collected(self, fake: FakeUpstream, url: str) -> None:
        """Binary answers come in the pieces in which they were sent."""
        fake.queue(pieces(b"\x00\x01", Pause(0.2), b"\x02", headers={"Content-Type": "audio/mpeg"}))
        with httpx.stream("POST", url + "/v1/audio/speech", content=b"{}", headers=KEY) as response:
            assert list(response.iter_raw()) == [b"\x00\x01", b"\x02"]

    @pytest.mark.parametrize("in_upload", [False, True])
    def test_leaving(self, fake: FakeUpstream, url: str, *, in_upload: bool) -> None:
        """A client that leaves, within its upload or while it waits, ends the upstream's request."""
        fake.queue(pieces(HANG) if not in_upload else silence())
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            head = f"POST /v1/files HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer k\r\n"
            length = 5_000_000 if in_upload else 1
            connection.sendall(f"{head}Content-Length: {length}\r\n\r\nx".encode())
            end = time.monotonic() + 5
            while not fake.open_connections and time.monotonic() < end:
                time.sleep(0.01)
            assert fake.open_connections == 1
        end = time.monotonic() + 2
        while fake.open_connections and time.monotonic() < end:
            time.sleep(0.01)
        assert fake.open_connections == 0

    def test_a_stale_connection_costs_nothing(self, fake: FakeUpstream, url: str) -> None:
        """A request that meets a kept connection just closed by the upstream is served all the same."""
        httpx.post(url + "/v1/embeddings", content=b"1", headers=KEY)
        fake.queue(cut())
        assert httpx.post(url + "/v1/embeddings", content=b"22", headers=KEY).json()["bytes"] == 2
        assert len(fake.received) == 3


class TestDots:
    """Dot segments are refused."""

    @pytest.mark.parametrize(
        "path",
        [
            "/v1/../metrics",
            "/v1/%2e%2e/ullage/v1/sessions",
            "/v1/files/%2E./x",
            "/v1/a/./b",
            "/v1/a/..",
            "/v1/.%2e",
            "/v1/x/..%2fy",
            "/v1/x/..%5cy",
            "/v1/..\\x",
            "/v1/%252e%252e/x",
            "/v1/..;a=b/x",
        ],
    )
    def test_they_are_400(self, fake: FakeUpstream, url: str, path: str) -> None:
        """A path that could climb is answered with 400 in OpenAI's shape and asks nobody."""
        got = raw_request(url, f"GET {path}")
        assert got.startswith(b"HTTP/1.1 400"), got
        assert b'"code":"bad_request"' in got
        assert not fake.received

    @pytest.mark.parametrize(
        "path", ["/v1/models/gpt-4.1", "/v1/a..b/...", "/v1/.well-known", "/v1/50%25", "/v1/a%2Fb"]
    )
    def test_dots_elsewhere_pass(self, fake: FakeUpstream, url: str, path: str) -> None:
        """Dots and percent signs within names are nothing special."""
        assert raw_request(url, f"GET {path}").startswith(b"HTTP/1.1 200")
        assert fake.received[0].target.decode() == path

    @given(st.lists(st.sampled_from([".", "%2e", "%2E", "%252e", "%25252E"]), min_size=1, max_size=2))
    def test_any_mix_of_encodings_is_found(self, dots: list[str]) -> None:
        """However the dots are written, a segment of one or two is found."""
        assert has_dot_segment(f"/v1/a/{''.join(dots)}/b")

    @given(st.text(alphabet="ab.-_~", min_size=3, max_size=8))
    def test_names_are_not_taken_for_dots(self, name: str) -> None:
        """A segment of three or more characters is a name."""
        assert not has_dot_segment(f"/v1/{name}/x")
