"""How a tier notices what its hot store has lost: anybody may empty that at any time, and it does not tell.

All that the hot store has lost lies in the durable one. So what the hot one says of keys is held against what this
process has read of the durable one already, which costs no request. What it has read is enough as long as the hot store
lives the same *life* as when it was read: a fact with a random value is there. In another life it is read again first.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from proxy.store.base import Movable, Tip

_FACT: Final = ("\0tier", "life")  # tenant and key


@runtime_checkable
class Copied(Protocol):
    """A store of which each process has a copy, brought up to date with everything that it asks for or writes."""

    async def glance_tips(self, tenant: str, keys: Sequence[bytes]) -> list[Tip]:
        """Do as `find_tips`, and ask nobody whether the copy is up to date."""


async def name_life(hot: Movable) -> bytes:
    """Return what the present life of the hot store is called, which is random; raises what the store raises."""
    tenant, key = _FACT
    name = (await hot.facts(tenant)).get(key)
    if name is None:
        name = secrets.token_bytes(16)
        await hot.put_fact(tenant, key, name)
    return name


async def glance(durable: Movable, tenant: str, keys: Sequence[bytes]) -> list[Tip]:
    """Return what a durable store says of keys, as far as it says that quickly."""
    if isinstance(durable, Copied):
        return await durable.glance_tips(tenant, keys)
    return await durable.find_tips(tenant, keys)


def lacks(hot: Mapping[bytes, Tip], kept: Tip) -> bool:
    """Tell whether the tips of the hot store are behind what the durable one says of one key."""
    tip = hot.get(kept.key)
    return tip is None or tip.ledger != kept.ledger or tip.version < kept.version or tip.newest < kept.newest
