"""The rounds that the client does not see: what goes upstream in them, what is answered, what is written down."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import msgspec
import pytest

from policies.offload_results import OffloadResults
from proxy.compaction import Compacted
from proxy.core.envelope import open_envelope
from proxy.core.intercept import ToolUse
from proxy.core.ledger import HiddenTurn
from proxy.errors import Unavailable
from proxy.experience import Experience
from proxy.hidden_rounds import HiddenRounds
from proxy.presets import Preset
from proxy.reader import Reader
from proxy.settings import Settings
from proxy.shortening import Shortener
from proxy.store.base import StoreOptions
from proxy.upstream import Transport, UpstreamResponse
from tests.core.conversations import TOOLS
from tests.core.test_plan import BIG, asked
from tests.test_compaction import COUNTER, Desk, Troubled, sent

pytestmark = pytest.mark.anyio
CALL = json.dumps({"role": "assistant", "content": None, "tool_calls": [{"id": "h", "reasoning": "kept"}]}).encode()
PAGE = json.dumps({"role": "tool", "tool_call_id": "h", "content": "@@ rows"}).encode()


class Forgetful(Troubled):
    """A store whose ledgers cannot be written any more when it is told so."""

    is_down = False

    async def append_ledger(self, *arguments: Any) -> int:
        """Fail, or write."""
        if self.is_down:
            raise Unavailable("gone")
        return await super().append_ledger(*arguments)


class Upstream:
    """Notes what is asked."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, body: bytes) -> UpstreamResponse:
        """Answer with nothing."""
        self.bodies.append(body)
        return UpstreamResponse(200, [], httpx.ByteStream(b"{}"))


class Place:
    """Hidden rounds of one compacted request."""

    def __init__(self, compacted: Compacted, desk: Desk) -> None:
        self.compacted = compacted
        self.desk = desk
        self.upstream = Upstream()
        reader = Reader(desk.store, desk.compactor.adapter, COUNTER)
        learnt = Experience(desk.compactor.sessions, COUNTER, Transport(httpx.MockTransport(self._tells_nothing)))
        shortener = Shortener(desk.compactor, learnt, "https://up.example", Settings)
        self.rounds = HiddenRounds(compacted, desk.compactor, reader, shortener, self.upstream)

    @staticmethod
    def _tells_nothing(_: httpx.Request) -> httpx.Response:
        return httpx.Response(404)

    @property
    def ref(self) -> str:
        """The ref of the one text that left."""
        (entry,) = self.compacted.plan.stubs.values()
        return entry.ref


async def place(desk: Desk | None = None, **fields: Any) -> Place:
    """A request with one text moved out."""
    desk = desk or Desk()
    return Place(await desk.compact(asked(), **fields), desk)


async def test_messages_are_appended_to_the_same_request() -> None:
    """The round is the request with the hidden messages behind its own, byte for byte: the prefix holds."""
    here = await place(temperature=0.5, stream=True)
    await here.rounds.open((CALL, PAGE), with_tool=True)
    (body,) = here.upstream.bodies
    assert body.replace(b"," + CALL + b"," + PAGE, b"") == here.compacted.body
    assert json.loads(body)["messages"][-2:] == [json.loads(CALL), json.loads(PAGE)]


async def test_rounds_without_messages_are_the_request_itself() -> None:
    """Nothing is added where there is nothing to add."""
    here = await place()
    await here.rounds.open((), with_tool=True)
    assert here.upstream.bodies == [here.compacted.body]


async def test_the_last_round_is_without_the_tool() -> None:
    """Its stubs promise no reading, the client's own tools and all other messages stay."""
    here = await place()
    await here.rounds.open((CALL, PAGE), with_tool=False)
    (body,) = here.upstream.bodies
    fields = json.loads(body)
    assert fields["tools"] == TOOLS
    assert "cannot be read in this request" in fields["messages"][2]["content"]
    assert "read_offloaded" not in json.dumps(fields)
    before = sent(here.compacted)
    assert [m for i, m in enumerate(fields["messages"][:-2]) if i != 2] == [m for i, m in enumerate(before) if i != 2]
    assert fields["messages"][-2:] == [json.loads(CALL), json.loads(PAGE)]


