"""The relay gateway: asks for what was asked, answers what is answered, lets go of everything."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from proxy.access import PassThrough, Provider
from proxy.errors import Garbled
from proxy.exchange import Exchange
from proxy.headers import Headers
from proxy.relay import RelayGateway
from proxy.target import Reach, make_target
from proxy.upstream import Transport
from tests.fakes.upstream import CUT, FakeUpstream, Pause, body, pieces

pytestmark = pytest.mark.anyio


class Written:
    """A responder that keeps what is written."""

    def __init__(self) -> None:
        self.started = self.finished = False
        self.status = 0
        self.headers: Headers = []
        self.body = b""

    async def start(self, status: int, headers: Headers) -> None:
        """Keep the head."""
        self.started, self.status, self.headers = True, status, headers

    async def send(self, data: bytes) -> None:
        """Keep a part."""
        self.body += data

    async def finish(self, data: bytes = b"") -> None:
        """Keep the last part."""
        self.finished, self.body = True, self.body + data


def exchange(path: str = "/v1/x", data: bytes = b"{}") -> Exchange:
    """Return a request."""
    headers = [(b"authorization", b"Bearer k"), (b"content-length", str(len(data)).encode())]
    return Exchange(method="POST", path=path, raw_query=b"a=%2F", headers=headers, peer="", body=data)


def relay(fake: FakeUpstream, marks: Headers | None = None) -> tuple[RelayGateway, Transport]:
    """Return a gateway in front of the fake, and its transport."""
    transport = Transport()
    provider = Provider(make_target(fake.url, Reach(2, 5), {}))
    return RelayGateway(transport, PassThrough(lambda: provider), marks), transport


async def test_a_relayed_exchange(fake: FakeUpstream) -> None:
    """Request and answer pass unchanged, our own fields are added to the answer."""
    gateway, transport = relay(fake, [(b"x-ours", b"1")])
    fake.queue(body(b"ok", 201, {"x-theirs": "2"}))
    written = Written()
    await gateway.handle(exchange(), written)
    await transport.close()
    assert (fake.received[0].target, fake.received[0].body) == (b"/v1/x?a=%2F", b"{}")
    assert (written.status, written.body, written.finished) == (201, b"ok", True)
    assert written.headers == [(b"x-theirs", b"2"), (b"Content-Length", b"2"), (b"x-ours", b"1")]


async def test_a_broken_answer(fake: FakeUpstream) -> None:
    """An answer that breaks off raises and is not finished."""
    gateway, transport = relay(fake)
    fake.queue(pieces(b"part", Pause(0.05), CUT))
    written = Written()
    with pytest.raises(Exception, match="Upstream http"):
        await gateway.handle(exchange(), written)
    await transport.close()
    assert (written.body, written.finished) == (b"part", False)


async def test_the_answer_is_let_go(fake: FakeUpstream) -> None:
    """When writing to the client fails, the upstream's connection is closed."""

    class Failing(Written):
        async def send(self, data: bytes) -> None:
            raise Garbled(data.decode())

    gateway, transport = relay(fake)
    fake.queue(pieces(b"part", Pause(30)))
    with pytest.raises(Garbled):
        await gateway.handle(exchange(), Failing())
    assert await asyncio.to_thread(fake.received[0].wait_gone)
    await transport.close()


async def test_over_a_mock() -> None:
    """The gateway needs no sockets: any httpx transport will do."""
    transport = Transport(httpx.MockTransport(lambda request: httpx.Response(200, content=request.read())))
    provider = Provider(make_target("https://api.test", Reach(), {}))
    written = Written()
    await RelayGateway(transport, PassThrough(lambda: provider)).handle(exchange(data=b"echo"), written)
    assert written.body == b"echo"
