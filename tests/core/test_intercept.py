"""The interceptor, scene by scene. What holds for every turn is in `test_intercept_properties.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.intercept import (
    Answered,
    Body,
    Broke,
    CloseUpstream,
    Emit,
    Ended,
    Event,
    Finished,
    Opened,
    Read,
    Received,
    Refuse,
    Refused,
    Remember,
    Reopen,
    ToolUse,
)
from tests.playbook import (
    DONE,
    TOOL,
    USAGE,
    Playbook,
    Turn,
    assemble,
    call,
    calls,
    chunk,
    event,
    events_of,
    play,
    play_whole,
    reading,
    saying,
    sends,
    stream,
    tool_call,
    usage_chunk,
    whole,
)

HEAD = chunk({"role": "assistant", "content": ""})
OURS = calls(call(0, "h1", TOOL, '{"ref":"off_a"}'))
THEIRS = calls(call(1, "c1", "f", "{}"))
MESSAGE = {"role": "assistant", "content": None, "tool_calls": [tool_call("h1")]}
ANSWER = {"role": "tool", "tool_call_id": "h1", "content": "row"}


def error_of(turn: Turn) -> dict[str, Any]:
    """Return the one error event that ends a stream."""
    last = turn.chunks[-1]
    assert [chunk for chunk in turn.chunks if chunk.get("error")] == [last]
    assert b"[DONE]" not in turn.sent
    assert turn.finished.aborted
    error = last["error"]
    assert isinstance(error, dict)
    return error


def decoded(messages: tuple[bytes, ...]) -> list[Any]:
    """Return raw messages decoded."""
    return [json.loads(message) for message in messages]


# -- streams that pass


def test_text_passes_at_once() -> None:
    """Each read leaves as it came, before the next one is there."""
    script = Playbook()
    first, second = event(HEAD), event(chunk({"content": "a"}))
    script >> Opened() >> Received(first) << Emit(first)
    script >> Received(second + second) << Emit(second + second)
    script >> Received(event(chunk({}, "stop")) + DONE) << Emit(event(chunk({}, "stop")) + DONE)
    script >> Ended() << Finished(usage=None, visible=None, aborted=False)
    script.end()


def test_half_an_event_waits_for_the_other_half() -> None:
    """What leaves are whole events, so that a comment can be put between them."""
    script = Playbook()
    data = event(chunk({"content": "é"}))
    script >> Opened() >> Received(data[:20]) >> Received(data[20:-1]) >> Received(data[-1:]) << Emit(data)
    script >> Broke("reset") << sends(b"upstream_broken") << Finished


JUNK = {
    "comments": b": ping\n\n: a\n: b\n" + event(HEAD) + b":\n\n",
    "fields": b"event: message\nid: 7\nretry: 10\n" + event(HEAD),
    "no JSON": b"data: hello\n\n" + event(HEAD) + b"data:\n\n",
    "other JSON": b"data: [1]\n\ndata: 7\n\n" + event(HEAD),
    "mark at the start": b"\xef\xbb\xbf" + event(HEAD),
    "bytes": b"\xff\xfe\x00\n\n" + event(HEAD),
    "two data lines": event(HEAD).replace(b'{"id"', b'{\ndata: "id"'),
    "lone surrogate": event(HEAD).replace(b'"content": ""', b'"content": "\\ud800"'),
    "several choices": stream(
        chunk(choices=[{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]), done=False
    ),
    "after the end": event(HEAD) + DONE + b": bye\n\ndata: x\n\ndata: {",
}


@pytest.mark.parametrize("tool", [TOOL, None])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("kind", JUNK)
def test_junk_passes(kind: str, line_end: bytes, tool: str | None) -> None:
    """Where nothing has to be spliced every byte leaves as it came, however it was cut."""
    data = (JUNK[kind] + stream(chunk({}, "stop"))).replace(b"\n", line_end)
    for every in (0, 1, 3):
        assert play([data], every=every, tool=tool).sent == data


CLIENT_CALLS: dict[str, list[dict[str, Any]]] = {
    "whole": [call(0, "a", "f", '{"k":1}')],
    "no index": [call(None, "a", "f", ""), call(None, None, None, '{"k"'), call(None, None, None, ":1}")],
    "no id": [call(0, None, "f", '{"k":1}')],
    "beginning of our name": [call(0, "a", "read", ""), call(0, None, None, "{"), call(0, None, None, "}")],
    "beginning of our name, alone": [call(0, "a", "read")],
    "name in pieces": [call(0, "a", "re", ""), call(0, None, "ad_file", ""), call(0, None, None, "{}")],
    "our name and more": [call(0, "a", "read_", ""), call(0, None, "offloaded_files", ""), call(0, None, None, "{}")],
    "id first": [{"index": 0, "id": "a"}, call(0, None, "f", ""), call(0, None, None, "{}")],
    "never a name": [call(0, "a", None, "{"), call(0, None, None, "}")],
    "parallel": [
        call(0, "a", "read", ""),
        call(1, "b", "read", ""),
        call(1, None, None, "{}"),
        call(0, None, None, "{}"),
    ],
    "index 0 for all": [call(0, "a", "f", "{}"), call(0, "b", "g", "{}"), call(0, "c", "read", "{}")],
    "object arguments": [call(0, "a", "f", {"k": 1})],
    "nulls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": None}}, {"index": 0, "function": None}],
    "custom": [{"index": 0, "id": "a", "type": "custom", "custom": {"name": TOOL, "input": "x"}}],
}


@pytest.mark.parametrize("kind", CLIENT_CALLS)
def test_the_clients_calls_pass(kind: str) -> None:
    """In every dialect its own calls reach the client as they came, although some were held back for a while."""
    deltas = [calls(delta) for delta in CLIENT_CALLS[kind]]
    data = b": ping\n\n" + stream(HEAD, *deltas, chunk({"content": "x"}), chunk({}, "tool_calls"), usage_chunk())
    for every in (0, 1):
        turn = play([data], every=every)
        assert turn.sent == data
        assert turn.finished == Finished(usage=USAGE, visible=None, aborted=False)


def test_a_name_that_may_become_ours_is_held_back() -> None:
    """What follows it waits with it, and all of it leaves as soon as the name is known."""
    script = Playbook()
    held = event(calls(call(0, "a", "read", ""))), b": ping\n\n", event(chunk({"content": "a"}))
    script >> Opened()
    for data in held:
        script >> Received(data)
    last = event(calls(call(0, None, None, "{")))
    script >> Received(last) << Emit(b"".join(held) + last)
    script >> Received(event(calls(call(0, None, None, "}")))) << Emit


def test_an_unasked_usage_chunk_is_swallowed_where_the_gateway_asked() -> None:
    """The client gets everything else as it came; a usage that the upstream sends by itself passes."""
    data = stream(HEAD, chunk({}, "stop"), done=False)
    usage = event(usage_chunk())
    assert play([data + usage + DONE], added_usage=True).sent == data + DONE
    assert play([data + usage + DONE], added_usage=True, wants_usage=True).sent == data + usage + DONE
    turn = play([data + usage + DONE])
    assert (turn.sent, turn.finished.usage) == (data + usage + DONE, USAGE)


def test_a_call_of_ours_after_the_finish_is_dropped() -> None:
    """The turn is over: nothing is read, the second finish goes, usage and the end stay."""
    data = stream(HEAD, chunk({"content": "hi"}), chunk({}, "stop"), done=False)
    rest = event(OURS) + b": x\n\n" + stream(chunk({}, "tool_calls"), usage_chunk())
    turn = play([data + rest])
    assert turn.sent == data + event(usage_chunk()) + DONE
    assert turn.commands[-1] == Finished(usage=USAGE, visible=None, aborted=False)
    held = stream(calls(call(0, "a", "read_", "")), calls(call(0, None, "offloaded", "{}")))
    assert play([data + held]).sent == data + DONE
    broken = play([data + event(OURS) + event({"error": {"message": "m"}}) + DONE])
    assert broken.sent == data + event({"error": {"message": "m"}}) + DONE
    assert broken.finished.aborted


def test_the_clients_call_after_the_finish_passes() -> None:
    """Odd streams stay as odd as they are."""
    for name in ("f", "read"):
        data = stream(HEAD, chunk({}, "stop"), calls(call(0, "a", name, "")), chunk({}, "tool_calls"))
        assert play([data]).sent == data


# -- streams that end badly


STOPS = {
    "nothing": b"",
    "comments": b": a\n\n: b",
    "text": event(chunk({"content": "Hel"})),
    "a call": event(HEAD) + event(calls(call(0, "a", "f", '{"pa'))),
    "a line": event(chunk({"content": "Hel"})) + b'data: {"id": "c1", "obj',
    "a character": event(chunk({"content": "Hel"})) + b'data: {"id":"\xe6',
    "after the finish": stream(chunk({"content": "Hel"}), chunk({}, "stop"), done=False) + b'data: {"usa',
    "a field": event(HEAD) + b"dat",
}


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("tool", [TOOL, None])
@pytest.mark.parametrize("kind", STOPS)
def test_a_stream_that_stops_early_ends_as_an_error(kind: str, tool: str | None, broken: bool) -> None:
    """Whole events leave, half of one does not, then one error event: no finish, no mark of the end."""
    data = STOPS[kind]
    for every in (0, 1):
        turn = play([data], every=every, tool=tool, broken=broken)
        error = error_of(turn)
        assert (error["type"], error["param"], error["code"]) == ("ullage_error", None, "upstream_broken")
        assert ("reset" in error["message"]) is broken
        whole_events = data[: data.rfind(b"\n\n") + 2] if b"\n\n" in data else b""
        assert turn.sent.startswith(whole_events)
        assert not turn.remembered


def test_a_last_event_without_a_blank_line_counts() -> None:
    """A complete one passes as it came; if it was not the end, the error stands apart from it."""
    for last in (DONE, DONE.rstrip(), event(chunk({}, "stop")).rstrip(), event(chunk({}, "stop")).rstrip() + b"\n: x"):
        data = event(HEAD) + last
        assert play([data]).sent == data
    turn = play([event(HEAD).rstrip()])
    assert turn.sent.startswith(event(HEAD))
    assert error_of(turn)["code"] == "upstream_broken"


def test_a_finish_is_an_end_without_the_mark() -> None:
    """It is not supplied; a connection that breaks after it takes nothing away."""
    data = stream(HEAD, chunk({}, "stop"), done=False)
    for broken in (False, True):
        turn = play([data], broken=broken)
        assert (turn.sent, turn.finished.aborted) == (data, False)


def test_the_mark_alone_is_relayed() -> None:
    """A first answer without content or finish, but with its mark, is the upstream's own."""
    for data in (DONE, event(HEAD) + DONE):
        turn = play([data])
        assert (turn.sent, turn.finished.aborted) == (data, False)


