"""Connections to upstreams are known while they are open, by both of their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from proxy.app import create_app
from proxy.links import Links
from proxy.server import ASGIApp, bind
from tests.fakes.serving import parts, serving, serving_on
from tests.fakes.upstream import FakeUpstream

KEY = {"authorization": "Bearer k"}
NEAR, FAR = ("127.0.0.1", 50_000), ("127.0.0.1", 4410)


class Socket(asyncio.BaseTransport):
    """A transport that only knows its ends."""

    def __init__(self, near: object, far: object) -> None:
        super().__init__({"sockname": near, "peername": far})


def test_a_connection_is_known_until_it_ends() -> None:
    """What arrives over one is ours; one end alone says nothing, since others may use the same port."""
    links = Links()
    link = links.add(Socket(NEAR, FAR))
    assert links.brought(NEAR, FAR)
    assert not links.brought(NEAR, ("127.0.0.1", 8000))
    assert not links.brought(("127.0.0.1", 50_001), FAR)
    links.discard(link)
    assert not links.brought(NEAR, FAR)


def test_addresses_of_both_families() -> None:
    """A listener for both families reports an IPv4 peer in the form of IPv6, with two more fields."""
    links = Links()
    links.add(Socket(NEAR, FAR))
    assert links.brought(("::ffff:127.0.0.1", 50_000, 0, 0), ("::ffff:127.0.0.1", 4410, 0, 0))


@pytest.mark.parametrize("end", [None, "/run/socket", ""])
def test_what_is_no_network_address(end: object) -> None:
    """Sockets of other kinds are passed over."""
    links = Links()
    links.discard(links.add(Socket(end, end)))
    links.add(Socket(NEAR, FAR))
    assert not links.brought(None, None)


@contextmanager
def own_upstream(host: str = "127.0.0.1") -> Iterator[str]:
    """Serve a relay whose upstream is that relay itself."""
    listener = bind(host, 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app: ASGIApp = create_app(parts(f"{url}/v1"))
    with serving_on(listener, app):
        yield url


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - also on every address
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/v1/models")])
def test_a_request_that_comes_back_is_answered(host: str, method: str, path: str) -> None:
    """It goes round once, and the error tells the mistake; the next one, on a kept connection, too."""
    with own_upstream(host) as url, httpx.Client() as client:
        answers = [client.request(method, url + path, headers=KEY) for _ in range(3)]
    for answer in answers:
        error: dict[str, Any] = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (508, "ullage_error", "loop")
        assert "base_url" in error["message"]


def test_an_honest_upstream_is_not_mistaken(fake: FakeUpstream) -> None:
    """Nothing is added to a request for it, and clients go on while connections to an upstream are open."""
    with serving(create_app(parts(fake.url))) as url, httpx.Client() as client:
        assert [client.get(url + "/v1/models", headers=KEY).status_code for _ in range(3)] == [200] * 3
    assert not any(name.lower().startswith((b"x-ullage", b"via")) for name, _ in fake.received[0].headers)
