"""From a body to a shorter body, on a store: what is durable before it leaves, and what happens when storing fails."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from policies.offload_results import OffloadResults
from proxy.compaction import Compacted, Compactor, Order, refusal_fact
from proxy.core.envelope import open_envelope
from proxy.core.record import decode_recorded
from proxy.counting import Counter
from proxy.errors import Full, Unavailable
from proxy.presets import Preset
from proxy.sessions import Identity
from proxy.store.base import Clock, Original, PageRequest, StoreOptions
from proxy.store.memory import MemoryStore
from tests.core.conversations import TOOLS
from tests.core.test_plan import BIG, asked

pytestmark = pytest.mark.anyio
PRESET = Preset(name="t", policies=(OffloadResults(over_tokens=500),))
COUNTER = Counter()


class Troubled(MemoryStore):
    """A store that fails where it is told to."""

    trouble: Exception | None = None

    async def put_originals(self, tenant: str, originals: Sequence[Original]) -> frozenset[str]:
        """Fail, or store."""
        if self.trouble is not None:
            raise self.trouble
        return await super().put_originals(tenant, originals)


class Desk:
    """A compactor on a store in memory."""

    def __init__(
        self, store: Troubled | None = None, options: StoreOptions | None = None, clock: Clock = time.time
    ) -> None:
        options = options or StoreOptions()
        self.store = store or Troubled(options, clock)
        self.compactor = Compactor(self.store, b"s" * 32, COUNTER, options, clock)

    async def compact(self, messages: list[dict[str, Any]], preset: Preset = PRESET, **fields: Any) -> Compacted:
        """Compact a body with these messages."""
        order = msgspec.structs.replace(self.order(messages, **fields), preset=preset)
        return await self.compactor.compact(order)

    @staticmethod
    def order(messages: list[dict[str, Any]], **fields: Any) -> Order:
        """An order of tenant `t`."""
        body = json.dumps({"model": "m", "messages": messages, "tools": TOOLS} | fields).encode()
        return Order(identity=Identity("t", None), envelope=open_envelope(body), preset=PRESET)


def sent(compacted: Compacted) -> list[dict[str, Any]]:
    """The messages that leave."""
    messages: list[dict[str, Any]] = json.loads(compacted.body)["messages"]
    return messages


async def test_the_original_is_stored_and_the_decision_written_before_the_body_is_returned() -> None:
    """When the body that holds a stub comes back, another process finds the bytes and the decision."""
    desk = Desk()
    compacted = await desk.compact(asked())
    (entry,) = compacted.plan.stubs.values()
    assert entry.ref in sent(compacted)[2]["content"]
    original = await desk.store.get_original("t", entry.ref)
    assert isinstance(original, Original)
    assert original.data == BIG.encode()
    again = await Desk(desk.store).compact([*asked(), {"role": "assistant", "content": "a"}])
    assert again.plan.fresh == ()
    assert sent(again)[:4] == sent(compacted)


@pytest.mark.parametrize("trouble", [Full("the quota is used up"), Full("the disk is full")])
async def test_a_full_store_stops_offloading_not_requests(trouble: Exception) -> None:
    """Without room for the original its text is sent and nothing refers to it; with room texts are moved again."""
    desk = Desk()
    desk.store.trouble = trouble
    compacted = await desk.compact(asked())
    assert sent(compacted) == asked()
    desk.store.trouble = None
    longer = [*asked(), {"role": "assistant", "content": "a"}, *asked("other " + BIG)]
    assert sent(await desk.compact(longer))[2] == longer[2], "sent raw once, raw for good"
    assert sent(await desk.compact(longer))[7] != longer[7]


async def test_a_lost_store_is_told() -> None:
    """Whatever the store cannot do now is raised, so that the client's own body is sent."""
    desk = Desk()
    desk.store.trouble = Unavailable("gone")
    with pytest.raises(Unavailable):
        await desk.compact(asked())


async def test_an_erased_text_stays_in_the_request() -> None:
    """What was erased on purpose is not stored again from a new conversation with the same opening."""
    desk = Desk()
    (entry,) = (await desk.compact(asked())).plan.stubs.values()
    await desk.store.erase_original("t", entry.ref)
    await desk.store.delete_session("t", (await desk.compact(asked())).ledger.id)
    fresh = Desk(desk.store)
    assert sent(await fresh.compact(asked())) == asked()


async def test_two_at_once_agree() -> None:
    """The same request on two replicas at once gives one session and equal bytes."""
    one = Desk()
    two = Desk(one.store)
    first, second = await one.compact(asked()), await two.compact(asked())
    assert (first.body, first.ledger.id) == (second.body, second.ledger.id)


async def test_shadow_decides_and_sends_the_clients_body() -> None:
    """The plan is made, stored and reported, and the body is the client's own."""
    desk = Desk()
    compacted = await desk.compact(asked(), msgspec.structs.replace(PRESET, shadow=True))
    assert compacted.body is compacted.order.envelope.body
    assert len(compacted.plan.stubs) == 1
    assert (await desk.store.stats()).originals == 1


