"""One request from start to end, over a scripted transport."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from policies.offload_results import OffloadResults
from proxy.access import Provider
from proxy.counting import Counter
from proxy.errors import Unavailable
from proxy.exchange import Exchange
from proxy.gateway import CompactingGateway, Parts
from proxy.headers import Headers
from proxy.presets import Preset, built_in
from proxy.settings import Defaults, Settings
from proxy.store.base import Mark, PageRequest, StoreOptions, Tip
from proxy.store.memory import MemoryStore
from proxy.target import Reach, make_target
from proxy.upstream import Transport
from tests.core.conversations import TOOLS
from tests.core.test_plan import BIG, asked

pytestmark = pytest.mark.anyio
COUNTER = Counter()
SMALL = Preset(name="small", rounds=2, policies=(OffloadResults(over_tokens=500),))
Body = dict[str, Any]
Reply = httpx.Response | Exception | Callable[[Body], httpx.Response]


class Answer:
    """Collects what the client gets."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.started = self.finished = False

    async def start(self, status: int, headers: Headers) -> None:
        """Take status and headers."""
        self.status, self.started = status, True
        self.headers = {name.decode().lower(): value.decode() for name, value in headers}

    async def send(self, data: bytes) -> None:
        """Take a part."""
        self.body += data

    async def finish(self, data: bytes = b"") -> None:
        """Take the last part."""
        self.body += data
        self.finished = True

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class FailingStore(MemoryStore):
    """A store that cannot be reached when it is told so."""

    is_down = False
    appends_left = 1000

    async def append_ledger(
        self, tenant: str, ledger: str, at: int, entries: Sequence[bytes], marks: Sequence[Mark]
    ) -> int:
        """Append, as often as is allowed."""
        if not self.appends_left:
            raise Unavailable("the store is down")
        self.appends_left -= 1
        return await super().append_ledger(tenant, ledger, at, entries, marks)

    async def find_tips(self, tenant: str, keys: Sequence[bytes]) -> list[Tip]:
        """Fail, or look up."""
        if self.is_down:
            raise Unavailable("the store is down")
        return await super().find_tips(tenant, keys)


