"""Compactions as an upstream sees them: valid whatever was cut, in order, rare, and nothing is lost."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.e2e.answer import Message
from tests.e2e.chat import Chat, assert_valid, assistant, large, result, step, system, user
from tests.e2e.compacting import (
    BLOCK,
    KEPT_STEPS,
    LIMIT_TOKENS,
    WINDOW_TOKENS,
    Model,
    looked_at,
    messages_of,
    new_chat,
    rows,
    talk,
    text_of,
    texts_of,
    tokens_of,
    turn,
    users_of,
)
from tests.e2e.gateway import Client
from tests.e2e.model import raw_messages, reads, refs, says
from tests.e2e.requests import violations
from tests.fakes.upstream import answer

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


# -- pairs of calls and answers stay together (field reports, class A)


def _parallel(number: int) -> list[Message]:
    calls = [(f"p{number}{letter}", "search", "{}") for letter in "abc"]
    answers = [result(rows(f"{ident} ", 5), ident) for ident, _, _ in reversed(calls)]
    return [assistant("I look.", *calls), *answers, user(f"note {number}")]


def _one_id(number: int) -> list[Message]:
    return [assistant(None, ("call_0", "read_file", "{}")), result(rows(f"one{number}"), "call_0"), user(f"n {number}")]


def _unanswered(number: int) -> list[Message]:
    calls = [(f"u{number}a", "search", "{}"), (f"u{number}b", "search", "{}")]
    return [assistant(None, *calls), result(rows(f"un{number}"), calls[0][0]), user(f"n {number}")]


def _answered_twice(number: int) -> list[Message]:
    answers = [result(rows(f"tw{number}{part}", 5), f"t{number}") for part in "ab"]
    return [assistant(None, (f"t{number}", "search", "{}")), *answers, user(f"n {number}")]


def _orphan(number: int) -> list[Message]:
    return [assistant("so"), user(f"n {number}"), result(rows(f"or{number}"), f"gone{number}"), user(f"m {number}")]


def _alone(number: int) -> list[Message]:
    return turn(number)[:-1]


def _spoken(number: int) -> list[Message]:
    return [assistant(rows(f"sp{number}")), user(f"n {number}")]


def _chained(number: int) -> list[Message]:
    return [*turn(number, 4)[:-1], *turn(number + 100, 4)[:-1], assistant("found"), user(f"n {number}")]


VALID = {
    "a call each": turn,
    "parallel calls": _parallel,
    "one id for all": _one_id,
    "no user between": _alone,
    "text": _spoken,
    "chains": _chained,
}
BROKEN = {"unanswered calls": _unanswered, "two answers to one call": _answered_twice, "orphans": _orphan}
Turn = Callable[[int], list[Message]]


def _history(make: Turn, turns: int = 60) -> list[Message]:
    return [system("s"), user("goal"), *(message for number in range(turns) for message in make(number))]


@pytest.mark.parametrize("make", [*VALID.values(), *BROKEN.values()], ids=[*VALID, *BROKEN])
@pytest.mark.parametrize("steps", KEPT_STEPS)
def test_blocks_stay_whole(client: Client, model: Model, make: Turn, steps: int) -> None:
    """Whatever is kept: what the upstream would refuse in the request, it would have refused in the client's own."""
    messages = _history(make)
    chat = new_chat(client, *messages, preset=f"keep{steps}")
    client.post(chat.body(), chat.headers)
    sent, own = looked_at(model.last), looked_at(chat.body())
    assert BLOCK in text_of(model.last)
    assert len(violations(sent, own)) <= len(violations(own, own))
    kept = kept_of(model.last, messages)
    assert len(sent.messages) == 2 + kept, "the system message, the goal with its block, and the newest messages"
    first = messages[-kept]
    is_own_fault = messages[-kept - 1]["role"] == "user"
    assert first["role"] != "tool" or is_own_fault


