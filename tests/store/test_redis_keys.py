"""How things are called on a Redis server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from proxy.store.redis_keys import Keys, as_bytes, as_text

NAMES = st.lists(st.characters() | st.sampled_from("{}:%\ud800\udfff"), max_size=20).map("".join)


@given(NAMES)
def test_a_name_comes_back(name: str) -> None:
    """Any text can be a name."""
    assert as_text(as_bytes(name)) == name


@given(NAMES, NAMES)
def test_tenants_have_roots_of_their_own(one: str, other: str) -> None:
    """Two tenants share a root only if they are one, and no root is the beginning of another one's keys."""
    keys = Keys("p")
    assert (keys.root(one) == keys.root(other)) == (one == other)
    assert one == other or not keys.root(other).startswith(keys.root(one))


@given(NAMES, NAMES)
def test_a_tenant_lies_in_one_slot(tenant: str, ledger: str) -> None:
    """All keys of a tenant have the slot of its root."""
    keys = Keys("p")
    named = [keys.root(tenant).encode(), keys.facts(tenant).encode(), keys.entries(tenant, ledger)]
    assert len({key_slot(name) for name in named}) == 1


@pytest.mark.parametrize("name", ["schema", "secret", "tenants"])
def test_prefixes_do_not_meet(name: str) -> None:
    """What is there once for all lies under the prefix."""
    assert getattr(Keys("p"), name) == f"p:{name}"
    assert Keys("p").ping(3) == "p:ping:3"
