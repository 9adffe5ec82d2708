"""What assistant messages hold besides text: reasoning stays or leaves whole, inputs of old calls become references."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.answer import Answer, Message
from tests.e2e.chat import assert_valid, assistant, large, result, system, user
from tests.e2e.compacting import (
    INPUT_CHARACTERS,
    Model,
    messages_of,
    new_chat,
    rows,
    turn,
)
from tests.e2e.gateway import Client
from tests.e2e.model import raw_messages, reads, refs, says
from tests.fakes.upstream import Received, Reply

pytestmark = pytest.mark.e2e


def sent_for(client: Client, model: Model, messages: list[Message], preset: str = "mechanical", **fields: Any) -> bytes:
    """Send a history and return what the upstream got for it."""
    chat = new_chat(client, *messages, preset=preset, **fields)
    got = client.post(chat.body(), chat.headers)
    assert got.status == 200, got.data
    return model.last


def raw_of(messages: list[Message]) -> list[bytes]:
    """Return messages as the client writes them."""
    return [json.dumps(message).encode() for message in messages]


def kept_of(body: bytes, messages: list[Message]) -> int:
    """Return how many messages at the end of a history were sent as they were."""
    pairs = zip(reversed(raw_messages(body)), reversed(raw_of(messages)), strict=False)
    return next((number for number, (sent, own) in enumerate(pairs) if sent != own), len(messages))


# -- reasoning (class P)

REASONING: dict[str, dict[str, Any]] = {
    "reasoning_content": {"reasoning_content": "I think"},
    "an empty one": {"reasoning_content": ""},
    "reasoning": {"reasoning": "I think"},
    "details": {
        "reasoning": "I think",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "c2ln", "id": "r", "format": "x", "index": 0}],
    },
    "thinking in parts": {
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "I think"}]},
            {"type": "text", "text": "so"},
        ]
    },
}


@pytest.mark.parametrize("fields", REASONING.values(), ids=REASONING)
def test_reasoning_is_kept_or_leaves_with_its_message(client: Client, model: Model, fields: dict[str, Any]) -> None:
    """Each assistant message that is sent is the client's own with all its fields; none is made by the gateway."""
    chat, counts = new_chat(client, preset="keep4"), set()
    for number in range(40):
        made = turn(number, 20)
        made[0] |= fields
        if number % 3 == 1:
            made[0]["tool_calls"][0]["function"]["arguments"] = json.dumps({"text": rows(f"in{number}", 50)})
        counts.add(chat.ask(*made).compaction.compactions)
        own = {m["tool_calls"][0]["id"]: m for m in chat.messages if m.get("tool_calls")}
        for message in messages_of(model.last):
            if message.get("tool_calls"):
                theirs = own[message["tool_calls"][0]["id"]]
                assert {**message, "tool_calls": 0} == {**theirs, "tool_calls": 0}
                assert message.keys() == theirs.keys()
    assert max(counts) >= 2


def test_signatures_of_calls_stay_where_inputs_leave(client: Client, model: Model) -> None:
    """A reference in the place of an input changes the arguments alone; what the call was signed with stays."""
    chat = new_chat(client, preset="inputs")
    for number in range(14):
        made = turn(number, 10)
        call = made[0]["tool_calls"][0]
        call["extra_content"] = {"google": {"thought_signature": f"c2ln{number}"}}
        call["function"]["arguments"] = json.dumps({"text": rows(f"in{number}", 60), "n": number})
        chat.ask(*made)
        signed = {
            made["id"]: made["extra_content"]["google"]["thought_signature"]
            for message in messages_of(model.last)
            for made in message.get("tool_calls") or []
        }
        assert signed == {ident: f"c2ln{ident[1:]}" for ident in signed}
    assert refs(model.last)


def test_reasoning_of_hidden_rounds_survives_a_compaction(client: Client, model: Model) -> None:
    """What the gateway puts back is complete, and goes away whole with the turn it belongs to."""
    chat = new_chat(client, preset="keep4")
    chat.add(assistant("t", ("a", "read_file", "{}")) | {"reasoning_content": "r1"}, result(large("alpha"), "a"))
    model.script += [says("", reads(), reasoning="r3"), says("seen", reasoning="r4")]
    chat.ask(user("go"))
    for number in range(40):
        made = turn(number, 20)
        made[0]["reasoning_content"] = f"r{number}"
        model.script.append(says("ok", reasoning="more"))
        chat.ask(*made)
        assert all("reasoning_content" in m for m in messages_of(model.last) if m["role"] == "assistant")
        assert_valid(messages_of(model.last))


# -- inputs of old calls (class U)