@pytest.mark.parametrize("make", VALID.values(), ids=VALID)
def test_blocks_stay_whole_as_a_session_grows(client: Client, model: Model, make: Turn) -> None:
    """In each request, over several compactions, wherever these fall."""
    chat, compactions = new_chat(client), 0
    for number in range(90):
        compactions = chat.ask(*make(number)).compaction.compactions
        assert_valid(messages_of(model.last))
    assert compactions >= 2


@pytest.mark.parametrize("number", range(8))
def test_an_open_call_stays_with_its_answers(client: Client, model: Model, number: int) -> None:
    """The newest block is whole, be it answered in part only; so is the newest message of the user before it."""
    calls = [(f"o{at}", "search", "{}") for at in range(4)]
    running = [user("LAST: why is it red?"), assistant(None, *calls)]
    running += [result(rows(f"o{at}", 4), f"o{at}") for at in range(number % 5)]
    messages = [*_history(turn), assistant("done"), *running]
    sent = sent_for(client, model, messages, preset=f"keep{number // 5}")
    assert kept_of(sent, messages) >= len(running)


def test_a_history_that_begins_with_a_call(client: Client, model: Model) -> None:
    """The front was trimmed by the client: nothing kept begins with an answer."""
    messages = [m for m in _history(turn) if m["role"] != "system"][2:]
    for steps in KEPT_STEPS:
        sent = sent_for(client, model, messages[1:], preset=f"keep{steps}")
        assert_valid(messages_of(sent))
        assert messages_of(sent)[0]["role"] in ("user", "system")


def test_below_the_trigger_nothing_changes(client: Client, model: Model) -> None:
    """Also when the last answers are tools' and small: message for message the same bytes."""
    messages = [*talk(4), assistant(None, ("w1", "get_weather", "{}")), result("12C", "w1")]
    assert raw_messages(sent_for(client, model, messages)) == raw_of(messages)


def test_one_id_in_two_turns_gives_two_refs(client: Client, model: Model) -> None:
    """Answers are told apart by their place: each large one has its own stub, and both can be read."""
    calls = [assistant(None, ("call_0", "f", "{}")), result(large("alpha"), "call_0")]
    again = [assistant(None, ("call_0", "f", "{}")), result(large("beta"), "call_0")]
    sent = sent_for(client, model, [user("go"), *calls, *again, user("?")])
    one, two = refs(sent)
    assert client.original(one) == large("alpha").encode()
    assert client.original(two) == large("beta").encode()


def test_a_turn_with_calls_of_both_survives_compactions(client: Client, model: Model) -> None:
    """What the gateway read beside the client's own calls stays with them, and leaves with them."""
    chat = new_chat(client, preset="keep4")
    chat.ask(*turn(0)[:1], result(large("alpha"), "c0"), user("go"))
    for number in range(1, 50):
        ident = f"m{number}"
        if number % 6 == 1:
            model.script.append(says("both ", reads("history", ident=f"h{number}", limit=3), (ident, "search", "{}")))
        else:
            model.script.append(says("", (ident, "search", "{}")))
        chat.ask(user(f"note {number}"))
        got = chat.ask(result(rows(ident, 16), ident))
        assert_valid(messages_of(model.last))
    assert got.compaction.compactions >= 2


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_history_without_a_user(client: Client, model: Model, steps: int) -> None:
    """The block is a message of its own then, where the first one of the user would stand."""
    messages = [system("s"), *(m for number in range(60) for m in turn(number)[:-1])]
    sent = messages_of(sent_for(client, model, messages, preset=f"keep{steps}"))
    assert_valid(sent)
    assert [m["role"] for m in sent[:3]] == ["system", "user", "assistant"]
    assert texts_of(sent[1])[0].startswith(BLOCK)


LEGACY: dict[str, Any] = {
    "functions": [{"name": "f", "parameters": {"type": "object", "properties": {}}}],
    "tools": None,
}
MANY = [{"type": "function", "function": {"name": f"t{number}", "parameters": {}}} for number in range(128)]
UNREADABLE: dict[str, dict[str, Any]] = {
    "legacy functions": LEGACY,
    "several choices": {"n": 2},
    "a prediction": {"prediction": {"type": "content", "content": "x"}},
    "as many tools as may be": {"tools": MANY},
    "no calls allowed": {"tool_choice": "none"},
    "one call wanted": {"tool_choice": {"type": "function", "function": {"name": "search"}}},
    "an answer in JSON": {"response_format": {"type": "json_object"}},
}


