"""A compaction that somebody asks for."""

from __future__ import annotations

import msgspec
import pytest

from proxy.compaction import Compacted
from proxy.core.ledger import Declined, Wished
from proxy.presets import built_in
from proxy.store.base import Session
from proxy.wish import CannotCompact, wish
from tests.test_breaking import SUMMARISING, Writer, block, compact, preset, talk, tells
from tests.test_compaction import Desk

pytestmark = pytest.mark.anyio
SMALL = 30  # steps: about half of the trigger


async def session_of(desk: Desk, compacted: Compacted, name: str = "balanced") -> Session:
    """Return the session as it is listed."""
    found = await desk.store.get_session("t", compacted.ledger.id)
    assert found is not None
    return msgspec.structs.replace(found, preset=name)


async def wished(desk: Desk, steps: int = SMALL, policy: object = None) -> Compacted:
    """Begin a talk, ask for a compaction, and return its next request."""
    chosen = preset(policy) if policy else preset()
    first = await compact(desk, talk(steps), chosen, Writer(tells))
    assert first.compactions == 0
    await wish(desk.compactor.sessions, await session_of(desk, first), built_in())
    return await compact(desk, talk(steps + 1), chosen, Writer(tells))


async def test_the_next_request_is_compacted() -> None:
    """Far below the trigger; and only that one."""
    desk = Desk()
    compacted = await wished(desk)
    assert compacted.compactions == 1
    assert "<earlier-turns" in block(compacted)
    assert not compacted.ledger.is_wished
    later = await compact(desk, talk(SMALL + 5), preset(), Writer(tells))
    assert later.compactions == 1
    assert block(later) == block(compacted)


async def test_nobody_waits_for_a_narrative() -> None:
    """The next request is compacted, with what there is: a summary if one was written, else none."""
    compacted = await wished(Desk(), policy=SUMMARISING)
    assert compacted.compactions == 1
    assert "## Summary" not in block(compacted)
    assert compacted.need is None


async def test_where_nothing_is_to_be_gained_the_wish_is_over() -> None:
    """So that not every later request is measured for it."""
    desk = Desk()
    compacted = await wished(desk, steps=1)
    assert compacted.compactions == 0
    assert not compacted.ledger.is_wished
    assert isinstance(compacted.ledger.entries[-1], Declined)


async def test_to_wish_twice_is_to_wish_once() -> None:
    """The ledger has one entry."""
    desk = Desk()
    first = await compact(desk, talk(SMALL), preset(), Writer(tells))
    session = await session_of(desk, first)
    for _ in range(3):
        assert await wish(desk.compactor.sessions, session, built_in()) == "summarise"
    ledger = await desk.compactor.sessions.reload("t", session.id)
    assert [e for e in ledger.entries if isinstance(e, Wished)] == [Wished("api")]


@pytest.mark.parametrize("name", ["off", "safe", "shadow", "gone"])
async def test_presets_without_compactions(name: str) -> None:
    """They are named, and one that helps."""
    desk = Desk()
    first = await compact(desk, talk(2), preset(), Writer(tells))
    with pytest.raises(CannotCompact, match=f"{name!r}.*balanced"):
        await wish(desk.compactor.sessions, await session_of(desk, first, name), built_in())