LONG = rows("code", 120)
INPUTS: dict[str, str] = {
    "a field": json.dumps({"path": "a.md", "content": LONG}),
    "nested": json.dumps({"edits": [{"old": LONG, "new": {"text": "x" + LONG}}, 1.50], "n": 1}),
    "a list": json.dumps([LONG, 1, None, "short"]),
    "a string": json.dumps(LONG),
    "escapes": '{"a":"' + 'é\\n\\u00e9\\"\\\\' * 400 + '","b":1.10,"c":1E3}',
    "unicode": json.dumps({"t": "日本語テキスト🎉" * 200}, ensure_ascii=False),
    "surrogates": '{"t":"' + "\\ud83d\\ude00 x" * 400 + '"}',
    "like a number": '{"t":"' + "1234567890" * 200 + '","big":12345678901234567890123}',
    "like JSON": json.dumps({"t": json.dumps({"inner": [LONG] * 2})}),
    "like a key": '{"a": "' + LONG.replace("\n", "\\n") + '" , "' + "k" * 900 + '" : 1}',
    "spaced": '{ "a" : "' + LONG.replace("\n", "\\n") + '" ,\n "a" : 2 }',
    "deep": '{"a":' + "[" * 50 + json.dumps(LONG) + "]" * 50 + "}",
}
UNTOUCHED: dict[str, str] = {
    "no JSON": "not json " * 400,
    "half JSON": '{"a":"' + "x" * 3000,
    "nothing": "",
    "null": "null",
    "a number": '{"k":' + "1" * 3000 + "}",
    "short": json.dumps({"a": "x" * (INPUT_CHARACTERS // 2)}),
    "many short": json.dumps({f"k{n}": "value" for n in range(300)}),
}


def _shape(value: Any) -> Any:
    """Return a value with all its texts taken out: keys, numbers, order and nesting stay."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return "" if isinstance(value, str) else value


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


def _with_input(arguments: str, name: str = "apply_patch", turns: int = 24) -> list[Message]:
    call = [assistant("I patch", ("p", name, arguments)), result("applied", "p")]
    return [system("s"), user("goal"), *call, *(m for n in range(turns) for m in turn(n, 14))]


def _arguments(sent: bytes, ident: str = "p") -> str | None:
    """Return the arguments of a call in a request; None where the call is no longer in it."""
    calls = [made for message in messages_of(sent) for made in message.get("tool_calls") or []]
    return next((str(made["function"]["arguments"]) for made in calls if made["id"] == ident), None)


@pytest.mark.parametrize("arguments", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("name", ["apply_patch", "read_file", "x" * 64])
def test_long_inputs_become_references(client: Client, model: Model, arguments: str, name: str) -> None:
    """Of any tool: the arguments stay JSON of the same shape, and each long text can be read back, exactly."""
    sent = sent_for(client, model, _with_input(arguments, name), preset="inputs")
    told = _arguments(sent)
    assert told is not None
    assert len(told) < len(arguments)
    before, after = json.loads(arguments), json.loads(told)
    assert _shape(before) == _shape(after)
    for own, now in zip(_leaves(before), _leaves(after), strict=True):
        if len(own) <= INPUT_CHARACTERS:
            assert now == own
            continue
        (ref,) = refs(now.encode())
        assert client.original(ref) == own.encode("utf-8", "surrogatepass")
        assert own[:40] not in now, "a whole reference, not a cut text"
    for number in ("1.10", "1E3", "1.50", "12345678901234567890123"):
        assert (number in arguments) == (number in told)


@pytest.mark.parametrize("arguments", UNTOUCHED.values(), ids=UNTOUCHED)
def test_other_inputs_stay_as_they_are(client: Client, model: Model, arguments: str) -> None:
    """What is no JSON, holds no long text or is short is sent as it came, byte for byte."""
    messages = _with_input(arguments)
    sent = sent_for(client, model, messages, preset="inputs")
    assert raw_of(messages)[2] in raw_messages(sent)


@pytest.mark.parametrize("at", ["newest", "open"])
def test_inputs_of_kept_steps_stay(client: Client, model: Model, at: str) -> None:
    """The newest steps, and a call that has no answer yet, are never cut."""
    messages = _with_input(INPUTS["a field"], turns=40)
    newest = [assistant(None, ("q", "write_file", INPUTS["nested"])), result("ok", "q")]
    messages += newest if at == "newest" else newest[:1]
    sent = sent_for(client, model, messages, preset="inputs")
    assert raw_messages(sent)[-1] == raw_of(messages)[-1]
    assert _arguments(sent, "q") == INPUTS["nested"]
    assert _arguments(sent) != INPUTS["a field"]


def test_an_input_that_left_is_read_back_by_the_model(client: Client, model: Model) -> None:
    """The model asks with the reference that stands in the call, and gets the text."""
    chat = new_chat(client, *_with_input(INPUTS["a field"]), preset="inputs")
    model.script += [says("", reads(limit=3, offset=50)), says("here")]
    got = chat.ask(user("show the exact patch"))
    assert got.message["content"] == "here"
    page = messages_of(model.last)[-1]["content"]
    assert page.splitlines()[1:] == LONG.splitlines()[49:52]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_copied_reference_becomes_the_text_again(client: Client, model: Model, stream: bool) -> None:
    """A model that copies what stands in an old call into a new one means the text: the client's tool gets that."""
    chat = new_chat(client, *_with_input(INPUTS["a field"]), preset="inputs", stream=stream)

    def copies(received: Received) -> Reply:
        told = json.loads(_arguments(received.body) or "{}")
        made = json.dumps({"path": "b.md", "content": told["content"]})
        return says("", ("w2", "write_file", made))(received)

    model.script.append(copies)
    got: Answer = chat.ask(user("now write the same text to b.md"))
    (made,) = got.message["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"path": "b.md", "content": LONG}