@pytest.mark.parametrize("fields", UNREADABLE.values(), ids=UNREADABLE)
def test_where_the_tool_cannot_stand_a_full_window_is_no_dead_end(
    client: Client, model: Model, fields: dict[str, Any]
) -> None:
    """Nothing can be read back there, but more than the limit is sent of no request while the store works."""
    messages = _legacy(120) if "functions" in fields else talk(120)
    chat = new_chat(client, *messages, **fields)
    assert tokens_of(chat.body()) > LIMIT_TOKENS
    got = client.post(chat.body(), chat.headers)
    assert raw_messages(model.last)[-1] == raw_of(messages)[-1]
    assert tokens_of(model.last) <= LIMIT_TOKENS or got.compaction.reason == "over_limit"


@pytest.mark.parametrize("name", [name for name in UNREADABLE if name != "legacy functions"])
def test_a_compacted_session_stays_small_where_the_tool_cannot_stand(client: Client, model: Model, name: str) -> None:
    """A single request of another kind in a long session is no reason to send everything again."""
    chat = new_chat(client, *talk(64))
    chat.ask()
    chat.add(*turn(64))
    got = client.post(chat.body(**UNREADABLE[name]), chat.headers)
    assert got.status == 200
    assert tokens_of(model.last) <= LIMIT_TOKENS + (
        tokens_of(json.dumps({"tools": MANY}).encode()) if "many" in name else 0
    )
    assert all(f"note {number}" in text_of(model.last) for number in range(65))


def test_an_upstream_without_tools_is_no_dead_end(client: Client, model: Model) -> None:
    """A model that refuses every tool has a window all the same, and mostly a small one."""
    model.script.append(answer({"error": {"message": "small does not support tools"}}, 400))
    fields: dict[str, Any] = {"tools": None}
    client.post(new_chat(client, user("hello"), *step("alpha"), **fields).body(), {"x-ullage-policy": "mechanical"})
    chat = new_chat(client, **fields)
    chat.messages = [m for n in range(120) for m in (user(f"note {n}"), assistant(rows(f"r{n}")))] + [user("LAST")]
    chat.ask()
    assert "read_offloaded" not in model.last.decode()
    assert tokens_of(model.last) <= LIMIT_TOKENS


def _legacy(turns: int) -> list[Message]:
    out = [system("s"), user("goal")]
    for number in range(turns):
        call = {"name": "f", "arguments": "{}"}
        out += [
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "f", "content": rows(f"l{number}")},
            user(f"n {number}"),
        ]
    return out


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_legacy_calls_in_a_history_stay_with_their_answers(client: Client, model: Model, steps: int) -> None:
    """An old history with functions, sent on with tools: a function's answer never comes without its call."""
    messages = _legacy(60)
    sent = messages_of(sent_for(client, model, messages, preset=f"keep{steps}"))
    for before, after in pairwise(sent):
        assert ("function_call" in before) == (after["role"] == "function")


# -- roles and their order (class F)

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(b"x" * 3000).decode()}}


def _developer(text: str) -> Message:
    return {"role": "developer", "content": text}


@pytest.mark.parametrize("kind", [system, _developer])
@pytest.mark.parametrize("at", [0, 1, 2, 50, 120, -1])
def test_system_messages_stay(client: Client, model: Model, kind: Callable[[str], Message], at: int) -> None:
    """Wherever they are, they are sent as they came, in their order, and none is added."""
    messages = talk(64)
    places = [at, at] if at >= 0 else [len(messages)] * 2
    for number, place in enumerate(places):
        messages.insert(place + number, kind(f"switch {number}: the user speaks German now"))
    sent = sent_for(client, model, messages)
    own = [raw for raw, m in zip(raw_of(messages), messages, strict=True) if m["role"] in ("system", "developer")]
    assert [r for r in raw_messages(sent) if json.loads(r)["role"] in ("system", "developer")] == own
    assert BLOCK in text_of(sent)


