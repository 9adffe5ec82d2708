"""The model is offered a tool with which it asks for a compaction itself."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from policies import discover
from policies.offer_compaction import OfferCompaction
from policies.summarise_history import SummariseHistory
from proxy.core.declaration import OFFER_NAME, OFFER_TOKENS, offer_declaration
from proxy.counting import Counter
from proxy.presets import Preset, built_in
from proxy.units import parse_size
from tests.core.test_policy import candidate, view
from tests.test_breaking import talk
from tests.test_gateway import Body, Place, says

pytestmark = pytest.mark.anyio
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
OFFERING = Preset(
    name="offering",
    policies=(OfferCompaction(), SummariseHistory(strategy="mechanical", keep_steps=2)),
    trigger=parse_size(6_000),
    limit=parse_size("85%"),
    target=parse_size(2_000),
)


def asks(name: str = OFFER_NAME) -> Any:
    """An answer that calls the tool."""
    return says(None, {"id": "w", "type": "function", "function": {"name": name, "arguments": "{}"}})


def place(*replies: Any) -> Place:
    """A gateway whose preset offers the tool."""
    made = Place(*replies)
    made.settings = msgspec.structs.replace(made.settings, presets={**made.settings.presets, "offering": OFFERING})
    return made


async def ask(made: Place, steps: int, **fields: object) -> Any:
    """Send a talk of so many steps."""
    body: Body = {"messages": talk(steps), "tools": [TOOL], **fields}
    return await made.ask(body, x_ullage_policy="offering")


def names(body: Body) -> list[str]:
    """The tools that a request declares."""
    return [tool["function"]["name"] for tool in body["tools"]]


def test_it_is_in_no_built_in_preset() -> None:
    """It is found under its name, and has to be asked for; nothing leaves when it arrives."""
    assert discover()["offer_compaction"] is OfferCompaction
    assert not any(isinstance(p, OfferCompaction) for preset in built_in().values() for p in preset.policies)
    assert list(OfferCompaction().edits(view(candidate(1, 1_000_000)))) == []


def test_the_declaration_is_small() -> None:
    """It is in every request."""
    raw = offer_declaration(OFFER_NAME + "_2").decode()
    assert Counter().count(raw) <= OFFER_TOKENS
    assert json.loads(raw)["function"]["parameters"] == {"type": "object", "properties": {}}


async def test_a_model_asks_and_the_next_request_is_compacted() -> None:
    """The call is answered here, the client sees the answer behind it, and the history shrinks one turn later."""
    made = place(asks(), says("part one is done"), says("on"))
    answer = await ask(made, 60)
    assert answer.json["choices"][0]["message"] == {"role": "assistant", "content": "part one is done"}
    assert names(made.bodies[0]) == ["read", OFFER_NAME, "read_offloaded"]
    assert "compacted before your next turn" in made.bodies[1]["messages"][-1]["content"]
    later = await ask(made, 61)
    assert later.headers["x-ullage-compaction"].endswith("compactions=1")
    assert len(made.bodies[2]["messages"]) < 20


async def test_a_short_conversation_is_not_compacted() -> None:
    """Below half of the trigger the model is told so, and nothing is noted."""
    made = place(asks(), says("done"), says("on"))
    await ask(made, 10)
    assert "nothing is compacted" in made.bodies[1]["messages"][-1]["content"]
    messages = [*talk(10), {"role": "assistant", "content": "done"}, {"role": "user", "content": "go on"}]
    later = await ask(made, 11, messages=messages)
    assert later.headers["x-ullage-compaction"] == "none"
    before = made.bodies[1]["messages"]
    assert made.bodies[2]["messages"][: len(before)] == before, "the model remembers that it asked"


async def test_a_store_that_is_down_costs_no_answer() -> None:
    """The model is told, and goes on."""
    made = place(asks(), says("done"))
    made.store.appends_left = 0
    answer = await ask(made, 60)
    assert answer.json["choices"][0]["message"]["content"] == "done"
    assert "cannot be compacted now" in made.bodies[1]["messages"][-1]["content"]


async def test_a_tool_of_the_clients_of_that_name_stays_theirs() -> None:
    """Ours gets another name."""
    theirs = {"type": "function", "function": {"name": OFFER_NAME, "parameters": {}}}
    made = place(asks(OFFER_NAME + "_2"), asks())
    answer = await ask(made, 60, tools=[TOOL, theirs])
    assert names(made.bodies[0]) == ["read", OFFER_NAME, OFFER_NAME + "_2", "read_offloaded"]
    (call,) = answer.json["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == OFFER_NAME


async def test_an_allowed_subset_has_it_too() -> None:
    """Where the client names the tools that may be called, ours are added."""
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}
    made = place(says("hi"))
    await ask(made, 3, tool_choice=choice)
    allowed = made.bodies[0]["tool_choice"]["allowed_tools"]["tools"]
    assert [tool["function"]["name"] for tool in allowed] == ["read", OFFER_NAME, "read_offloaded"]


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": [TOOL] * 127}])
async def test_where_there_is_no_room_it_is_not_offered(fields: dict[str, Any]) -> None:
    """A client without tools, or with nearly too many."""
    tools = [{**tool, "function": {**tool["function"], "name": f"t{n}"}} for n, tool in enumerate(fields["tools"])]
    made = place(says("hi"))
    await ask(made, 3, tools=tools)
    assert OFFER_NAME not in names(made.bodies[0])