class Place:
    """A gateway on a scripted upstream."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.sent: list[httpx.Request] = []
        options = StoreOptions()
        self.store = FailingStore(options, time.time)
        self.settings = Settings(presets=built_in() | {"small": SMALL}, defaults=Defaults(preset="small"))
        provider = Provider(make_target("http://up.test/v1", Reach(), {}))
        parts = Parts(
            settings=lambda: self.settings,
            provider=lambda _: provider,
            store=self.store,
            store_options=options,
            secret=b"s" * 32,
            transport=Transport(httpx.MockTransport(self._reply)),
            questions=Transport(httpx.MockTransport(lambda _: httpx.Response(404))),
            counter=COUNTER,
        )
        self.gateway = CompactingGateway(parts)

    async def _reply(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.sent.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, httpx.Response) else reply(json.loads(request.content))

    async def ask(self, body: bytes | Body, **headers: str) -> Answer:
        """Send a request with these headers."""
        raw = body if isinstance(body, bytes) else json.dumps({"model": "m", **body}).encode()
        given = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        exchange = Exchange(
            method="POST",
            path="/v1/chat/completions",
            raw_query=b"",
            headers=[(b"authorization", b"Bearer sk-1"), *given],
            peer="127.0.0.1",
            body=raw,
        )
        answer = Answer()
        await self.gateway.handle(exchange, answer)
        return answer

    @property
    def bodies(self) -> list[Body]:
        """What the upstream got."""
        return [json.loads(request.content) for request in self.sent]


def says(text: str | None, *calls: Body, **usage: int) -> httpx.Response:
    """A whole answer."""
    message = {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return httpx.Response(200, json={"id": "c", "choices": [choice], "usage": usage})


def reads(name: str = "read_offloaded", **arguments: object) -> Callable[[Body], httpx.Response]:
    """An answer that reads the last ref of its request."""

    def reply(body: Body) -> httpx.Response:
        text = json.dumps(body["messages"])
        ref = "off_" + text.rsplit("off_", 1)[1][:26]
        call = {"name": name, "arguments": json.dumps({"ref": ref, **arguments})}
        return says(None, {"id": "h", "type": "function", "function": call})

    return reply


WITH_RESULT: Body = {"messages": asked(), "tools": TOOLS}


async def test_a_small_request_differs_only_by_the_tool() -> None:
    """Untouched is identical, and the answer comes back byte for byte."""
    place = Place(says("hi"))
    raw = b'{ "model":"m", "messages":[{"role":"user","content":"\\u00e9","n":1.0}],"tools":[]}'
    answer = await place.ask(raw)
    assert place.sent[0].content == raw
    assert answer.json["choices"][0]["message"]["content"] == "hi"
    assert answer.headers["x-ullage-compaction"] == "none"
    assert answer.headers["x-ullage-session"].startswith("ses_")


async def test_a_read_is_answered_here() -> None:
    """The client sees one answer; the upstream saw the call and the page, and sees them again next time."""
    place = Place(reads(limit=2), says("done"), says("next"))
    answer = await place.ask(WITH_RESULT)
    assert answer.json["choices"][0]["message"] == {"role": "assistant", "content": "done"}
    assert answer.headers["x-ullage-compaction"] == "applied; edits=1; new=1; compactions=0"
    page = place.bodies[1]["messages"][-1]["content"]
    assert page.startswith("@@ rows 1-2 of 300")
    longer = [*asked(), {"role": "assistant", "content": "done"}, {"role": "user", "content": "go on"}]
    await place.ask({**WITH_RESULT, "messages": longer})
    assert place.bodies[2]["messages"][: len(place.bodies[1]["messages"])] == place.bodies[1]["messages"]
    (session,) = (await place.store.list_sessions(None, PageRequest())).data
    assert session.reads == 1


async def test_a_hidden_turn_that_cannot_be_stored_costs_no_answer() -> None:
    """Without the store the client is still served; only the replay is lost."""
    place = Place(reads(), says("done"))
    place.store.appends_left = 1
    assert (await place.ask(WITH_RESULT)).json["choices"][0]["message"]["content"] == "done"
    assert place.store.appends_left == 0


async def test_rounds_are_bounded() -> None:
    """After the last round the tool is withdrawn, and a model that insists gets no further."""
    place = Place(reads(), reads(), says("so be it"))
    answer = await place.ask(WITH_RESULT)
    assert answer.json["choices"][0]["message"]["content"] == "so be it"
    names = [[t["function"]["name"] for t in body.get("tools", [])] for body in place.bodies]
    assert names == [["f", "read_offloaded"], ["f", "read_offloaded"], ["f"]]


def writes(edit: Callable[[str], str] = str) -> Callable[[Body], httpx.Response]:
    """An answer that writes the stub of its request, edited, into a file."""

    def reply(body: Body) -> httpx.Response:
        arguments = json.dumps({"text": edit(body["messages"][2]["content"])})
        return says(None, {"id": "w", "type": "function", "function": {"name": "f", "arguments": arguments}})

    return reply


async def test_a_copied_stub_never_reaches_the_clients_tool() -> None:
    """A whole one becomes its text, a part of one is told to the model; under shadow, which sends none, it is text."""
    place = Place(writes(), writes(lambda stub: stub[:-1]), says("sorry"))
    whole = await place.ask(WITH_RESULT)
    (made,) = whole.json["choices"][0]["message"]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"text": BIG}
    part = await place.ask(WITH_RESULT)
    assert part.json["choices"][0]["message"] == {"role": "assistant", "content": "sorry"}
    assert "read_offloaded(ref=" in place.bodies[2]["messages"][-1]["content"]
    stub = place.bodies[0]["messages"][2]["content"]
    place.replies.append(writes(lambda _: stub))
    shadowed = await place.ask(WITH_RESULT, x_ullage_policy="shadow")
    (made,) = shadowed.json["choices"][0]["message"]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"text": stub}


REFUSAL = httpx.Response(400, json={"error": {"message": "m does not support tools"}})


async def test_an_upstream_without_tools_is_asked_once_more_and_remembered() -> None:
    """The refused request is sent as the client made it, and later ones are from the start."""
    body: Body = {"messages": [{"role": "user", "content": "notes"}, *asked()[1:]]}
    place = Place(REFUSAL, says("fine"), says("again"))
    answer = await place.ask(body)
    assert answer.json["choices"][0]["message"]["content"] == "fine"
    assert answer.headers["x-ullage-compaction"] == "bypassed; reason=tool_refused"
    await place.ask({"messages": [*body["messages"], {"role": "assistant", "content": "fine"}]})
    assert "tools" in place.bodies[0]
    assert place.bodies[1]["messages"] == body["messages"]
    assert "tools" not in place.bodies[2]
    assert BIG in place.bodies[2]["messages"][2]["content"]


@pytest.mark.parametrize(
    "text", ["messages with role 'tool' must follow tool_calls", "tool_call_id is unknown", "slow"]
)
async def test_other_refusals_are_the_clients(text: str) -> None:
    """A broken history or anything else is told as it came, without a second try."""
    place = Place(httpx.Response(400, json={"error": {"message": text}}, headers={"x-request-id": "r"}))
    answer = await place.ask(WITH_RESULT)
    assert (answer.status, answer.json, answer.headers["x-request-id"]) == (400, {"error": {"message": text}}, "r")


async def test_a_second_refusal_is_relayed() -> None:
    """When the client's own tools are refused as well, the upstream's answer is told and nothing is learnt."""
    place = Place(REFUSAL, REFUSAL, says("ok"))
    assert (await place.ask(WITH_RESULT)).status == 400
    await place.ask(WITH_RESULT)
    assert len(place.bodies[2]["tools"]) == 2


async def test_a_lost_store_bypasses() -> None:
    """Whatever breaks before the upstream call, the client's own body goes up and the answer says so."""
    place = Place(says("hi"))
    place.store.is_down = True
    answer = await place.ask(WITH_RESULT)
    assert place.bodies[0] == {"model": "m", **WITH_RESULT}
    assert answer.headers["x-ullage-compaction"] == "bypassed; reason=store_unavailable"
    assert "x-ullage-session" not in answer.headers