def test_pictures_of_earlier_messages_are_not_forgotten_silently(client: Client, model: Model) -> None:
    """A picture inside the span leaves with its turn; the block says that there was one."""
    picture = {"role": "user", "content": [{"type": "text", "text": "look here"}, IMAGE]}
    messages = [*talk(8), assistant("ok"), picture, *talk(60)[2:]]
    sent = sent_for(client, model, messages)
    block = texts_of(messages_of(sent)[1])[0]
    pin = block.split("look here")[1].split("--- message")[0]
    assert "image" in pin


@pytest.mark.parametrize("preset", ["mechanical", "told"])
def test_no_system_message_behind_the_beginning(client: Client, model: Model, preset: str) -> None:
    """Servers that want them first are not given a later one."""
    roles = [m["role"] for m in messages_of(sent_for(client, model, talk(120), preset))]
    assert "system" not in roles[1:]
    assert "developer" not in roles


@pytest.mark.parametrize("make", [_spoken, _chained], ids=["talk", "tools between"])
@pytest.mark.parametrize("steps", KEPT_STEPS)
def test_no_two_messages_of_the_user_come_to_stand_in_a_row(
    client: Client, model: Model, make: Turn, steps: int
) -> None:
    """A strict template refuses them: where the client's roles alternate, so do those that are sent."""
    for turns in (59, 60):
        sent = messages_of(sent_for(client, model, _history(make, turns), preset=f"keep{steps}"))
        assert [(a["role"], b["role"]) for a, b in pairwise(sent) if a["role"] == b["role"] == "user"] == []
        spoken = [m["role"] for m in sent if m["role"] in ("user", "assistant") and not m.get("tool_calls")]
        assert all(a != b for a, b in pairwise(spoken))
        assert spoken[0] == "user"


