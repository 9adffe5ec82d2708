"""What the client does not see is kept exactly as the upstream saw it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.calls import Owner
from proxy.core.rounds import HiddenRounds, Round
from proxy.core.signals import ToolUse
from proxy.core.states import On
from proxy.core.wire.chat_body import read_answer
from proxy.core.wire.chat_stream import read_chunk
from proxy.core.wire.raw import write
from tests.core.copies import DAMAGED, GUARD, STUB
from tests.playbook import TOOL, call, calls, chunk, event, tool_call, whole


def streamed(*chunks: dict[str, Any], finish: str | None = "tool_calls") -> Round:
    """Return a round that was streamed."""
    running = Round(TOOL)
    for value in chunks:
        found = read_chunk(json.dumps(value).encode())
        assert found is not None
        running.draft.add(found.delta)
        running.route(found.calls)
    running.finish = finish
    running.calls.settle_names()
    return running


def answered(message: dict[str, Any], finish: str = "tool_calls") -> Round:
    """Return a round that came as a whole body."""
    running = Round(TOOL)
    running.answer = read_answer(whole(message, finish))
    assert running.answer is not None
    running.finish = running.answer.finish
    running.calls.take(running.answer.calls)
    return running


def decoded(messages: tuple[bytes, ...]) -> list[Any]:
    """Return raw messages decoded."""
    return [json.loads(message) for message in messages]


READ = calls(call(0, "h", TOOL, '{"ref":"off_a"}'))


def test_a_hidden_round_is_its_message_and_the_answers() -> None:
    """The message has its calls and all its fields, each answer the id of its call."""
    running = streamed(
        chunk({"role": "assistant", "content": None, "reasoning": "r"}), READ, calls(call(1, "i", TOOL, "{}"))
    )
    hidden = HiddenRounds()
    hidden.add(running, ["one", "two \ud800"], is_content_hidden=False)
    assert len(hidden) == 1
    assert decoded(hidden.messages) == [
        {
            "role": "assistant",
            "content": None,
            "reasoning": "r",
            "tool_calls": [tool_call("h"), tool_call("i", arguments="{}")],
        },
        {"role": "tool", "tool_call_id": "h", "content": "one"},
        {"role": "tool", "tool_call_id": "i", "content": "two \ud800"},
    ]


def test_a_missing_answer_is_made_up_for() -> None:
    """No call stays unanswered: upstreams would refuse the whole request."""
    hidden = HiddenRounds()
    hidden.add(streamed(READ), [], is_content_hidden=False)
    assert "not final" in decoded(hidden.messages)[1]["content"]


@pytest.mark.parametrize("is_content_hidden", [False, True])
def test_the_visible_message_is_what_the_client_has(is_content_hidden: bool) -> None:
    """Text of all rounds, unless it had to stay hidden; reasoning of all rounds; no call of ours."""
    hidden = HiddenRounds()
    first = streamed(chunk({"content": "look ", "reasoning_content": "r1"}), READ)
    hidden.add(first, ["x"], is_content_hidden=is_content_hidden)
    last = streamed(chunk({"role": "assistant", "content": "done", "reasoning_content": "r2"}), finish="stop")
    turn = hidden.remember(last, None)
    shown = "" if is_content_hidden else "look "
    assert json.loads(turn.visible) == {"role": "assistant", "content": f"{shown}done", "reasoning_content": "r1r2"}
    assert turn.shown == ({} if is_content_hidden else {"content": "look "}) | {"reasoning_content": "r1"}
    assert turn.rounds == hidden.messages
    assert (turn.calls, turn.answers) == ((), ())


@pytest.mark.parametrize("kind", ["streamed", "whole"])
def test_a_mixed_round_is_remembered_in_two_parts(kind: str) -> None:
    """The client has its calls; ours are kept with their places, answers beside them."""
    if kind == "streamed":
        last = streamed(chunk({"content": "a"}), READ, calls(call(1, "c", "f", "{}")), calls(call(2, "i", TOOL, "{}")))
    else:
        made = [tool_call("h"), tool_call("c", "f", "{}"), tool_call("i", arguments="{}")]
        last = answered({"content": "a", "tool_calls": made})
    turn = HiddenRounds().remember(last, ["one", "two"])
    visible = {"role": "assistant", "content": "a", "tool_calls": [tool_call("c", "f", "{}")]}
    assert json.loads(turn.visible) == visible
    assert [(position, json.loads(raw)) for position, raw in turn.calls] == [
        (0, tool_call("h")),
        (2, tool_call("i", arguments="{}")),
    ]
    assert [(m["tool_call_id"], m["content"]) for m in decoded(turn.answers)] == [("h", "one"), ("i", "two")]
    assert (turn.rounds, turn.shown) == ((), {})


def test_a_whole_message_goes_back_as_it_came() -> None:
    """Unknown fields, nulls and the spelling of what is not mended are kept."""
    data = (
        b'{"choices":[{"index":0,"message":{"role":"assistant","content":null,"x":1.50,"tool_calls":[{"id":"h","type":"function",'
        b'"function":{"name":"read_offloaded","arguments":"{\\"ref\\":\\"\\u00e9\\"}"}}]},"finish_reason":"tool_calls"}]}'
    )
    running = Round(TOOL)
    running.answer = read_answer(data)
    assert running.answer is not None
    running.calls.take(running.answer.calls)
    running.calls.mend(b"")
    hidden = HiddenRounds()
    hidden.add(running, ["x"], is_content_hidden=False)
    assert hidden.messages[0] in data


@pytest.mark.parametrize("finish", ["length", "content_filter", "error", "model_length"])
def test_calls_that_were_cut_are_not_carried_out(finish: str) -> None:
    """A model that was stopped has not finished its call."""
    assert streamed(READ, finish=finish).reads() == []
    assert streamed(READ, finish="stop").uses() == (ToolUse("h", TOOL, '{"ref":"off_a"}'),)


def test_uses_are_plain_text() -> None:
    """Halves of an emoji are joined, lone ones replaced: the reader gets text that can be encoded."""
    running = streamed(calls(call(0, "h", TOOL, '{"p":"\ud83d')), calls(call(0, None, None, '\ude00 \ud800 é"}')))
    assert running.uses()[0].arguments == '{"p":"\U0001f600 \ufffd é"}'


def test_whether_a_round_has_ended() -> None:
    """A finish ends it, a whole body is one, and the mark of the end counts only after something was said."""
    assert streamed(finish="stop").has_ended()
    assert answered({"content": "a"}, "stop").has_ended()
    silent = streamed(chunk({"role": "assistant", "content": ""}), finish=None)
    silent.is_done = True
    assert not silent.has_ended()
    spoken = streamed(chunk({"content": "a"}), finish=None)
    assert not spoken.has_ended()
    spoken.is_done = True
    assert spoken.has_ended()
    assert spoken.has_content()
    assert not silent.has_content()
    assert answered({"content": "a"}).has_content()


def test_what_can_wait_is_read_later() -> None:
    """Pieces of the client's calls leave unread, and still go to their call before the next one opens."""
    running = Round(TOOL)
    piece = event(calls(call(0, None, None, "{}")))
    text = event(chunk({"content": "a"}))
    assert running.can_wait(text, text)
    assert not running.can_wait(piece, piece)
    running.route([write(call(0, "c", "f", ""))])
    assert running.can_wait(piece, piece)
    head = event(calls(call(0, "h", TOOL, "")))
    assert not running.can_wait(head, head)
    running.route([write(call(0, "h", TOOL, ""))])
    assert [(c.name, c.arguments, c.owner) for c in running.calls] == [
        ("f", "{}", Owner.THEIRS),
        (TOOL, "", Owner.OURS),
    ]
    assert not running.can_wait(piece, piece)
    assert Round(None).can_wait(head, head)


