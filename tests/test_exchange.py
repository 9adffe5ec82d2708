"""Exchanges: what a gateway can ask of a request."""

from __future__ import annotations

from proxy.exchange import Exchange


def exchange(peer: str) -> Exchange:
    """Return a request."""
    headers = [(b"host", b"localhost"), (b"x-a", b"1"), (b"x-a", b"2"), (b"x-ullage-policy", b" ")]
    return Exchange(method="POST", path="/v1/x", raw_query=b"", headers=headers, peer=peer)


def test_headers() -> None:
    """The first value of a field is found, a missing one is None."""
    assert (exchange("").header(b"x-a"), exchange("").header(b"x-b")) == (b"1", None)


def test_a_blank_header_says_nothing() -> None:
    """Clients that fill a field from an empty variable mean none."""
    assert exchange("").header(b"x-ullage-policy") is None


def test_locality() -> None:
    """Whether the client is here is judged by address and fields together."""
    assert exchange("127.0.0.1").client_is_loopback
    assert not exchange("10.0.0.1").client_is_loopback