def test_a_broken_stream_gives_no_call_that_may_be_ours() -> None:
    """Text that was held back is sent, the beginning of a call that may be ours is not."""
    held = chunk({"content": "a", "tool_calls": [call(0, "h", "read_off", "")]})
    turn = play([event(HEAD) + event(held) + event(chunk({"content": "b"}))], broken=True)
    assert error_of(turn)["code"] == "upstream_broken"
    assert assemble(turn.chunks)["content"] == "ab"
    assert b"read_off" not in turn.sent


ERROR = {"error": {"message": "High load", "type": "server_error", "code": None}}
ERRORS = {
    "named": b"event: error\n" + event(ERROR) + DONE,
    "bare": event(ERROR),
    "without an object": b"event: error\ndata: overloaded\n\n",
    "after a comment": b": wait\n\n" + event(ERROR) + DONE,
    "after text": event(HEAD) + event(ERROR),
    "with a choice": event(chunk({"content": ""}, "error", **ERROR)),
    "while a name is open": event(HEAD) + event(calls(call(0, "a", "f", "x"))) + event(ERROR),
}


@pytest.mark.parametrize("tool", [TOOL, None])
@pytest.mark.parametrize("kind", ERRORS)
def test_the_upstreams_own_error_passes(kind: str, tool: str | None) -> None:
    """Nothing is added to it, and the turn counts as failed."""
    data = ERRORS[kind]
    for every in (0, 1):
        turn = play([data], every=every, tool=tool)
        assert turn.sent == data
        assert turn.finished.aborted