async def test_a_request_without_tools_of_its_own_has_none_in_the_last_round() -> None:
    """An empty list would be refused by some upstreams, so the field goes."""
    desk = Desk()
    envelope = open_envelope(json.dumps({"model": "m", "messages": asked()}).encode())
    here = Place(await desk.compactor.compact(msgspec.structs.replace(desk.order(asked()), envelope=envelope)), desk)
    await here.rounds.open((), with_tool=True)
    await here.rounds.open((), with_tool=False)
    declared, last = [json.loads(body) for body in here.upstream.bodies]
    assert [tool["function"]["name"] for tool in declared["tools"]] == ["read_offloaded"]
    assert "tools" not in last


async def test_reads_are_answered_in_their_order() -> None:
    """Several at once, also with one that is wrong between them: each has its own answer."""
    here = await place()
    calls = [{"ref": here.ref, "limit": 2}, {"ref": "off_" + "a" * 26}, {"ref": "index"}, {"ref": "history"}]
    uses = [ToolUse(f"h{i}", "read_offloaded", json.dumps(c)) for i, c in enumerate(calls)]
    page, unknown, index, history = await here.rounds.answer(tuple(uses))
    assert page.splitlines()[1:] == BIG.splitlines()[:2]
    assert "Nothing is stored" in unknown
    assert here.ref in index
    assert "--- message 1 · user ---" in history


async def test_answers_keep_to_the_presets_size() -> None:
    """What one read returns is bounded by `read_tokens`."""
    desk = Desk()
    preset = Preset(name="t", read_tokens=150, policies=(OffloadResults(over_tokens=500),))
    here = Place(await desk.compact(asked(), preset=preset), desk)
    (page,) = await here.rounds.answer((ToolUse("h", "read_offloaded", json.dumps({"ref": here.ref})),))
    assert 0 < COUNTER.count(page) <= 150


async def test_a_hidden_turn_is_put_back() -> None:
    """The next request has the hidden messages in front of the visible one, exactly."""
    here = await place()
    visible = {"role": "assistant", "content": "done"}
    await here.rounds.remember(HiddenTurn((CALL, PAGE), json.dumps(visible).encode()))
    later = await here.desk.compact([*asked(), visible, {"role": "user", "content": "on"}])
    assert sent(later)[len(asked()) : -2] == [json.loads(CALL), json.loads(PAGE)]
    assert CALL + b"," + PAGE in later.body


async def test_a_hidden_turn_reaches_a_ledger_that_has_grown() -> None:
    """Another request of the session wrote meanwhile: the turn is added to what the ledger has become."""
    here = await place()
    visible = {"role": "assistant", "content": "done"}
    other = {"role": "assistant", "content": "other"}
    await here.desk.compact([*asked(), other, *asked("other " + BIG)[1:]])
    await here.rounds.remember(HiddenTurn((CALL, PAGE), json.dumps(visible).encode()))
    later = await here.desk.compact([*asked(), visible])
    assert sent(later)[-3:] == [json.loads(CALL), json.loads(PAGE), visible]


async def test_a_store_that_fails_costs_no_turn() -> None:
    """The turn is not written down, and nothing is raised; the next request goes without it."""
    store = Forgetful(StoreOptions(), time.time)
    here = await place(Desk(store))
    store.is_down = True
    visible = {"role": "assistant", "content": "done"}
    await here.rounds.remember(HiddenTurn((CALL, PAGE), json.dumps(visible).encode()))
    store.is_down = False
    later = await here.desk.compact([*asked(), visible])
    assert sent(later)[-1] == visible
    assert CALL not in later.body