async def test_a_learnt_refusal_keeps_the_tool_away() -> None:
    """With the fact neither tool nor stub is sent, with JSON answers or without as it was learnt."""
    desk = Desk()
    fact = refusal_fact((await desk.compact(asked())).situation)
    order = msgspec.structs.replace(desk.order(asked()), facts=frozenset({fact}))
    compacted = await desk.compactor.compact(order)
    assert compacted.body is order.envelope.body
    json_order = msgspec.structs.replace(
        desk.order(asked(), response_format={"type": "json_object"}), facts=order.facts
    )
    assert (await desk.compactor.compact(json_order)).plan.reader is None
    json_fact = refusal_fact((await desk.compactor.compact(json_order)).situation)
    plain = msgspec.structs.replace(desk.order(asked()), facts=frozenset({json_fact}))
    assert (await desk.compactor.compact(plain)).plan.reader == "read_offloaded"


@pytest.mark.parametrize("record", [True, False])
async def test_the_record_holds_every_message_once(*, record: bool) -> None:
    """New messages are recorded as they were sent, with the refs of what left; without the setting nothing is."""
    desk = Desk(options=StoreOptions(record=record))
    compacted = await desk.compact(asked())
    longer = await desk.compact([*asked(), {"role": "assistant", "content": "a"}])
    rows = await desk.store.load_record("t", longer.ledger.id, 0, 100)
    assert [row.index for row in rows] == ([0, 1, 2, 3, 4] if record else [])
    if record:
        held = decode_recorded(rows[2].data)
        assert json.loads(held.raw) == sent(compacted)[2]
        assert [ref for _, ref in held.edits] == [e.ref for e in compacted.plan.stubs.values()]


async def test_sizes_and_statistics() -> None:
    """Received and sent are of this request alone; the session adds its requests up."""
    desk = Desk()
    compacted = await desk.compact(asked())
    tokens = COUNTER.count(BIG)
    assert tokens < compacted.received_tokens < tokens + 300
    assert compacted.sent_tokens < compacted.received_tokens / 2
    desk.compactor.note_reads(compacted, 2)
    (session,) = (await desk.store.list_sessions("t", PageRequest())).data
    assert (session.calls, session.reads, session.edits, session.originals) == (1, 2, 1, 1)
    assert (session.received_tokens, session.sent_tokens) == (compacted.received_tokens, compacted.sent_tokens)
    assert (session.model, session.preset, session.format, session.messages) == ("m", "t", "chat", 4)


@pytest.mark.parametrize("line", ["x", '  "name": "y",', "строка текста", "\t\ud800"])
async def test_escapes_of_json_are_no_tokens(line: str) -> None:
    """What the model reads has none, whether the text leaves or stays; they would make some texts thrice as long."""
    text = "\n".join(f"{line} {i}" for i in range(400))
    question = {"role": "user", "content": "\n" * 40 + "ж" * 400}
    compacted = await Desk().compact([question, *asked(text)[1:]])
    tokens = COUNTER.count(text) + 200
    assert tokens < compacted.received_tokens < tokens + 300
    assert 200 < compacted.sent_tokens < 200 + 600 + 120


async def test_stubs_name_the_tool_as_it_is_declared() -> None:
    """A client that comes to have a tool of that name would be called otherwise."""
    desk = Desk()
    first = await desk.compact(asked())
    tool = {"type": "function", "function": {"name": "read_offloaded", "parameters": {}}}
    later = await desk.compact(asked(), tools=[*TOOLS, tool])
    names = [tool["function"]["name"] for tool in json.loads(later.body)["tools"]]
    assert names[-2:] == ["read_offloaded", "read_offloaded_2"]
    assert "read_offloaded_2(ref=" in sent(later)[2]["content"]
    assert sent(await desk.compact(asked())) == sent(first)


async def test_rounds_that_are_used_up_drop_the_tool_and_its_promise() -> None:
    """The last round differs by the declaration and by what its stubs say of reading."""
    desk = Desk()
    compacted = await desk.compact(asked())
    last = json.loads(desk.compactor.without_tool(compacted))
    assert last["tools"] == TOOLS
    stub = last["messages"][2]["content"]
    assert "cannot be read in this request" in stub
    assert stub.splitlines()[:-1] == sent(compacted)[2]["content"].splitlines()[:-1]


async def test_a_lost_tip_does_not_bypass() -> None:
    """A process that died before its tip was written leaves a ledger that the next one takes over."""
    desk = Desk()
    first = await desk.compact(asked())
    emptied = Desk()
    entries = await desk.store.load_ledger("t", first.ledger.id)
    await emptied.store.append_ledger("t", first.ledger.id, 0, entries, ())
    assert sent(await emptied.compact(asked())) == sent(first)


async def test_copies_of_the_stubs_that_were_sent_are_looked_for() -> None:
    """The text comes from the request itself; with several choices, of which one could be spliced, none is."""
    desk = Desk()
    guard = desk.compactor.guard(compacted := await desk.compact(asked()))
    assert guard is not None
    (ref,) = guard.refs
    assert guard.stubs(ref)[0] == sent(compacted)[2]["content"]
    assert guard.original(ref) == BIG
    order = msgspec.structs.replace(desk.order(asked(), n=2), room_tokens=200)
    several = await desk.compactor.compact(order)
    assert several.plan.stubs
    assert desk.compactor.guard(several) is None
    assert desk.compactor.guard(await desk.compact(asked("small"))) is None