def test_an_error_releases_no_call_that_may_be_ours() -> None:
    """An open call goes with the stream that failed; a call of ours after the error is not shown either."""
    turn = play([event(HEAD) + event(calls(call(0, "h", "read_off", ""))) + event(ERROR) + event(OURS) + DONE])
    assert turn.sent == event(HEAD) + event(ERROR) + DONE


# -- hidden rounds


def test_a_hidden_round() -> None:
    """Its text flows, its call is answered here, the upstream is asked again, and the client sees one answer."""
    script = Playbook(wants_usage=True)
    script >> Opened() >> Received(event(HEAD)) << Emit(event(HEAD))
    script >> Received(event(chunk({"content": "look "}))) << Emit
    script >> Received(event(OURS)) >> Received(event(chunk({}, "tool_calls")))
    script >> Received(event(usage_chunk())) >> Received(DONE) << CloseUpstream()
    script >> Ended() << Read((ToolUse("h1", TOOL, '{"ref":"off_a"}'),))
    message = {**MESSAGE, "content": "look "}
    script >> Answered(("row",)) << (lambda c: decoded(c.messages) == [message, ANSWER] and c.tool)
    script >> Opened() >> Received(event(chunk({"role": "assistant", "content": ""}, id="c2", created=2)))
    script >> Received(event(chunk({"content": "done"}, id="c2", created=2))) << sends(b'"done"')
    script >> Received(event(chunk({}, "stop", id="c2", created=2)))
    script >> Received(event(usage_chunk(id="c2"))) >> Received(DONE) << CloseUpstream()
    script >> Ended()
    script << (lambda c: isinstance(c, Remember) and json.loads(c.turn.visible)["content"] == "look done")
    ending = [chunk({}, "stop"), usage_chunk({"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20})]
    script << (lambda c: events_of(c.data) == ending and c.data.endswith(DONE))
    visible = b'{"role":"assistant","content":"look done"}'
    script << Finished({"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}, visible, aborted=False)
    script.end()


def test_nothing_shows_of_a_round_that_only_reads() -> None:
    """The client gets the first role and then the answer."""
    turn = play([reading(), saying("done")])
    assert events_of(turn.sent) == [
        chunk({"role": "assistant", "content": None}),
        chunk({"content": "done"}),
        chunk({}, "stop"),
    ]
    (remembered,) = turn.remembered
    assert decoded(remembered.turn.rounds) == [MESSAGE, {**ANSWER, "content": 'answer {"ref":"off_a"}'}]
    assert (remembered.turn.shown, remembered.turn.calls) == ({}, ())


def test_several_calls_are_one_read() -> None:
    """All calls of one turn are answered together, in their order."""
    two = calls(call(0, "h1", TOOL, '{"ref":"a"}'), call(1, "h2", TOOL, '{"ref":"b"}'))
    turn = play([stream(HEAD, two, chunk({}, "stop")), saying("x")])
    (read,) = turn.reads
    assert [use.id for use in read.calls] == ["h1", "h2"]
    assert [m.get("tool_call_id") for m in decoded(turn.reopened[0].messages)] == [None, "h1", "h2"]


HIDDEN_CALLS: dict[str, list[dict[str, Any]]] = {
    **{
        kind: [json.loads(json.dumps(delta).replace('"f"', f'"{TOOL}"').replace('{"k":1}', "{}")) for delta in deltas]
        for kind, deltas in CLIENT_CALLS.items()
        if kind in ("whole", "no index", "no id", "id first", "object arguments", "nulls")
    },
    "name in pieces": [call(0, "a", "read_", ""), call(0, None, "offloaded", ""), call(0, None, None, "{}")],
    "name alone": [call(0, "a", TOOL)],
    "head repeated": [call(0, "a", TOOL, "{"), call(0, "a", TOOL, "}")],
}


@pytest.mark.parametrize("kind", HIDDEN_CALLS)
def test_a_hidden_call_in_every_dialect(kind: str) -> None:
    """It is read, and goes back with an id, a type and arguments that are text."""
    deltas = [calls(delta) for delta in HIDDEN_CALLS[kind]]
    for every in (0, 1):
        turn = play([stream(HEAD, *deltas, chunk({}, "tool_calls")), saying("ok")], every=every)
        assert assemble(turn.chunks)["content"] == "ok"
        assert TOOL.encode() not in turn.sent
        assistant, answer = decoded(turn.reopened[0].messages)
        (made,) = assistant["tool_calls"]
        assert made["id"] == answer["tool_call_id"] == turn.reads[0].calls[0].id != ""
        assert made["type"] == "function"
        assert isinstance(made["function"]["arguments"], str)


def test_made_ids_are_constants_of_the_request() -> None:
    """The same turn gives the same ids, another round or salt others."""
    nameless = stream(HEAD, calls(call(0, None, TOOL, "{}")), chunk({}, "tool_calls"))
    first, again = (play([nameless, nameless, saying("x")], salt=b"s").reads for _ in range(2))
    other = play([nameless, saying("x")], salt=b"t").reads
    assert first == again
    assert len({read.calls[0].id for read in (*first, *other)}) == 3


def test_reasoning_of_hidden_rounds_is_shown_and_kept() -> None:
    """The client sees all of it; the upstream gets back what it sent, signatures included."""
    signed = {"extra_content": {"google": {"thought_signature": "s"}}}
    first = stream(
        chunk({"role": "assistant", "reasoning_content": "th"}),
        chunk({"reasoning_content": "ink"}),
        calls({**call(0, "h1", TOOL, "{}"), **signed}),
        chunk({}, "tool_calls"),
    )
    last = stream(
        chunk({"role": "assistant", "reasoning_content": "more"}), chunk({"content": "ok"}), chunk({}, "stop")
    )
    turn = play([first, last])
    assert assemble(turn.chunks)["reasoning_content"] == "thinkmore"
    message = decoded(turn.reopened[0].messages)[0]
    assert message["reasoning_content"] == "think"
    assert message["tool_calls"][0]["extra_content"] == signed["extra_content"]
    assert turn.remembered[0].turn.shown == {"reasoning_content": "think"}
    assert json.loads(turn.remembered[0].turn.visible)["reasoning_content"] == "thinkmore"


def test_a_hidden_round_ends_where_its_usage_has_come() -> None:
    """A connection that breaks after the finish has brought all that is needed; so has one without the mark."""
    first = stream(HEAD, OURS, chunk({}, "tool_calls"), usage_chunk(), done=False)
    for broken in (False, True):
        turn = play([first], broken=broken)
        assert turn.reads
        assert turn.reopened
    assert play([first + b'data: {"half']).reopened
    assert play([stream(HEAD, OURS)]).reopened, "the mark of the end is an end, too"


def test_a_finish_and_the_last_text_in_one_chunk() -> None:
    """The text flows at once, the finish waits."""
    script = Playbook()
    script >> Opened() >> Received(reading()) << sends(b"role") << CloseUpstream() >> Ended() << Read
    script >> Answered(("row",)) << Reopen >> Opened()
    (
        script
        >> Received(event(chunk({"content": "all"}, "stop")))
        << (lambda c: events_of(c.data) == [chunk({"content": "all"})])
    )
    script >> Ended() << Remember << (lambda c: events_of(c.data) == [chunk({}, "stop")]) << Finished
    script.end()


def test_usage_is_told_only_to_those_who_asked() -> None:
    """In a spliced turn also where it came in a chunk with a finish."""
    rounds = [reading(), stream(HEAD, chunk({"content": "x"}, "stop", usage=USAGE))]
    assert not [item for item in play(rounds).chunks if item.get("usage")]
    asked = play(rounds, wants_usage=True).chunks
    assert [item["usage"] for item in asked if item.get("usage")] == [USAGE]
    assert asked[-1]["usage"]
    assert asked[-1]["choices"] == []


@pytest.mark.parametrize("usage", [None, {}, [1], "n/a", {"completion_tokens": "3"}, {"total_tokens": -1}], ids=str)
def test_odd_usage_changes_nothing(usage: Any) -> None:
    """In either of two rounds it breaks nothing."""
    for one, two in ((usage, USAGE), (USAGE, usage)):
        rounds = [
            stream(HEAD, OURS, chunk({}, "tool_calls"), usage_chunk(one)),
            stream(HEAD, chunk({"content": "x"}, "stop"), usage_chunk(two)),
        ]
        turn = play(rounds, wants_usage=True)
        assert assemble(turn.chunks)["content"] == "x"
        assert not turn.finished.aborted
        wholes = [
            whole({"content": None, "tool_calls": [tool_call("h1")]}, "tool_calls", one),
            whole({"content": "x"}, "stop", two),
        ]
        assert json.loads(play_whole(wholes).sent)["choices"][0]["message"]["content"] == "x"


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_call_that_was_cut_is_left_out(finish: str) -> None:
    """The client gets the finish without it, and nothing is read or remembered."""
    turn = play([stream(HEAD, calls(call(0, "h1", TOOL, '{"re')), chunk({}, finish))])
    message = assemble(turn.chunks)
    assert (message["finish"], message["calls"]) == ([finish], {})
    assert not turn.reads
    assert not turn.remembered
    assert turn.sent.endswith(DONE)


# -- mixed rounds


def test_a_mixed_round() -> None:
    """The client's call flows, its finish comes when ours has been written down; the upstream is not asked again."""
    script = Playbook()
    script >> Opened() >> Received(event(HEAD) + event(OURS)) << Emit
    script >> Received(event(THEIRS)) << (lambda c: events_of(c.data) == [calls(call(0, "c1", "f", "{}"))])
    script >> Received(event(chunk({}, "tool_calls")) + DONE) << CloseUpstream()
    script >> Ended() << Read((ToolUse("h1", TOOL, '{"ref":"off_a"}'),))
    script >> Received(b"data: late\n\n") >> Ended()
    script >> Answered(("row",))
    script << (
        lambda c: (
            [(p, json.loads(raw)) for p, raw in c.turn.calls] == [(0, tool_call("h1"))]
            and decoded(c.turn.answers) == [ANSWER]
            and c.turn.rounds == ()
            and json.loads(c.turn.visible)["tool_calls"] == [tool_call("c1", "f", "{}")]
        )
    )
    script << (lambda c: events_of(c.data) == [chunk({}, "tool_calls")] and c.data.endswith(DONE))
    script << (lambda c: isinstance(c, Finished) and not c.aborted)
    script.end()


ORDERS = ["hc", "ch", "chc", "hch", "hcch", "cchh"]


@pytest.mark.parametrize("dialect", ["openai", "index 0", "no index"])
@pytest.mark.parametrize("order", ORDERS)
def test_mixed_rounds_in_any_order(order: str, dialect: str) -> None:
    """The client gets exactly its calls, the places of ours are known."""
    names = [(f"{kind}{i}", TOOL if kind == "h" else "f", "{}") for i, kind in enumerate(order)]
    indices = {"openai": [*range(len(order))], "index 0": [0] * len(order), "no index": [None] * len(order)}[dialect]
    deltas = [calls(call(index, *parts)) for index, parts in zip(indices, names, strict=True)]
    turn = play([stream(HEAD, *deltas, chunk({}, "tool_calls"))])
    got = [
        (delta["id"], delta["function"]["name"])
        for item in turn.chunks
        for delta in item["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert got == [(identity, name) for identity, name, _ in names if name == "f"]
    assert TOOL.encode() not in turn.sent
    (remembered,) = turn.remembered
    assert [position for position, _ in remembered.turn.calls] == [i for i, kind in enumerate(order) if kind == "h"]


def test_a_mixed_round_after_a_hidden_one() -> None:
    """What is remembered has both: the hidden round, and our call of the last."""
    turn = play([reading("h0"), stream(HEAD, chunk({"content": "x"}), OURS, THEIRS, chunk({}, "stop"))])
    (remembered,) = turn.remembered
    assert len(remembered.turn.rounds) == 2
    assert len(remembered.turn.calls) == 1
    assert assemble(turn.chunks)["finish"] == ["stop"]


# -- the end of the rounds


def test_rounds_are_bounded() -> None:
    """After the last one the tool is withdrawn; a model that calls it all the same gets no further."""
    turn = play([reading(f"h{i}") for i in range(9)], rounds=3)
    assert [reopen.tool for reopen in turn.reopened] == [True, True, False]
    assert error_of(turn)["code"] == "rounds_exhausted"
    assert TOOL.encode() not in turn.sent
    assert not turn.remembered


def test_text_beside_a_call_that_is_not_answered_any_more_is_the_answer() -> None:
    """With text the stream ends as one that stopped."""
    last = stream(HEAD, chunk({"content": "so"}), OURS, chunk({}, "tool_calls"))
    turn = play([reading(), last], rounds=1)
    message = assemble(turn.chunks)
    assert (message["content"], message["finish"], message["calls"]) == ("so", ["stop"], {})
    assert turn.sent.endswith(DONE)
    assert json.loads(turn.remembered[0].turn.visible) == {"role": "assistant", "content": "so"}


def test_after_the_tool_was_withdrawn_the_model_answers() -> None:
    """The usual end of a long reading."""
    turn = play([reading("h0"), reading("h1"), saying("so")], rounds=2)
    assert [reopen.tool for reopen in turn.reopened] == [True, False]
    assert assemble(turn.chunks)["finish"] == ["stop"]


# -- later rounds that fail


LATER = {
    "nothing": b"",
    "the mark alone": DONE,
    "a role": event(HEAD),
    "a role and the mark": event(HEAD) + DONE,
    "half an event": b'data: {"id',
    "garbage": b"<html>\n\n",
}


@pytest.mark.parametrize("kind", LATER)
def test_an_empty_round_after_a_hidden_one_is_an_error(kind: str) -> None:
    """It is never taken for an answer."""
    turn = play([reading(), LATER[kind]])
    assert error_of(turn)["code"] == "upstream_broken"
    assert assemble(turn.chunks)["finish"] == []
    assert not turn.remembered


def test_a_break_in_a_hidden_call_or_after_it() -> None:
    """Text so far was sent, the call is not shown, nothing is read."""
    turn = play([stream(HEAD, chunk({"content": "Hel"}), calls(call(0, "h", TOOL, '{"re')), done=False)], broken=True)
    assert error_of(turn)["code"] == "upstream_broken"
    assert assemble(turn.chunks)["content"] == "Hel"
    assert not turn.reads
    turn = play([reading(), stream(HEAD, chunk({"content": "lo"}), done=False)], broken=True)
    assert error_of(turn)["code"] == "upstream_broken"
    assert assemble(turn.chunks)["content"] == "lo"


def test_text_and_the_mark_without_a_finish_are_an_answer() -> None:
    """Some upstreams never send a finish: none is invented."""
    turn = play([reading(), stream(HEAD, chunk({"content": "x"}))])
    assert turn.sent.endswith(DONE)
    assert assemble(turn.chunks)["finish"] == []
    assert not turn.finished.aborted


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_the_upstreams_error_in_a_later_round(line_end: bytes) -> None:
    """It reaches the client as it was said, and nothing after it."""
    failed = (event(ERROR) + DONE).replace(b"\n", line_end)
    for every in (0, 1):
        turn = play([reading(), failed], every=every)
        assert turn.chunks[-1] == ERROR
        assert b"[DONE]" not in turn.sent
        assert turn.finished.aborted


REFUSALS = {
    "object": (b'{"error":{"message":"full","code":429}}', {"message": "full", "code": 429}),
    "array": (b'[{"error":{"message":"full"}}]', {"message": "full"}),
    "html": (b"<html>", None),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_of_a_later_round(kind: str) -> None:
    """In a stream it is an error event with the upstream's own error, if there is one."""
    body, expected = REFUSALS[kind]
    script = Playbook()
    (
        script
        >> Opened()
        >> Received(reading())
        << Emit
        << CloseUpstream()
        >> Ended()
        << Read
        >> Answered(("x",))
        << Reopen
    )
    script >> Refused(429, body)
    own = {
        "message": "The upstream answered with status 429.",
        "type": "ullage_error",
        "param": None,
        "code": "upstream_refused",
    }
    script << (lambda c: events_of(c.data) == [{"error": expected or own}])
    script << (lambda c: isinstance(c, Finished) and c.aborted)
    script.end()


def test_a_later_round_that_is_never_opened() -> None:
    """No connection is an error event, too."""
    script = Playbook()
    (
        script
        >> Opened()
        >> Received(reading())
        << Emit
        << CloseUpstream()
        >> Ended()
        << Read
        >> Answered(("x",))
        << Reopen
    )
    script >> Broke("no connection") << sends(b"no connection") << Finished
    script.end()


def test_a_first_round_that_is_refused() -> None:
    """While nothing was sent the answer is the upstream's."""
    script = Playbook()
    script >> Refused(400, b"no") << Refuse(400, b"no") << Finished(None, None, aborted=True)
    script.end()


def test_a_whole_body_in_a_later_round_of_a_stream() -> None:
    """The client goes on reading its stream."""
    for body, expected in (
        (whole({"content": "done"}), chunk({}, "stop")),
        (json.dumps(ERROR).encode(), ERROR),
    ):
        script = Playbook()
        (
            script
            >> Opened()
            >> Received(reading())
            << Emit
            << CloseUpstream()
            >> Ended()
            << Read
            >> Answered(("x",))
            << Reopen
        )
        told = script.machine.receive(Body(body))
        sent = b"".join(command.data for command in told if isinstance(command, Emit))
        assert events_of(sent)[-1] == expected
        assert isinstance(told[-1], Finished)
    script = Playbook()
    (
        script
        >> Opened()
        >> Received(reading())
        << Emit
        << CloseUpstream()
        >> Ended()
        << Read
        >> Answered(("x",))
        << Reopen
    )
    script >> Body(b"<html>") << sends(b"upstream_broken") << Finished
    script.end()


# -- whole bodies


BODIES = {
    "answer": whole({"content": "hi", "reasoning": "r"}),
    "client's calls": whole({"content": None, "tool_calls": [tool_call("a", "f", "{}")]}, "tool_calls"),
    "error": b'{"error": {"message": "High load"}}',
    "garbage": b"<html>",
    "nothing": b"",
    "odd": b'{"choices": [{"message": {"tool_calls": {}}}]}',
}


@pytest.mark.parametrize("tool", [TOOL, None])
@pytest.mark.parametrize("kind", BODIES)
def test_whole_bodies_without_a_read_pass(kind: str, tool: str | None) -> None:
    """Byte for byte, errors and garbage included."""
    turn = play_whole([BODIES[kind]], tool=tool)
    assert turn.sent == BODIES[kind]
    assert not turn.finished.aborted


def test_whole_bodies_with_a_hidden_round() -> None:
    """Text and reasoning of the round stand in front, usage is merged, everything else is the last answer's."""
    first = whole({"content": "look ", "reasoning": "r1", "tool_calls": [tool_call("h1")]}, "tool_calls")
    last = whole({"content": "done", "reasoning": "r2", "refusal": None}, id="r2", x=1.5)
    turn = play_whole([first, last])
    got = json.loads(turn.sent)
    assert got["choices"][0]["message"] == {
        "role": "assistant",
        "content": "look done",
        "reasoning": "r1r2",
        "refusal": None,
    }
    assert got["usage"] == {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
    assert (got["id"], got["x"], got["choices"][0]["finish_reason"]) == ("r2", 1.5, "stop")
    kinds = [type(command) for command in turn.commands]
    assert kinds == [Read, Reopen, Remember, Emit, Finished]
    assert decoded(turn.reopened[0].messages)[0]["tool_calls"] == [tool_call("h1")]
    assert turn.finished.usage == {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


def test_whole_bodies_in_json_mode() -> None:
    """Text before a hidden call would break the JSON, so it is left out; in a stream it has flowed already."""
    first = whole({"content": "look", "tool_calls": [tool_call("h1")]}, "tool_calls")
    turn = play_whole([first, whole({"content": "{}"})], json_mode=True)
    assert json.loads(turn.sent)["choices"][0]["message"]["content"] == "{}"
    assert turn.remembered[0].turn.shown == {}
    streamed = play([stream(HEAD, chunk({"content": "look"}), OURS, chunk({}, "stop")), saying("{}")], json_mode=True)
    assert assemble(streamed.chunks)["content"] == "look{}"


def test_a_mixed_whole_body() -> None:
    """Ours are taken out and read, the client's and everything else stay."""
    made = [tool_call("h1"), tool_call("c1", "f", "{}", x=1), tool_call("h2", arguments={"ref": "off_b"})]
    turn = play_whole([whole({"content": "a", "tool_calls": made}, "tool_calls", y=[1.0])])
    got = json.loads(turn.sent)
    assert got["choices"][0]["message"]["tool_calls"] == [made[1]]
    assert (got["choices"][0]["finish_reason"], got["y"], got["usage"]) == ("tool_calls", [1.0], USAGE)
    assert [position for position, _ in turn.remembered[0].turn.calls] == [0, 2]
    assert [type(command) for command in turn.commands] == [Read, Remember, Emit, Finished]


def test_a_whole_body_whose_call_was_cut() -> None:
    """The finish stays, the call goes."""
    turn = play_whole([whole({"content": None, "tool_calls": [tool_call("h1", arguments='{"re')]}, "length")])
    choice = json.loads(turn.sent)["choices"][0]
    assert choice == {"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "length"}
    assert not turn.reads


def test_whole_bodies_without_end() -> None:
    """The rounds are bounded; then it is an error, or the text that came with the last call."""
    reads = [whole({"content": None, "tool_calls": [tool_call(f"h{i}")]}, "tool_calls") for i in range(5)]
    turn = play_whole(reads, rounds=2)
    assert turn.refused is not None
    assert turn.refused.status == 502
    assert b"rounds_exhausted" in turn.refused.body
    assert TOOL.encode() not in turn.refused.body + turn.sent
    text = whole({"content": "so", "tool_calls": [tool_call("h")]}, "tool_calls")
    choice = json.loads(play_whole([reads[0], text], rounds=1).sent)["choices"][0]
    assert choice == {"index": 0, "message": {"role": "assistant", "content": "so"}, "finish_reason": "stop"}


def test_later_whole_bodies_that_fail() -> None:
    """Errors are relayed with their status; an answer that cannot be read, or none, is a 502."""
    first = whole({"content": None, "tool_calls": [tool_call("h1")]}, "tool_calls")
    error = b'{"error": {"message": "High load"}}'
    assert play_whole([first, error]).sent == error
    assert play_whole([first, error]).finished.aborted
    told: list[tuple[Event, int]] = [(Body(b"<html>"), 502), (Broke("reset"), 502), (Refused(429, error), 429)]
    for failure, status in told:
        script = Playbook(streaming=False)
        script >> Body(first) << Read >> Answered(("x",)) << Reopen >> failure << Refuse << Finished
        script.end()
        turn = Playbook(streaming=False).machine
        commands = [c for item in (Body(first), Answered(("x",)), failure) for c in turn.receive(item)]
        assert [c.status for c in commands if isinstance(c, Refuse)] == [status]


def test_a_stream_after_a_whole_body_is_no_answer() -> None:
    """The client waits for one body; an upstream that begins to stream in a later round has failed."""
    script = Playbook(streaming=False)
    script >> Body(whole({"content": None, "tool_calls": [tool_call("h1")]}, "tool_calls")) << Read
    script >> Answered(("x",)) << Reopen >> Opened() >> Received(saying("done")) >> Ended() << Refuse << Finished
    script.end()


def test_a_whole_answer_to_a_stream_request() -> None:
    """It is handled as what it is."""
    script = Playbook()
    script >> Body(BODIES["answer"]) << Emit(BODIES["answer"]) << Finished
    script.end()
