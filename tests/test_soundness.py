"""Whether a store is sound."""

from __future__ import annotations

import pytest

from proxy.core.history import digest
from proxy.core.ledger import Offloaded, encode_entry
from proxy.soundness import Flaw, Soundness, check_store
from proxy.store.base import StoreOptions
from proxy.store.memory import MemoryStore
from tests.store.suite import Clock, original

pytestmark = pytest.mark.anyio


def entry(ref: str, data: bytes) -> bytes:
    """Make the decision to move a text out."""
    about = {"kind": "result", "policy": "p", "reason": "over_limit", "tokens": 1, "lines": 1, "head_lines": 1}
    return encode_entry(Offloaded(exact=digest(data), since=1, ref=ref, tail_lines=1, reader="r", **about))  # type: ignore[arg-type]  # literals


async def check(store: MemoryStore) -> Soundness:
    """Return the last of what is found."""
    return [found async for found in check_store(store)][-1]


async def test_what_ledgers_refer_to_is_looked_at() -> None:
    """Originals are right, erased, missing or changed; each session is told once."""
    clock = Clock()
    store = MemoryStore(StoreOptions(idle_ttl=100), clock)
    assert await check(store) == Soundness()
    for ref in ("right", "erased", "changed"):
        await store.put_originals("t", [original(ref, "a", ref.encode())])
    await store.erase_original("t", "erased")
    texts = {"right": b"right", "erased": b"erased", "changed": b"as it was", "missing": b"missing"}
    await store.append_ledger("t", "a", 0, [entry(ref, data) for ref, data in texts.items()] + [b"of the future"], [])
    flaws = [Flaw("t", "a", "changed", "damaged"), Flaw("t", "a", "missing", "missing")]
    assert await check(store) == Soundness(sessions=1, entries=5, originals=4, erased=1, flaws=flaws)


async def test_looking_is_no_use() -> None:
    """A check keeps nothing alive."""
    clock = Clock()
    store = MemoryStore(StoreOptions(idle_ttl=100), clock)
    await store.put_originals("t", [original("r", "a", b"r")])
    await store.append_ledger("t", "a", 0, [entry("r", b"r")], [])
    clock.now += 60
    assert (await check(store)).flaws == []
    clock.now += 60
    assert await store.expire(clock.now) == 2