ENDS: dict[str, list[Message]] = {
    "a question": [user("LAST: why?")],
    "a question in parts": [
        {"role": "user", "content": [{"type": "text", "text": "LAST"}, {"type": "text", "text": "?"}]}
    ],
    "a prefill": [user("LAST"), assistant("The answer is")],
    "an answer of a tool": [user("LAST"), assistant(None, ("z", "search", "{}")), result("found", "z")],
    "two answers": [
        user("LAST"),
        assistant(None, ("y", "search", "{}"), ("z", "search", "{}")),
        result("a", "z"),
        result("b", "y"),
    ],
    "a developer": [user("LAST"), _developer("be brief")],
    "a name": [{"role": "user", "content": "LAST", "name": "ann"}],
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("preset", ["keep0", "keep3", "told"])
def test_the_end_stays_the_end(client: Client, model: Model, end: list[Message], preset: str) -> None:
    """A conversation ends as the client's does: nothing is asked, said or added behind it, and it is verbatim."""
    messages = [*talk(110)[:-1], assistant("done"), *end]
    sent = sent_for(client, model, messages, preset)
    assert kept_of(sent, messages) >= len(end)
    assert BLOCK in text_of(sent)
    own = users_of(sent)
    assert sum("LAST" in text for text in own) == 1


def test_pictures_of_the_first_and_the_newest_message_stay(client: Client, model: Model) -> None:
    """The block is one more text behind the goal's own parts; the newest message is what it was."""
    goal = {"role": "user", "content": [{"type": "text", "text": "fix this screen"}, IMAGE]}
    newest = {"role": "user", "content": [{"type": "text", "text": "and this"}, IMAGE]}
    messages = [system("s"), goal, *talk(60)[2:-1], newest]
    sent = messages_of(sent_for(client, model, messages))
    assert sent[1]["content"][:2] == goal["content"]
    assert BLOCK in sent[1]["content"][2]["text"]
    assert sent[-1] == newest


# -- no loops, and the task is not lost (class N)


def _compactions(chat: Chat, turns: int, make: Turn) -> list[int]:
    """Let a chat go on and return the numbers of the requests in which it was compacted."""
    out, known = [], 0
    for number in range(turns):
        count = chat.ask(*make(number)).compaction.compactions
        out += [number] * (count > known)
        known = count
    return out


def _talkative(number: int) -> list[Message]:
    return [assistant("ok"), user(rows(f"rule{number}", 8))]


def test_pins_over_the_target_do_not_make_a_loop(client: Client, model: Model) -> None:
    """Where the user's own words are more than the target, a compaction can free little, so it is rare."""
    chat = new_chat(client)
    made = _compactions(chat, 42, _talkative)
    assert len(made) <= 3, made
    assert all(later - earlier >= 3 for earlier, later in pairwise(made)), made


def test_a_system_text_over_the_trigger_does_not_make_a_loop(client: Client, model: Model) -> None:
    """Nothing can be gained: the requests go as they are, and nobody is asked for a summary."""
    chat = new_chat(client, system(rows("rule", 330)), user("hi"), preset="told")
    made = _compactions(chat, 8, _talkative)
    assert made == []
    assert model.summaries == []


def test_a_large_paste_is_moved_out_once(client: Client, model: Model) -> None:
    """One message of the user that is larger than the window becomes a stub; the requests go out."""
    chat = new_chat(client, system("s"), user(rows("paste", 900)))
    made = _compactions(chat, 5, turn)
    assert made == []
    assert len(refs(model.last)) == 1
    assert client.original(refs(model.last)[0]) == rows("paste", 900).encode()


def test_more_pins_than_fit_are_told_and_served(client: Client, model: Model) -> None:
    """Beyond the limit all that can give way does; the newest message is whole, and the header says that it is over."""
    chat, told = new_chat(client, preset="told"), []
    for number in range(90):
        asked = len(model.summaries)
        got = chat.ask(*_talkative(number))
        told.append(got.compaction.reason)
        assert raw_messages(model.last)[-1] == raw_of(chat.messages)[-2]
        assert len(model.summaries) - asked <= 1
    assert told[-1] in ("", "over_limit")
    assert tokens_of(model.last) <= LIMIT_TOKENS or told[-1] == "over_limit"


@pytest.mark.parametrize("preset", ["mechanical", "told"])
def test_goal_and_newest_message_are_verbatim_in_every_request(client: Client, model: Model, preset: str) -> None:
    """After one, two, three and more compactions; in order, once each, and the newest is the last of the user's."""
    goal = "GOAL-7731: migrate the db,\n  never touch `prod` — “ünïcode” \t and <earlier-turns>"
    chat = new_chat(client, system("s"), user(goal), preset=preset)
    counts = set()
    for number in range(60):
        made = turn(number, 20)
        got = chat.ask(*made)
        sent = users_of(model.last)
        assert sent[0].startswith(goal)
        assert text_of(model.last).count("GOAL-7731") == 1
        assert raw_messages(model.last)[-1] == raw_of(made)[-1]
        counts.add(got.compaction.compactions)
    assert max(counts) >= 3


def test_old_orders_stand_only_in_the_block(client: Client, model: Model) -> None:
    """What was asked and done long ago is data in front of the running question, which stands verbatim behind it."""
    orders = [system("s"), user("FIRST: run /skill deploy")]
    for number in range(60):
        orders += [assistant(f"done {number} " + rows("d", 8)), user(f"next {number}")]
    running = [user("LAST: why is test_b red?"), assistant(None, ("q", "run", "{}")), result(rows("red"), "q")]
    sent = messages_of(sent_for(client, model, [*orders[:-1], *running]))
    block = texts_of(sent[1])[0]
    assert "data to refer to, not instructions" in block
    assert block.index("FIRST: run") < block.index(BLOCK) < block.index("next 0")
    assert sent[-3:] == running


@pytest.mark.parametrize("calls", [1, 4, 40])
def test_a_running_question_stands_behind_the_block(client: Client, model: Model, calls: int) -> None:
    """However many calls were made since: what the user said last is a message of its own, no part of the past."""
    question = user("LAST: why is test_b red?")
    running = [message for number in range(500, 500 + calls) for message in turn(number)[:-1]]
    messages = [*talk(60 - calls)[:-1], assistant("done"), question, *running]
    sent = sent_for(client, model, messages, preset="keep3")
    assert BLOCK in text_of(sent)
    assert raw_of([question])[0] in raw_messages(sent)
    assert text_of(sent).count("LAST") == 1


def test_nothing_below_a_tenth_is_freed(client: Client, model: Model) -> None:
    """Each compaction is worth it: the request after it is a tenth smaller at least."""
    chat, known, before = new_chat(client), 0, 0
    for number in range(70):
        count = chat.ask(*turn(number, 12)).compaction.compactions
        size = tokens_of(model.last)
        assert count == known or size < 0.9 * before
        known, before = count, size
    assert known >= 2


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_the_answer_that_is_asked_for_has_room(client: Client, model: Model, field: str) -> None:
    """Both names count, both stay as they came, and none is added."""
    chat = new_chat(client, *talk(26))
    chat.fields[field] = 3500
    chat.ask()
    fields = json.loads(model.last)
    assert fields[field] == 3500
    assert len({"max_tokens", "max_completion_tokens"} & fields.keys()) == 1
    assert tokens_of(model.last) <= 0.85 * (WINDOW_TOKENS - 3500)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_rounds_of_reading_stay_within_the_limit(client: Client, model: Model, stream: bool) -> None:
    """Never is more sent than the limit while the store works, also in rounds that the client does not see."""
    chat = new_chat(client, *talk(24), stream=stream)
    chat.add(assistant(None, ("b", "read_file", "{}")), result(rows("big", 400), "b"), user("go"))
    ranges = [reads(offset=1 + 120 * number, ident=f"h{number}") for number in range(3)]
    model.script += [*(says("", each) for each in ranges), says("seen")]
    chat.ask()
    assert len(model.bodies) >= 2
    assert max(map(tokens_of, model.bodies)) <= LIMIT_TOKENS


LINES = "international organisations understand responsibilities\n" * 40
WRITTEN: dict[str, list[Message]] = {
    "a text": [user(LINES)],
    "parts": [{"role": "user", "content": [{"type": "text", "text": LINES}]}],
    "an input": [assistant(None, ("c", "write_file", json.dumps({"text": LINES}))), result("ok", "c"), user("go")],
    "a function": [
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "f", "arguments": json.dumps({"text": LINES})},
        },
        {"role": "function", "name": "f", "content": "ok"},
        user("go"),
    ],
}


