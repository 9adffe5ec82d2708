"""What is learnt of upstreams on the way, and what of it outlives the process."""

from __future__ import annotations

import asyncio
import time

import httpx
import msgspec
import pytest

from proxy.budget import Asking, Sent
from proxy.compaction import refuses_tool
from proxy.core.overflow import Overflow
from proxy.counting import Counter
from proxy.errors import Unavailable
from proxy.experience import Experience
from proxy.lessons import Place, Refusal
from proxy.presets import built_in
from proxy.sessions import Sessions
from proxy.settings import Settings
from proxy.store.base import StoreOptions
from proxy.store.memory import MemoryStore
from proxy.target import Reach, make_target
from proxy.upstream import Transport, UpstreamRequest
from tests.core.test_plan import asked
from tests.test_compaction import Desk

pytestmark = pytest.mark.anyio
COUNTER = Counter()
PLACE = Place("t", "https://up.example", "m")
REFUSED = Refusal(Overflow(window_tokens=9_000), 12_000)


def experience(store: MemoryStore) -> Experience:
    """Return the experience of a new process on a store."""
    return Experience(
        Sessions(store, b"s" * 32), COUNTER, Transport(httpx.MockTransport(lambda _: httpx.Response(404)))
    )


def room(learnt: Experience, tenant: str = "t") -> int:
    """Return what fits into a request of a tenant."""
    return learnt.budget.room(Settings(), built_in()["balanced"], PLACE.upstream, PLACE.model, Asking(tenant))


async def test_a_window_is_known_after_a_restart_to_its_tenant_alone() -> None:
    """The refusal named it."""
    store = MemoryStore(StoreOptions(), time.time)
    await experience(store).refuses_length(PLACE, REFUSED)
    later = experience(store)
    before = room(later)
    await later.facts_of("t")
    await later.facts_of("u")
    assert room(later) < 9_000 < before
    assert room(later, "u") == before


async def test_a_refused_tool_is_known_to_the_session_and_the_tenant() -> None:
    """At once in this process, and after a restart."""
    desk = Desk()
    compacted = await desk.compact(asked())
    learnt = Experience(desk.compactor.sessions, COUNTER, Transport(httpx.MockTransport(lambda _: httpx.Response(404))))
    assert not refuses_tool(await learnt.facts_of("t"), compacted.situation)
    await learnt.refuses_tool(compacted)
    for process in (learnt, experience(desk.store)):
        assert refuses_tool(await process.facts_of("t"), compacted.situation)
        assert not refuses_tool(await process.facts_of("u"), compacted.situation)
    ledger = await desk.compactor.sessions.reload("t", compacted.ledger.id)
    assert ledger.facts


async def test_a_lost_store_costs_no_lesson() -> None:
    """What cannot be written is known here all the same."""
    desk = Desk()
    compacted = await desk.compact(asked())
    learnt = Experience(desk.compactor.sessions, COUNTER, Transport(httpx.MockTransport(lambda _: httpx.Response(404))))
    await learnt.facts_of("t")

    async def lost(*_: object) -> None:
        raise Unavailable("the store is down")

    desk.store.put_fact = desk.store.append_ledger = lost  # type: ignore[method-assign,assignment] # it fails now
    await learnt.refuses_tool(compacted)
    await learnt.refuses_length(PLACE, REFUSED)
    assert refuses_tool(await learnt.facts_of("t"), compacted.situation)
    assert room(learnt) < 9_000


async def test_a_report_that_is_far_too_low_is_looked_into(capsys: pytest.CaptureFixture[str]) -> None:
    """An upstream that cuts prompts without a word is told in the log, with the mend; an honest one is not."""
    body = msgspec.json.encode({"messages": [{"role": "user", "content": "a word or two " * 2_000}]})
    learnt = experience(MemoryStore(StoreOptions(), time.time))
    await learnt.reported(PLACE, Sent(body, 8_000), {"prompt_tokens": 8_010})
    assert "prompt_cut_by_upstream" not in capsys.readouterr().out
    await learnt.reported(PLACE, Sent(body, 8_000), {"prompt_tokens": 2_000})
    assert "prompt_cut_by_upstream" in capsys.readouterr().out


async def test_an_upstream_is_asked_about_its_window() -> None:
    """With the credential of the request that it served; closing ends the question."""
    asked_for: list[httpx.Request] = []

    def models(request: httpx.Request) -> httpx.Response:
        asked_for.append(request)
        return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 7_777}]})

    learnt = Experience(
        Sessions(MemoryStore(StoreOptions(), time.time), b"s" * 32), COUNTER, Transport(httpx.MockTransport(models))
    )
    target = make_target("https://up.example/v1", Reach(2, 5), {})
    learnt.served(UpstreamRequest(target, "POST", "/v1/chat/completions", [(b"authorization", b"Bearer k")]), "m")
    await asyncio.gather(*learnt._discovery._tasks)
    assert learnt.budget.windows.discovered(target.origin, "m") is not None
    assert asked_for[0].headers["authorization"] == "Bearer k"
    await learnt.close()
