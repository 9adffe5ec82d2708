"""Which narrative a compaction uses, which one is written next, and who waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from policies.summarise_history import SummariseHistory
from proxy.compaction import Compacted, Compactor
from proxy.core.ledger import Narrated
from proxy.errors import Unavailable
from proxy.store.base import Store, StoreOptions
from proxy.summarise import Failures, SummaryNeed
from proxy.upstream import UpstreamResponse
from tests.fakes.upstream import completion
from tests.store.redis_servers import RedisPlace
from tests.store.suite import until
from tests.test_breaking import (
    BOUNDS,
    STORY,
    SUMMARISING,
    Writer,
    block,
    compact,
    order,
    preset,
    settled,
    silence,
    talk,
    tells,
)
from tests.test_compaction import COUNTER, Desk, Troubled
from tests.test_summarise import plain, said

pytestmark = pytest.mark.anyio
TIGHT = msgspec.structs.replace(BOUNDS, trigger_tokens=3_400, limit_tokens=3_500)


async def needed(desk: Desk, steps: int, policy: SummariseHistory = SUMMARISING) -> SummaryNeed:
    """Return the narrative that a talk of so many steps calls for, asked for from nobody yet."""
    compacted = await compact(desk, talk(steps), preset(policy), Writer(silence))
    assert compacted.need is not None
    return compacted.need


async def narrated(desk: Desk, *links: Narrated) -> None:
    """Write narratives into the ledger of the talk."""
    compacted = await desk.compact(talk(1), preset(SUMMARISING))
    await desk.compactor.sessions.append_later("t", compacted.ledger, list(links))


async def ledger_of(desk: Desk, compacted: Compacted) -> list[Narrated]:
    """Return the narratives that the store has."""
    return (await desk.compactor.sessions.reload("t", compacted.ledger.id)).narratives


async def test_it_is_asked_for_shortly_before_the_trigger() -> None:
    """Two steps or so ahead, not when a third of the way is still to go; and no byte changes meanwhile."""
    bounds = msgspec.structs.replace(BOUNDS, target_tokens=2_800)
    asked_at: list[int] = []
    desk = Desk()
    for steps in range(30, 75):
        writer = Writer(silence)
        await compact(desk, talk(steps), preset(SUMMARISING), writer, bounds)
        for _ in range(2):  # a claim, and then the question
            await asyncio.sleep(0)
        asked_at += [steps] * len(writer.asked)
    (first,) = asked_at
    compacted_at, done = 30, Desk()
    while not (await compact(done, talk(compacted_at), preset(), Writer(tells), bounds)).compactions:
        compacted_at += 1
    assert compacted_at - 8 <= first < compacted_at


async def test_it_is_used_by_the_first_request_that_is_over_the_trigger() -> None:
    """What it tells beyond the block does no harm: the newest steps stay verbatim."""
    desk, writer = Desk(), Writer(tells)
    for steps in range(50, 75):
        compacted = await compact(desk, talk(steps), preset(SUMMARISING), writer)
        await settled(desk)
        if compacted.compactions:
            break
    assert STORY in block(compacted)
    (narrative,) = await ledger_of(desk, compacted)
    fold = compacted.plan.fold
    assert fold is not None
    assert fold.entry.cut is not None
    assert fold.entry.cut <= narrative.cut < compacted.length


async def test_its_cost_is_written_down() -> None:
    """The ledger says what the upstream reported."""
    usage = {"prompt_tokens": 900, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 800}}

    async def costs() -> UpstreamResponse:
        return plain(completion(STORY) | {"usage": usage})

    desk = Desk()
    compacted = await compact(desk, talk(62), preset(SUMMARISING), Writer(costs))
    await settled(desk)
    assert await ledger_of(desk, compacted) == [Narrated(0, compacted.length, STORY, 900, 800, 30)]


async def test_one_that_tells_too_little_is_not_used() -> None:
    """Of a much longer span it would leave out most; a new one is asked for."""
    desk = Desk()
    await narrated(desk, Narrated(0, 9, STORY))
    assert (await needed(desk, 62)).cut > 100


async def test_the_requests_own_model_is_asked_on_the_live_prefix() -> None:
    """Another model gets a transcript."""
    for policy, forks in ((SUMMARISING, True), (msgspec.structs.replace(SUMMARISING, model="small"), False)):
        desk, writer = Desk(), Writer(tells)
        await compact(desk, talk(62), preset(policy), writer)
        await settled(desk)
        (asked,) = writer.asked
        assert ("tools" in asked) is forks
        assert asked["model"] == ("m" if forks else "small")
        assert (len(asked["messages"]) > 100) is forks


async def test_the_eighth_is_made_of_the_messages_again() -> None:
    """So that no chain of narratives of narratives grows; it is told as a transcript of everything."""
    for links, is_anew in ((6, False), (7, True)):
        desk = Desk()
        await narrated(desk, *(Narrated(n, n + 1, f"## Intent\nlink {n}") for n in range(links)))
        need = await needed(desk, 62)
        assert need.can_fork is not is_anew
        assert need.start == 0
        assert need.previous == ""
    await narrated(desk, Narrated(0, 1, "## Intent\nanew"))
    assert (await needed(desk, 63)).can_fork


async def test_a_request_at_the_limit_joins_what_is_being_written() -> None:
    """Nobody is asked twice for what is on its way."""
    desk, free = Desk(), asyncio.Event()

    async def slowly() -> UpstreamResponse:
        await free.wait()
        return said(STORY)

    writer = Writer(slowly)
    await compact(desk, talk(62), preset(SUMMARISING), writer)
    patient = msgspec.structs.replace(SUMMARISING, wait_seconds=20.0)
    asyncio.get_running_loop().call_later(1.0, free.set)  # long after the next request has begun to wait
    compacted = await compact(desk, talk(70), preset(patient), writer, TIGHT)
    assert STORY in block(compacted)
    assert len(writer.asked) == 1


async def test_a_request_at_the_limit_asks_on_the_prefix_of_the_one_before() -> None:
    """It does not fit itself, but what was sent last did, and the upstream still has it."""
    desk, writer = Desk(), Writer(tells)
    before = await compact(desk, talk(50), preset(SUMMARISING), writer)
    compacted = await compact(desk, talk(60), preset(SUMMARISING), writer, TIGHT)
    (asked,) = writer.asked
    sent_before = msgspec.json.decode(before.body)
    assert asked["messages"][:-1] == sent_before["messages"]
    assert asked["tools"] == sent_before["tools"]
    assert STORY in block(compacted)


async def test_a_request_at_the_limit_of_which_little_is_known_is_told_as_a_transcript() -> None:
    """What was sent before tells too little of it."""
    desk, writer = Desk(), Writer(tells)
    await compact(desk, talk(10), preset(SUMMARISING), writer)
    compacted = await compact(desk, talk(60), preset(SUMMARISING), writer, TIGHT)
    (asked,) = writer.asked
    assert [m["role"] for m in asked["messages"]] == ["system", "user"]
    assert STORY in block(compacted)


async def test_long_messages_are_told_by_their_ends() -> None:
    """A transcript has what is at the beginning and at the end of a text, and says what it leaves out."""
    messages = talk(62)
    messages[3]["content"] = "begin " + "x " * 9_000 + "end"
    bounds = msgspec.structs.replace(BOUNDS, trigger_tokens=12_000, limit_tokens=20_000)
    compacted = await compact(Desk(), messages, preset(SUMMARISING), Writer(silence), bounds)
    assert compacted.need is not None
    (piece,) = [text for text in compacted.need.pieces() if "begin x" in text]
    assert piece.endswith("x end")
    assert "characters …]" in piece
    assert len(piece) < 8_200


async def test_the_users_words_tell_the_language() -> None:
    """Those of the newest messages."""
    assert "rule 61" in (await needed(Desk(), 62)).spoken


async def test_where_none_is_to_be_had_the_block_goes_without() -> None:
    """After two failures in a row a compaction is made at the trigger, as if nobody had been asked."""
    desk = Desk()
    need = await needed(desk, 62)
    failed = desk.compactor._narrator._summariser._failed
    for count, compactions in ((1, 0), (2, 1)):
        failed.put((need.tenant, need.ledger), Failures(count, 1e18))
        compacted = await compact(desk, talk(62 + count), preset(SUMMARISING), Writer(silence))
        assert compacted.compactions == compactions
    assert "## Summary" not in block(compacted)


async def test_a_request_that_overlapped_asks_for_no_second_one() -> None:
    """It was on its way when the narrative was written, and had not seen it."""
    desk, writer = Desk(), Writer(tells)
    late = await desk.compactor.compact(order(desk, talk(63), writer))
    await compact(desk, talk(62), preset(SUMMARISING), writer)
    await settled(desk)
    desk.compactor.begin_narrative(late)
    await settled(desk)
    assert late.need is not None
    assert len(writer.asked) == 1


async def test_a_transcript_of_very_much_is_bearable() -> None:
    """The more messages, the less of each: what is told again from the beginning costs no fortune."""
    messages = [m | ({"content": "x " * 2_000} if m["role"] == "tool" else {}) for m in talk(300)]
    bounds = msgspec.structs.replace(BOUNDS, trigger_tokens=100_000, limit_tokens=900_000)
    compacted = await compact(Desk(), messages, preset(SUMMARISING), Writer(silence), bounds)
    assert compacted.need is not None
    assert sum(map(len, compacted.need.pieces())) < 400_000


@asynccontextmanager
async def two_desks(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[list[Desk]]:
    """Run two compactors on one store for a while."""
    desks = [Desk(), Desk()]
    place = RedisPlace(request.getfixturevalue("redis_url")) if kind == "redis" else None
    for desk in desks:
        store: Store = desks[0].store if place is None else place.store(StoreOptions(), time.time)
        await store.open()
        desk.compactor = Compactor(store, b"s" * 32, COUNTER, StoreOptions())
    try:
        yield desks
    finally:
        for desk in desks:
            await desk.compactor.close()
            await desk.compactor.sessions.store.close()
        if place is not None:
            place.discard()


KINDS = pytest.mark.parametrize("kind", ["memory", pytest.param("redis", marks=pytest.mark.redis)])
PATIENT = msgspec.structs.replace(SUMMARISING, wait_seconds=20.0)


async def asked(*writers: Writer) -> list[object]:
    """Return all that was asked of anybody."""
    return [question for writer in writers for question in writer.asked]


async def noted(desk: Desk) -> None:
    """Wait until others find what a gateway has noted."""
    await desk.compactor.sessions.store.stats()


class Slow(Writer):
    """Tells its story when it is set free."""

    def __init__(self) -> None:
        super().__init__(self._tell)
        self.free = asyncio.Event()

    async def _tell(self) -> UpstreamResponse:
        await self.free.wait()
        return said(STORY)


@KINDS
async def test_several_gateways_ask_for_one(kind: str, request: pytest.FixtureRequest) -> None:
    """Of those that answer requests of one conversation the first asks; the others ask nobody, then or later."""
    slow, other = Slow(), Writer(tells)
    async with two_desks(kind, request) as desks:
        await compact(desks[0], talk(62), preset(SUMMARISING), slow)
        await until(lambda: asked(slow), bool)
        await noted(desks[0])
        late = await compact(desks[1], talk(63), preset(SUMMARISING), other)
        await settled(desks[1])
        assert other.asked == []
        slow.free.set()
        await settled(desks[0])
        desks[1].compactor.begin_narrative(late)  # which has not seen it
        await settled(desks[1])
        assert late.need is not None
        assert len(await asked(slow, other)) == 1
        assert [n.text for n in await ledger_of(desks[1], late)] == [STORY]
        compacted = await compact(desks[1], talk(75), preset(SUMMARISING), other)
        assert STORY in block(compacted)


@KINDS
async def test_a_request_at_the_limit_waits_for_another_gateway(kind: str, request: pytest.FixtureRequest) -> None:
    """What that writes is used; nobody is asked twice."""
    slow, other = Slow(), Writer(tells)
    async with two_desks(kind, request) as desks:
        await compact(desks[0], talk(62), preset(SUMMARISING), slow)
        await until(lambda: asked(slow), bool)
        await noted(desks[0])
        waiting = asyncio.ensure_future(compact(desks[1], talk(70), preset(PATIENT), other, TIGHT))
        await asyncio.sleep(0.3)  # long after it has begun to wait
        assert not waiting.done()
        slow.free.set()
        assert STORY in block(await waiting)
        assert len(await asked(slow, other)) == 1


@KINDS
async def test_two_requests_at_the_limit_of_two_gateways_ask_once(kind: str, request: pytest.FixtureRequest) -> None:
    """The one that got no claim goes on with the compaction that the other has made."""
    writers = [Writer(tells), Writer(tells)]
    async with two_desks(kind, request) as desks:
        calls = (compact(desk, talk(60), preset(PATIENT), w, TIGHT) for desk, w in zip(desks, writers, strict=True))
        one, other = await asyncio.gather(*calls)
        assert STORY in block(one)
        assert one.body == other.body
        assert len(await asked(*writers)) == 1


async def test_after_another_gateway_has_failed_a_request_at_the_limit_asks_itself() -> None:
    """It does not wait for what nobody writes."""
    desk, writer = Desk(), Writer(tells)
    known = await desk.compactor.compact(order(desk, talk(62), writer))
    name = f"summary|{known.ledger.id}"
    held = await desk.store.claim("t", name, 60.0)
    assert held is not None
    waiting = asyncio.ensure_future(compact(desk, talk(70), preset(PATIENT), writer, TIGHT))
    await asyncio.sleep(0.3)  # long after it has begun to wait
    assert not waiting.done()
    assert writer.asked == []
    await desk.store.release("t", name, held)
    assert STORY in block(await waiting)
    assert len(writer.asked) == 1


async def test_a_request_at_the_limit_does_not_wait_for_ever() -> None:
    """Where another gateway takes too long the block goes without a narrative."""
    desk, writer = Desk(), Writer(tells)
    known = await desk.compactor.compact(order(desk, talk(62), writer))
    await desk.store.claim("t", f"summary|{known.ledger.id}", 60.0)
    compacted = await compact(desk, talk(70), preset(SUMMARISING), writer, TIGHT)
    assert compacted.compactions == 1
    assert STORY not in block(compacted)
    assert writer.asked == []


async def test_without_claims_everybody_asks() -> None:
    """A store that cannot tell who is at it keeps nobody from asking: two summaries are better than none."""

    class Broken(Troubled):
        """A store without locks."""

        async def claim(self, tenant: str, name: str, seconds: float) -> int | None:
            """Fail."""
            raise Unavailable("gone")

    desk, writer = Desk(Broken(StoreOptions(), time.time)), Writer(tells)
    compacted = await compact(desk, talk(62), preset(SUMMARISING), writer)
    await settled(desk)
    assert len(writer.asked) == 1
    assert [n.text for n in await ledger_of(desk, compacted)] == [STORY]


async def test_closing_ends_what_is_being_written() -> None:
    """And nothing is written into the ledger any more."""
    desk = Desk()
    compacted = await compact(desk, talk(62), preset(SUMMARISING), Writer(silence))
    await asyncio.sleep(0)
    await desk.compactor.close()
    assert await ledger_of(desk, compacted) == []
