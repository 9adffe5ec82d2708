"""Originals live while they are used, and lost ones come back with the next request."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from proxy.errors import Unavailable
from proxy.store.base import Original, StoreOptions
from tests.core.test_plan import BIG, asked
from tests.test_compaction import Desk, Troubled

pytestmark = pytest.mark.anyio
LATER = {"role": "assistant", "content": "a"}


class Forgetful(Troubled):
    """A store that can fail to say what it lost."""

    silent = False

    async def missing_originals(self, tenant: str, refs: Sequence[str]) -> frozenset[str]:
        """Tell what is lost, or fail."""
        if self.silent:
            raise Unavailable("gone")
        return await super().missing_originals(tenant, refs)


class Clock:
    """A clock that is set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


def desk(clock: Clock) -> Desk:
    """Return a desk whose originals live for a hundred seconds."""
    options = StoreOptions(idle_ttl=100)
    return Desk(Forgetful(options, clock), options=options, clock=clock)


async def ref_of(table: Desk) -> str:
    """Offload a result, return its ref."""
    (entry,) = (await table.compact(asked())).plan.stubs.values()
    return entry.ref


async def test_a_used_original_lives_on() -> None:
    """Each request that shows the stub renews the original, however old it is."""
    clock = Clock()
    table = desk(clock)
    ref = await ref_of(table)
    for _ in range(5):
        clock.now += 80
        await table.compact([*asked(), LATER])
        await table.store.expire(clock.now)
    assert isinstance(await table.store.get_original("t", ref), Original)


async def test_a_lost_original_is_put_again() -> None:
    """A process that meets a session whose originals are gone stores them from the request."""
    clock = Clock()
    table = desk(clock)
    ref = await ref_of(table)
    emptied = desk(clock)
    moved = await _copy_ledger(table, emptied)
    assert await emptied.store.get_original("t", ref) is None
    compacted = await emptied.compact([*asked(), LATER])
    assert compacted.ledger.id == moved
    found = await emptied.store.get_original("t", ref)
    assert isinstance(found, Original)
    assert found.data == BIG.encode()


async def test_a_silent_store_does_not_fail_the_request() -> None:
    """When the store cannot tell what it lost, the request goes on as planned."""
    table = desk(Clock())
    await ref_of(table)
    fresh = Desk(table.store, options=StoreOptions(idle_ttl=100))
    assert isinstance(table.store, Forgetful)
    table.store.silent = True
    assert len((await fresh.compact([*asked(), LATER])).plan.stubs) == 1


async def _copy_ledger(source: Desk, target: Desk) -> str:
    """Write the ledger of the one session of a store into another store, without its originals."""
    compacted = await source.compact(asked())
    entries = await source.store.load_ledger("t", compacted.ledger.id)
    await target.store.append_ledger("t", compacted.ledger.id, 0, entries, compacted.known.marks)
    return compacted.ledger.id
