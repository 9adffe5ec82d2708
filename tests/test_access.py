"""Pass-through access: the client's credential goes up, the configured key is lent to local clients alone."""

from __future__ import annotations

import pytest

from proxy.access import PassThrough, Provider
from proxy.errors import Unauthenticated
from proxy.exchange import Exchange
from proxy.headers import Headers
from proxy.target import UpstreamTarget

pytestmark = pytest.mark.anyio

TARGET = UpstreamTarget(origin="https://x", prefix="/v1")
HOST = (b"host", b"127.0.0.1:4410")


async def admit(headers: Headers, *, peer: str = "127.0.0.1", method: str = "POST", key: str | None = "sk") -> Headers:
    """Return what goes up of a request."""
    access = PassThrough(lambda: Provider(TARGET, key))
    exchange = Exchange(method=method, path="/v1/x", raw_query=b"", headers=headers, peer=peer)
    destination = await access.admit(exchange)
    assert destination.target is TARGET
    return destination.headers


@pytest.mark.parametrize("name", [b"authorization", b"api-key", b"x-api-key"])
async def test_the_clients_credential(name: bytes) -> None:
    """A credential in any of the usual fields goes up unchanged, from anywhere."""
    assert await admit([HOST, (name, b"Bearer c")], peer="8.8.8.8") == [(name, b"Bearer c")]


async def test_a_local_client_without_one() -> None:
    """A local client without a credential gets the configured key."""
    assert await admit([HOST, (b"authorization", b"")]) == [(b"authorization", b""), (b"authorization", b"Bearer sk")]
    assert await admit([HOST]) == [(b"authorization", b"Bearer sk")]


async def test_a_stranger_without_one() -> None:
    """Anybody else is refused, and the key is not spent."""
    for headers, peer in ([HOST], "10.0.0.1"), ([HOST, (b"via", b"p")], "127.0.0.1"), ([(b"host", b"x")], "127.0.0.1"):
        with pytest.raises(Unauthenticated):
            await admit(headers, peer=peer)


async def test_no_key_to_lend() -> None:
    """Where no key is configured, none is needed."""
    assert await admit([HOST], peer="10.0.0.1", key=None) == []


async def test_preflights() -> None:
    """A browser's question needs no credential and gets none."""
    assert await admit([HOST, (b"origin", b"http://a")], method="OPTIONS") == [(b"origin", b"http://a")]