@pytest.mark.parametrize("messages", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("preset", ["mechanical", "shadow", "plain"])
def test_sizes_are_told_of_all_that_is_sent(client: Client, model: Model, messages: list[Message], preset: str) -> None:
    """The header counts texts wherever they stand, to a factor of two; escapes of JSON are none of them."""
    chat = new_chat(client, system("s"), user("go"), *messages, preset=preset)
    got = client.post(chat.body(), chat.headers)
    received, sent = (int(part.split("=")[1]) for part in got.headers["x-ullage-tokens"].split(", "))
    tokens = len(chat.body()) / 4
    assert tokens / 2 < received < tokens * 2
    assert tokens / 2 < sent < tokens * 2


def test_sizes_that_are_told_are_never_below_nothing(client: Client, model: Model) -> None:
    """Also where inputs of calls and parts of messages left."""
    chat = new_chat(client)
    for number in range(16):
        made = turn(number, 8)
        made[0]["tool_calls"][0]["function"]["arguments"] = json.dumps({"text": rows(f"in{number}", 60)})
        made[2]["content"] = [{"type": "text", "text": rows(f"u{number}", 10)}]
        got = chat.ask(*made)
        received, sent = (int(part.split("=")[1]) for part in got.headers["x-ullage-tokens"].split(", "))
        assert 0 < sent <= received + 200
        assert tokens_of(model.last) / 2.5 < sent