async def test_our_own_faults_bypass_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours must not cost an answer."""
    place = Place(says("hi"))
    monkeypatch.setattr(place.gateway.compactor, "compact", lambda _: 1 / 0)
    answer = await place.ask(WITH_RESULT)
    assert answer.headers["x-ullage-compaction"] == "bypassed; reason=internal"
    assert place.bodies[0]["messages"] == asked()


async def test_bodies_that_are_no_envelope_go_up_as_they_are() -> None:
    """What cannot be read is the upstream's to judge."""
    place = Place(httpx.Response(400, content=b"no JSON"))
    answer = await place.ask(b"nonsense")
    assert (answer.status, answer.body, place.sent[0].content) == (400, b"no JSON", b"nonsense")
    assert answer.headers["x-ullage-compaction"] == "bypassed; reason=body"


async def test_off_is_a_plain_relay() -> None:
    """Nothing is decided, stored or named."""
    place = Place(says("hi"))
    answer = await place.ask(WITH_RESULT, x_ullage_policy="off", accept_encoding="br")
    assert place.bodies[0] == {"model": "m", **WITH_RESULT}
    assert place.sent[0].headers["accept-encoding"] == "br"
    assert "x-ullage-session" not in answer.headers
    assert (await place.store.stats()).sessions == 0


async def test_an_unknown_preset_is_refused() -> None:
    """The answer names the presets that exist; the upstream is not asked."""
    place = Place()
    answer = await place.ask(WITH_RESULT, x_ullage_policy="nonsense")
    assert answer.status == 400
    assert "balanced" in answer.json["error"]["message"]
    assert place.sent == []


async def test_an_upstream_that_is_down_is_told() -> None:
    """No answer is an error of ours, in a shape that SDKs read."""
    place = Place(httpx.ConnectError("refused"))
    answer = await place.ask({"messages": []})
    assert answer.status == 502
    assert answer.json["error"]["type"] == "ullage_error"


async def test_shadow_sends_the_clients_body_and_tells() -> None:
    """A team sees what would be saved, and nothing changes for the model."""
    place = Place(says("hi"))
    big = asked("\n".join(f"line {i:06}" for i in range(9000)))
    answer = await place.ask({"messages": big, "tools": TOOLS}, x_ullage_policy="shadow")
    assert place.bodies[0] == {"model": "m", "messages": big, "tools": TOOLS}
    assert answer.headers["x-ullage-compaction"] == "shadow; edits=1; new=1; compactions=0"
