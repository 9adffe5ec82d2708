"""When the reading tool can be declared, how it is, and how hidden turns come back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.envelope import Patch, open_envelope
from proxy.core.ledger import HiddenTurn
from proxy.core.wire.chat_tools import ChatTools, Situation, choose_name, look_at

TOOL = {"type": "function", "function": {"name": "f"}}
TOOLS = ChatTools()


def situation(*, vetted: bool = False, **fields: Any) -> Situation:
    """What a body with these fields says."""
    body = json.dumps({"model": "m", "messages": [], **fields}).encode()
    return look_at(open_envelope(body), takes_tools_with_json=vetted)


@pytest.mark.parametrize(
    ("fields", "obstacle"),
    [
        ({}, None),
        ({"n": 1}, None),
        ({"n": None, "functions": None, "prediction": None}, None),
        ({"n": 2}, "choices"),
        ({"functions": []}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"prediction": {"type": "content"}}, "prediction"),
        ({"audio": {"format": "mp3"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "audio"),
        ({"modalities": ["text"]}, None),
        ({"web_search_options": {}}, "web_search_options"),
        ({"model": "gpt-4o-search-preview"}, "search_model"),
        ({"tools": [TOOL] * 127}, None),
        ({"tools": [TOOL] * 128}, "tool_limit"),
        ({"tools": {"odd": 1}}, "tools"),
        ({"model": "gpt-5.6-x"}, "reasoning_model"),
        ({"model": "openai/gpt-6"}, "reasoning_model"),
        ({"model": "gpt-6", "reasoning_effort": "none"}, None),
        ({"model": "gpt-6", "tools": [TOOL]}, None),
        ({"model": "gpt-4o"}, None),
        ({"response_format": {"type": "json_object"}}, "json_mode"),
        ({"response_format": {"type": "json_schema"}, "tools": [TOOL]}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": 7, "n": "x"}, "choices"),
    ],
)
def test_where_the_tool_would_break_the_request(fields: dict[str, Any], obstacle: str | None) -> None:
    """Each kind of request that a provider refuses with tools is known, and no other is held back."""
    assert situation(**fields).obstacle == obstacle


def test_vetted_upstreams_take_tools_with_json() -> None:
    """Where both together are known to work, JSON answers are no obstacle."""
    assert situation(vetted=True, response_format={"type": "json_object"}).obstacle is None
    assert situation(vetted=True, response_format={"type": "json_object"}).is_json


CHOICES = [
    (None, True),
    ("auto", True),
    ("required", True),
    ("none", False),
    ("any", False),
    (7, False),
    ({"type": "function", "function": {"name": "f"}}, False),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, True),
    ({"type": "allowed_tools", "tools": "all"}, False),
]


@pytest.mark.parametrize(("choice", "free"), CHOICES)
def test_whether_the_model_may_call_it(choice: object, *, free: bool) -> None:
    """Forced, forbidden and unknown choices do not count on a read."""
    assert situation(tool_choice=choice).can_be_called == free


def test_names_step_aside_and_stay() -> None:
    """The client's own tool of that name wins; a name once used is kept while it is free."""
    odd = [TOOL, {"type": "custom", "custom": {"name": "read_offloaded"}}, {"name": "flat"}, {"type": "x"}, 7]
    taken = situation(tools=odd).names
    assert taken == {"f", "read_offloaded", "flat"}
    assert choose_name(taken, None) == choose_name(taken, "read_offloaded") == "read_offloaded_2"
    assert choose_name(frozenset({"read_offloaded", "read_offloaded_2"}), None) == "read_offloaded_3"
    assert choose_name(frozenset(), "read_offloaded_2") == "read_offloaded_2"


def declared(**fields: Any) -> dict[str, Any]:
    """A body after the tool was declared in it."""
    envelope = open_envelope(json.dumps({"messages": [], **fields}).encode())
    patch = Patch(envelope)
    TOOLS.declare(patch, "read_offloaded")
    body: dict[str, Any] = json.loads(patch.apply())
    return body


def test_the_declaration_is_last() -> None:
    """The client's tools keep their place, and a choice of a subset is widened by one."""
    allowed = {"type": "allowed_tools", "x": 1, "allowed_tools": {"mode": "required", "tools": [TOOL]}}
    body = declared(tools=[TOOL], tool_choice=allowed)
    assert [t["function"]["name"] for t in body["tools"]] == ["f", "read_offloaded"]
    mine = {"type": "function", "function": {"name": "read_offloaded"}}
    assert body["tool_choice"] == {**allowed, "allowed_tools": {"mode": "required", "tools": [TOOL, mine]}}
    assert declared(tool_choice="auto")["tool_choice"] == "auto"


HIDDEN_CALL = {"id": "h", "type": "function", "function": {"name": "read_offloaded", "arguments": "{}"}}
CLIENT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{ }"}}


def grafted(visible: dict[str, Any], **turn: Any) -> list[dict[str, Any]]:
    """The messages that stand for a visible one."""
    made = HiddenTurn(**{"rounds": (), "visible": b"{}", **turn})
    return [json.loads(m) for m in TOOLS.graft(json.dumps(visible).encode(), made)]


def test_a_mixed_turn_gets_its_calls_back_in_place() -> None:
    """Our call returns to its position and its answer follows at once, before the client's."""
    visible = {"role": "assistant", "content": "t", "tool_calls": [CLIENT_CALL]}
    answer = {"role": "tool", "tool_call_id": "h", "content": "page"}
    for position, order in ((0, ["h", "c"]), (1, ["c", "h"])):
        calls = ((position, json.dumps(HIDDEN_CALL).encode()),)
        message, after = grafted(visible, calls=calls, answers=(json.dumps(answer).encode(),))
        assert [c["id"] for c in message["tool_calls"]] == order
        assert after == answer


SHOWN = [
    ({"content": "look. done"}, {"content": "done"}),
    ({"content": "other"}, {"content": "other"}),
    ({"content": "look. "}, {"content": ""}),
    ({"content": "look. ", "tool_calls": [CLIENT_CALL]}, {"content": None, "tool_calls": [CLIENT_CALL]}),
    (
        {"content": [{"type": "text", "text": "look. done"}, {"type": "x"}]},
        {"content": [{"type": "text", "text": "done"}, {"type": "x"}]},
    ),
    ({"content": None}, {"content": None}),
]


@pytest.mark.parametrize(("visible", "rest"), SHOWN)
def test_what_hidden_rounds_had_shown_is_taken_off(visible: dict[str, Any], rest: dict[str, Any]) -> None:
    """The text of hidden rounds is theirs again; where the client changed it, its own words stay."""
    (message,) = grafted({"role": "assistant", **visible}, shown={"content": "look. "})
    assert message == {"role": "assistant", **rest}


def test_reasoning_is_taken_off_alike() -> None:
    """Every string field that hidden rounds began is split the same way."""
    turn = {"rounds": (b'{"role":"assistant","reasoning":"r1"}',), "shown": {"reasoning": "r1"}}
    first, last = grafted({"role": "assistant", "content": "ok", "reasoning": "r1r2"}, **turn)
    assert (first["reasoning"], last["reasoning"]) == ("r1", "r2")
