"""Whether a request comes from this machine: address, name, proxies in between, and pages in a browser."""

from __future__ import annotations

import pytest

from proxy.locality import is_local, is_loopback_host


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "a.localhost", "LOCALHOST"])
@pytest.mark.parametrize("port", ["", ":4410"])
def test_programs_here(host: str, port: str) -> None:
    """A direct request under any loopback name is local."""
    assert is_local("127.0.0.1", [(b"host", (host + port).encode())])


@pytest.mark.parametrize("peer", ["10.0.0.1", "", "192.168.1.1", "8.8.8.8", "fd00::1", "::ffff:10.0.0.1"])
def test_other_machines(peer: str) -> None:
    """A peer elsewhere is not local, whatever it says."""
    assert not is_local(peer, [(b"host", b"127.0.0.1")])


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_peers(peer: str) -> None:
    """All addresses of loopback count."""
    assert is_local(peer, [(b"host", b"localhost")])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"forwarded", b"for=10.0.0.9"),
        (b"via", b"1.1 p"),
        (b"x-forwarded-for", b"127.0.0.1"),
        (b"x-forwarded-anything", b""),
        (b"origin", b"http://evil.test"),
        (b"origin", b"null"),
        (b"origin", b"http://127.0.0.1:5173"),
        (b"sec-fetch-site", b"cross-site"),
        (b"sec-fetch-site", b"same-site"),
    ],
)
def test_somebody_in_between(name: bytes, value: bytes) -> None:
    """A proxy's trace or a foreign page makes a request not local."""
    assert not is_local("127.0.0.1", [(b"host", b"127.0.0.1:4410"), (name, value)])


@pytest.mark.parametrize("name", ["evil.test", "localhost.evil.test", "", "10.0.0.1", "[::1", "127.0.0.1.nip.io"])
def test_foreign_names(name: str) -> None:
    """A name that is not of loopback makes a request not local, even if it leads here."""
    assert not is_local("127.0.0.1", [(b"host", name.encode())])


def test_our_own_page() -> None:
    """A page that we served may ask."""
    fields = [(b"host", b"localhost:4410"), (b"origin", b"http://localhost:4410"), (b"sec-fetch-site", b"same-origin")]
    assert is_local("::1", fields)


def test_hosts() -> None:
    """Names and addresses of loopback are known without asking anybody."""
    assert [is_loopback_host(host) for host in ("localhost", "127.1.1.1", "::1", "example.com", "")] == [
        True,
        True,
        True,
        False,
        False,
    ]
