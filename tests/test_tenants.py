"""Pass-through tenancy: the credential is the tenant, and it goes upstream as it came."""

from __future__ import annotations

import pytest

from proxy.errors import Unauthenticated
from proxy.tenants import ANONYMOUS, identify, tenant_of

KEY = b"k" * 32


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key", b"api-key"])
def test_a_credential_is_a_tenant_wherever_it_is_presented(name: bytes) -> None:
    """The same key in another header is the same tenant, and nothing is put in its place."""
    value = b"Bearer sk-1" if name == b"authorization" else b"sk-1"
    caller = identify([(b"x-other", b"1"), (name, value)], KEY, "sk-ours", is_loopback=False)
    assert caller.tenant == tenant_of(b"sk-1", KEY)
    assert caller.credential == ()


def test_tenants_are_told_apart_and_do_not_give_their_credential_away() -> None:
    """Another credential or another secret is another tenant, and the name holds no part of the key."""
    names = {tenant_of(b"sk-1", KEY), tenant_of(b"sk-2", KEY), tenant_of(b"sk-1", b"o" * 32)}
    assert len(names) == 3
    assert not any("sk-1" in name for name in names)


def test_the_configured_key_serves_local_clients_without_one() -> None:
    """From loopback the configured key is lent; from elsewhere a credential is asked for."""
    caller = identify([(b"authorization", b" ")], KEY, "sk-ours", is_loopback=True)
    assert (caller.tenant, caller.credential) == (ANONYMOUS, ((b"authorization", b"Bearer sk-ours"),))
    with pytest.raises(Unauthenticated, match="credential"):
        identify([], KEY, "sk-ours", is_loopback=False)


def test_an_upstream_without_keys_serves_everybody() -> None:
    """Where no key is configured a request without credential goes on without."""
    assert identify([], KEY, None, is_loopback=False).credential == ()