def test_with_stubs_in_the_request_only_brackets_are_read() -> None:
    """Pieces of the client's calls still leave unread, unless a copied stub may begin in them or has begun."""
    running = Round(TOOL, GUARD)
    running.route([write(call(0, "c", "f", ""))])
    plain, bracket = (event(calls(call(0, None, None, text))) for text in ('{"a":"', "[offl"))
    assert running.can_wait(plain, plain)
    assert running.can_wait(plain + plain, plain + plain) is False, "two ids may be two calls"
    assert not running.can_wait(bracket, bracket)
    running.route([write(call(0, None, None, "[offl"))])
    assert (running.must_wait(), running.has_open(), running.has_copies()) == (True, True, False)
    assert not running.can_wait(plain, plain)
    running.settle()
    assert not running.has_open()
    assert next(iter(running.calls)).arguments == '{"a":"[offl'


def test_frames_that_were_put_off_together_are_read_one_by_one() -> None:
    """Also where chunks have no id, and where the last has no blank line."""
    running = Round(TOOL)
    running.route([write(call(0, "c", "f", ""))])
    pieces = [event({"choices": calls(call(0, None, None, text))["choices"]}) for text in "abc"]
    assert running.can_wait(pieces[0] + pieces[1], pieces[0] + pieces[1])
    assert running.can_wait(pieces[2], pieces[2].rstrip())
    running.route(())
    assert next(iter(running.calls)).arguments == "abc"


def outcome_of(*chunks: dict[str, Any], finish: str = "tool_calls", can_go_on: bool = True) -> On:
    """Return what a round with stubs in its request was."""
    running = Round(TOOL, GUARD)
    for value in chunks:
        found = read_chunk(json.dumps(value).encode())
        assert found is not None
        running.route(found.calls)
    running.finish = finish
    return running.outcome(can_go_on=can_go_on)


def test_what_a_round_was() -> None:
    """By its finish, whose calls it has, and whether copied stubs could be restored."""
    good, bad = (calls(call(3, "g", "f", json.dumps([text]))) for text in (STUB, DAMAGED))
    assert outcome_of(finish="stop") is On.LAST
    assert outcome_of(READ) is On.HIDDEN
    assert outcome_of(READ, can_go_on=False) is On.SPENT
    assert outcome_of(READ, good) is On.MIXED
    assert outcome_of(good) is On.LAST
    assert outcome_of(bad) is On.DECLINED
    assert outcome_of(READ, bad) is On.HIDDEN
    assert outcome_of(bad, can_go_on=False) is On.FAULTY
    assert outcome_of(bad, finish="length", can_go_on=False) is On.LAST
    assert Round(TOOL).outcome(can_go_on=True) is On.CUT
