"""A summary request forked on a live one keeps the prefix and asks one thing more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.envelope import open_envelope
from proxy.core.wire.chat_fork import LEAST_OUTPUT_TOKENS, fork

TOOL = {"type": "function", "function": {"name": "ls", "parameters": {}}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "List é and 😀."},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "ls", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "a\nb"},
]
QUESTION = 'Write "it" down.'


def forked(messages: list[Any] = MESSAGES, **fields: Any) -> dict[str, Any] | None:
    """Fork a request with these fields and decode the result."""
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    made = fork(open_envelope(body), QUESTION)
    return json.loads(made[0]) if made else None


def test_the_question_stands_behind_everything() -> None:
    """Model, tools and messages are as they were, and the answer is streamed, without calls."""
    assert forked(tools=[TOOL], temperature=0.5, user="u") == {
        "model": "m",
        "messages": [*MESSAGES, {"role": "user", "content": QUESTION}],
        "tools": [TOOL],
        "temperature": 0.5,
        "user": "u",
        "stream": True,
        "tool_choice": "none",
    }


def test_messages_keep_their_bytes() -> None:
    """The provider's cache holds what it saw: not one escape is written otherwise."""
    raw = rb'{"role": "user" ,"content":"caf\u00e9 \ud83d","x":1.0}'
    body = b'{"model":"m","messages":[ %b ,{"role":"assistant","content":"y"} ]}' % raw
    (made,) = fork(open_envelope(body), QUESTION)
    assert raw in made


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Go on.", f"Go on.\n\n{QUESTION}"),
        (
            [{"type": "text", "text": "Go on."}],
            [{"type": "text", "text": "Go on."}, {"type": "text", "text": QUESTION}],
        ),
        (None, QUESTION),
    ],
)
def test_where_the_user_spoke_last_there_is_a_second_form(content: object, expected: object) -> None:
    """First as a message of its own; some templates refuse two of them in a row, so it joins the last one then."""
    messages = [*MESSAGES, {"role": "user", "content": content}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    apart, joined = (json.loads(made)["messages"] for made in fork(open_envelope(body), QUESTION))
    assert apart == [*messages, {"role": "user", "content": QUESTION}]
    assert joined == [*MESSAGES, {"role": "user", "content": expected}]


def test_fields_about_the_clients_answer_go() -> None:
    """They are about another answer, or would keep it in the client's name."""
    fields = {"stop": ["\n"], "logprobs": True, "top_logprobs": 2, "n": 1, "store": True, "metadata": {"a": "b"}}
    made = forked(MESSAGES, **fields, parallel_tool_calls=False, response_format={"type": "text"})
    assert made is not None
    assert set(made) == {"model", "messages", "stream"}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
@pytest.mark.parametrize(("asked", "sent"), [(50, LEAST_OUTPUT_TOKENS), (9000, 9000), ("odd", "odd"), (True, True)])
def test_a_limit_leaves_room_for_the_record(name: str, asked: object, sent: object) -> None:
    """The field stays the one that the model takes."""
    made = forked(MESSAGES, **{name: asked})
    assert made is not None
    assert made[name] == sent


@pytest.mark.parametrize("options", [{"include_usage": False}, {"include_usage": True, "x": 1}])
def test_usage_is_asked_for_where_the_client_knows_the_field(options: object) -> None:
    """An upstream may refuse a field that it does not know."""
    made = forked(stream_options=options)
    assert made is not None
    assert made["stream_options"] == {"include_usage": True}
    assert "stream_options" not in (forked() or {})


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "ls"}}])
def test_calls_are_forbidden_unless_that_costs_the_cache(choice: object) -> None:
    """Claude's cached messages depend on the choice; everywhere else none is set."""
    assert (forked(tools=[TOOL], tool_choice=choice) or {})["tool_choice"] == "none"
    assert (forked(tools=[TOOL], tool_choice=choice, model="anthropic/claude-x") or {})["tool_choice"] == choice
    assert "tool_choice" not in (forked() or {})


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "a"}},
        {"prediction": {"type": "content"}},
        {"web_search_options": {}},
        {"functions": [{"name": "ls"}]},
    ],
)
def test_where_the_request_forbids_it_there_is_no_fork(fields: dict[str, object]) -> None:
    """The answer would have another shape, or be paid for twice; a transcript is told then."""
    assert forked(MESSAGES, **fields) is None
