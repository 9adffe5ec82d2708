"""Who may look and who may administrate, without a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.administration import ADMINISTRATOR, Viewer, admit, is_administrator
from proxy.errors import Unauthenticated
from proxy.headers import Headers
from proxy.tenants import tenant_of

SECRET = b"s" * 32
ADMIN_KEY = "adm-1"
LOCAL: Headers = [(b"host", b"127.0.0.1:4410")]
FOREIGN: list[tuple[str, Headers]] = [
    ("127.0.0.1", [*LOCAL, (b"x-forwarded-for", b"10.0.0.9")]),
    ("127.0.0.1", [*LOCAL, (b"x-forwarded-proto", b"https")]),
    ("127.0.0.1", [*LOCAL, (b"forwarded", b"for=10.0.0.9")]),
    ("127.0.0.1", [*LOCAL, (b"via", b"1.1 proxy")]),
    ("127.0.0.1", [(b"host", b"evil.test")]),
    ("127.0.0.1", []),
    ("127.0.0.1", [*LOCAL, (b"origin", b"http://evil.test")]),
    ("127.0.0.1", [*LOCAL, (b"sec-fetch-site", b"cross-site")]),
    ("10.0.0.9", LOCAL),
    ("", LOCAL),
]
PRESENTED = [
    (b"authorization", b"Bearer %s"),
    (b"authorization", b"bearer  %s"),
    (b"x-api-key", b"%s"),
    (b"api-key", b"%s"),
]


@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        ("127.0.0.1", LOCAL),
        ("127.0.0.1", [(b"host", b"localhost:4410")]),
        ("::1", [(b"host", b"[::1]:4410")]),
        ("127.0.0.1", [*LOCAL, (b"origin", b"http://127.0.0.1:4410"), (b"sec-fetch-site", b"same-origin")]),
        ("127.0.0.1", [*LOCAL, (b"authorization", b" ")]),
    ],
)
def test_without_an_admin_key_a_local_program_administrates(peer: str, headers: Headers) -> None:
    """Asked straight from this machine and without a credential, everything is shown."""
    assert admit(peer, headers, SECRET, None) is ADMINISTRATOR
    assert is_administrator(peer, headers, None)


@pytest.mark.parametrize(("peer", "headers"), FOREIGN)
def test_without_an_admin_key_nobody_else_administrates(peer: str, headers: Headers) -> None:
    """Whatever says that somebody else may be asking is a refusal that says what would help."""
    with pytest.raises(Unauthenticated, match=r"no credential: .*Authorization"):
        admit(peer, headers, SECRET, None)
    assert not is_administrator(peer, headers, None)


@pytest.mark.parametrize(("peer", "headers"), [("127.0.0.1", LOCAL), *FOREIGN])
@pytest.mark.parametrize("admin_key", [None, ADMIN_KEY])
@pytest.mark.parametrize(("name", "form"), PRESENTED)
def test_a_credential_is_its_tenant_from_wherever(
    peer: str, headers: Headers, admin_key: str | None, name: bytes, form: bytes
) -> None:
    """A client sees its own tenant, the one of its requests under /v1; a local one does not see all either."""
    viewer = admit(peer, [*headers, (name, form % b"sk-1")], SECRET, admin_key)
    assert viewer == Viewer(tenant_of(b"sk-1", SECRET))


@pytest.mark.parametrize(("peer", "headers"), [("127.0.0.1", LOCAL), *FOREIGN])
@pytest.mark.parametrize(("name", "form"), PRESENTED)
def test_the_admin_key_administrates_from_wherever(peer: str, headers: Headers, name: bytes, form: bytes) -> None:
    """Who presents the admin key sees all, also through a proxy and beside another credential."""
    presented = [*headers, (name, form % ADMIN_KEY.encode())]
    assert admit(peer, presented, SECRET, ADMIN_KEY) is ADMINISTRATOR
    assert admit(peer, [(b"authorization", b"Bearer sk-1"), *presented], SECRET, ADMIN_KEY) is ADMINISTRATOR
    assert is_administrator(peer, presented, ADMIN_KEY)


def test_with_an_admin_key_local_programs_need_it() -> None:
    """Once there is a key, coming from this machine is worth nothing."""
    with pytest.raises(Unauthenticated, match=r"server\.admin_key"):
        admit("127.0.0.1", LOCAL, SECRET, ADMIN_KEY)
    assert not is_administrator("127.0.0.1", LOCAL, ADMIN_KEY)
    assert not is_administrator("127.0.0.1", [*LOCAL, (b"x-other", ADMIN_KEY.encode())], ADMIN_KEY)


def test_a_key_for_administration_that_is_not_set_is_a_credential_like_any_other() -> None:
    """After `admin_key` was taken away the old key shows nothing."""
    presented = [*LOCAL, (b"authorization", b"Bearer " + ADMIN_KEY.encode())]
    assert admit("10.0.0.9", presented, SECRET, None) == Viewer(tenant_of(ADMIN_KEY.encode(), SECRET))


@given(st.text(min_size=1).filter(str.strip), st.binary())
def test_only_the_very_key_administrates(admin_key: str, other: bytes) -> None:
    """The key is taken whatever characters it has, and no other bytes are taken for it."""
    key = admin_key.encode()
    assert is_administrator("10.0.0.9", [(b"x-api-key", key)], admin_key)
    assert not is_administrator("10.0.0.9", [(b"x-api-key", key + b"x")], admin_key)
    assert not is_administrator("10.0.0.9", [(b"x-api-key", b"x" + key)], admin_key)
    if key.strip() not in other:
        assert not is_administrator("10.0.0.9", [(b"x-api-key", other)], admin_key)
