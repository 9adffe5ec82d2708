"""Work that one of several gateways does."""

from __future__ import annotations

import pytest

from proxy.claims import Claims
from proxy.errors import Unavailable
from proxy.store.base import StoreOptions
from proxy.store.memory import MemoryStore
from tests.store.suite import Clock

pytestmark = pytest.mark.anyio


async def test_one_of_several_has_a_claim() -> None:
    """Until it is given back, or has ended; each claim is a thing of its own."""
    clock = Clock()
    store = MemoryStore(StoreOptions(), clock)
    one, other = Claims(store), Claims(store)
    token = await one.take("t", "work", 10.0)
    assert token
    assert await other.take("t", "work", 10.0) is None
    assert await other.take("u", "work", 10.0)
    await one.give_back("t", "work", token)
    assert await other.take("t", "work", 10.0)
    clock.now += 11
    await one.give_back("t", "work", token)
    assert await one.take("t", "work", 10.0)


async def test_a_failing_store_keeps_nobody_from_working() -> None:
    """Everybody has the claim then; giving it back raises nothing, whether the store works again or not."""

    class Failing(MemoryStore):
        """A store without locks."""

        async def claim(self, tenant: str, name: str, seconds: float) -> int | None:
            """Fail."""
            raise Unavailable("gone")

        async def release(self, tenant: str, name: str, token: int) -> None:
            """Fail, too."""
            raise Unavailable("gone")

    claims = Claims(Failing(StoreOptions(), Clock()))
    for _ in range(2):
        token = await claims.take("t", "work", 10.0)
        assert token is not None
        await claims.give_back("t", "work", token)
    await claims.give_back("t", "work", 7)
