"""The interceptor and stubs that a model copies into a call: what the client gets, what the model is told, and when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.intercept import (
    Answered,
    Body,
    Broke,
    CloseUpstream,
    Command,
    Emit,
    Ended,
    Event,
    Finished,
    Interceptor,
    Opened,
    Read,
    Received,
    Remember,
    Reopen,
    ToolUse,
)
from tests.core.copies import (
    DAMAGED,
    GUARD,
    HEAD,
    ORIGINAL,
    OTHER,
    REF,
    STUB,
    Stubs,
    ref_of,
    spell_shortly,
    spell_usually,
    spelled,
    stub_of,
)
from tests.core.test_intercept_properties import DIALECTS, assert_same, deltas_of
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
    options,
    play,
    play_whole,
    saying,
    sends,
    stream,
    tool_call,
    usage_chunk,
    whole,
)

ROLE = chunk({"role": "assistant", "content": None})
END = chunk({}, "tool_calls")
PREFIX = '{"path": "a.md", "content": "'
COPY = json.dumps({"path": "a.md", "content": f"# Title\n{STUB}\nend"})
RESTORED = json.dumps({"path": "a.md", "content": f"# Title\n{ORIGINAL}\nend"}, ensure_ascii=False)
BAD = json.dumps({"path": "a.md", "content": DAMAGED})
OURS = calls(call(7, "h1", TOOL, '{"ref":"x"}'))


def written(arguments: str, index: int = 0, name: str = "write", size: int = 9) -> list[dict[str, Any]]:
    """Return the chunks of a call whose arguments come in pieces of this size."""
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    head = calls(call(index, f"c{index}", name, ""))
    return [head, *(calls(call(index, None, None, piece)) for piece in pieces)]


def at_once(arguments: str, index: int = 0, name: str = "write") -> dict[str, Any]:
    """Return the one chunk of a call."""
    return calls(call(index, f"c{index}", name, arguments))


def same_for_any_cut(rounds: Sequence[bytes], most_cuts: int = 40, **changes: Any) -> Turn:
    """Play a turn, and check that it is the same when it comes byte by byte, or in two pieces cut here and there."""
    turn = play(rounds, guard=GUARD, **changes)
    assert_same(play(rounds, every=1, guard=GUARD, **changes), turn)
    total = sum(map(len, rounds))
    for cut in range(1, total, 1 + total // most_cuts):
        assert_same(play(rounds, cuts=[cut], guard=GUARD, **changes), turn)
    return turn


def arguments_of(turn: Turn) -> list[str]:
    """Return the arguments of the calls that the client got."""
    return [made["arguments"] for made in assemble(turn.chunks)["calls"].values()]


def told(reopen: Reopen) -> list[Any]:
    """Return the hidden messages of a turn."""
    return [json.loads(message) for message in reopen.messages]


def failed(turn: Turn) -> bool:
    """Say whether a stream ended as one error event about a copied stub, and said nothing after it."""
    errors = [item["error"]["code"] for item in turn.chunks if item.get("error")]
    assert turn.finished.aborted is bool(errors)
    return errors == ["copied_stub"] and "error" in turn.chunks[-1] and b"[DONE]" not in turn.sent


# -- exact copies


def test_a_call_flows_until_a_stub_may_begin_and_goes_on_restored() -> None:
    """Nothing from the bracket on leaves; at the end the original comes in one piece, then the finish."""
    script = Playbook(guard=GUARD)
    before = stream(ROLE, *written(PREFIX), done=False)
    script >> Opened() >> Received(before) << Emit(before)
    bracket = event(calls(call(0, None, None, "# [")))
    script >> Received(bracket)
    for piece in (spelled(STUB, spell_shortly)[1:30], spelled(STUB, spell_shortly)[30:], ' end"}'):
        script >> Received(event(calls(call(0, None, None, piece))))
    script >> Received(b": ping\n\n") >> Received(event(END)) >> Received(DONE) << CloseUpstream() >> Ended()
    rest = "# " + json.dumps(ORIGINAL, ensure_ascii=False)[1:-1] + ' end"}'
    script << (lambda c: events_of(c.data) == [calls(call(0, None, None, rest)), END] and c.data.endswith(DONE))
    script << (lambda c: json.loads(c.visible)["tool_calls"][0]["function"]["arguments"] == PREFIX + rest)
    script.end()


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_a_restored_call_in_any_pieces(size: int) -> None:
    """The client puts one call together, with the text in the place of the stub; the turn is one answer."""
    data = stream(ROLE, chunk({"content": "so "}), *written(COPY, size=size), END)
    turn = play([data], guard=GUARD)
    message = assemble(turn.chunks)
    assert message["calls"] == {0: {"id": "c0", "name": "write", "arguments": RESTORED}}
    assert (message["content"], message["role"], message["finish"]) == ("so ", "assistant", ["tool_calls"])
    assert turn.sent.endswith(DONE)
    assert (turn.reopened, turn.remembered, turn.finished.aborted) == ([], [], False)
    visible = json.loads(turn.finished.visible or b"")
    assert visible == {"role": "assistant", "content": "so ", "tool_calls": [tool_call("c0", "write", RESTORED)]}


def test_a_restored_call_does_not_depend_on_the_split() -> None:
    """In any line ends, between noise, and wherever the network cuts it, the same bytes leave."""
    data = b": a\n\n" + stream(ROLE, *written(COPY), *written("{}", 1), usage_chunk(), done=False)
    data += b": b\n\n" + stream(END, usage_chunk())
    for line_end in (b"\n", b"\r\n", b"\r"):
        turn = same_for_any_cut([data.replace(b"\n", line_end)], most_cuts=200, wants_usage=True)
        assert arguments_of(turn) == [RESTORED, "{}"]
        assert turn.chunks[-1]["usage"] == USAGE


def test_what_follows_a_copy_keeps_its_order() -> None:
    """Text, further calls and further copies wait with it; indices and ids are the model's."""
    second = json.dumps([STUB, stub_of(OTHER, "user")])
    parts = [*written("{}"), *written(COPY, 1), chunk({"content": "and"}), *written(second, 2), at_once("[1]", 3)]
    turn = same_for_any_cut([stream(ROLE, *parts, END)])
    seen = assemble(turn.chunks)
    assert [made["id"] for made in seen["calls"].values()] == ["c0", "c1", "c2", "c3"]
    assert arguments_of(turn) == [
        "{}",
        RESTORED,
        json.dumps([ORIGINAL, OTHER], ensure_ascii=False).replace(", ", ", "),
        "[1]",
    ]
    order = [key for item in turn.chunks for key in item["choices"][0]["delta"]]
    assert order[-4:] == ["content", "tool_calls", "tool_calls", "tool_calls"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_restored_call_in_every_dialect(dialect: str) -> None:
    """The second of two calls; nothing is said twice."""
    deltas = [*deltas_of(0, "first", "{}", dialect), *deltas_of(1, "second", COPY, dialect)]
    turn = same_for_any_cut([stream(ROLE, *map(calls, deltas), END)])
    entries = [entry for item in turn.chunks for entry in item["choices"][0]["delta"].get("tool_calls", [])]
    texts = [entry["function"].get("arguments") or "" for entry in entries]
    assert "".join(texts) == "{}" + RESTORED
    assert (TOOL in "".join(texts)) is False
    names = "".join(dict.fromkeys(entry["function"].get("name") or "" for entry in entries))
    assert names == "firstsecond"


def test_arguments_that_are_an_object_stay_one() -> None:
    """Some upstreams send no text; what they send is restored and not wrapped."""
    value = {"content": STUB, "n": 1}
    for turn in (
        play([stream(ROLE, calls(call(0, "c0", "write", value)), END)], guard=GUARD),
        play_whole([whole({"tool_calls": [tool_call("c0", "write", value)]}, "tool_calls")], guard=GUARD),
    ):
        choice = (turn.chunks[1] if turn.chunks else json.loads(turn.sent))["choices"][0]
        (made,) = (choice.get("delta") or choice["message"])["tool_calls"]
        assert made["function"]["arguments"] == {"content": ORIGINAL, "n": 1}


def custom(text: str, **more: Any) -> dict[str, Any]:
    """Return a call of a custom tool, or a piece of its input."""
    return {"custom": {"input": text, **({"name": "patch"} if more else {})}, **more}


def test_the_input_of_a_custom_tool() -> None:
    """It is free text: restored as it is, declined as any other."""
    text = f"*** Begin\n{STUB}\n*** End"
    restored = text.replace(STUB, ORIGINAL)
    head = custom("", index=0, id="p", type="custom")
    pieces = [{**custom(text[at : at + 5]), "index": 0} for at in range(0, len(text), 5)]
    turn = same_for_any_cut([stream(ROLE, calls(head), *map(calls, pieces), END)])
    entries = [entry for item in turn.chunks for entry in item["choices"][0]["delta"].get("tool_calls", [])]
    assert "".join(entry["custom"]["input"] for entry in entries) == restored
    made = {"id": "p", "type": "custom", "custom": {"name": "patch", "input": text}}
    (got,) = json.loads(play_whole([whole({"tool_calls": [made]})], guard=GUARD).sent)["choices"][0]["message"][
        "tool_calls"
    ]
    assert got == {**made, "custom": {"name": "patch", "input": restored}}
    bad = {**made, "custom": {"name": "patch", "input": DAMAGED}}
    for turn in (
        play_whole([whole({"tool_calls": [bad]}, "tool_calls"), whole({"content": "x"})], guard=GUARD),
        play([stream(ROLE, calls({**bad, "index": 0}), END), saying("x")], guard=GUARD),
    ):
        assert told(turn.reopened[0])[0]["tool_calls"] == [bad], "free text goes back as it was"


def test_every_place_to_cut() -> None:
    """Each byte position of a turn with a copy in it is a place where the network may cut."""
    guard = Stubs("a\nb")
    data = stream(ROLE, *written(json.dumps([stub_of("a\nb")]), size=40), END)
    expected = play([data], guard=guard)
    assert arguments_of(expected) == ['["a\\nb"]']
    for cut in range(1, len(data)):
        assert_same(play([data], cuts=[cut], guard=guard), expected)


# -- what is no copy


LOOK_ALIKES = {
    "words": '{ "path":"b.md", "content":"off_ [offloaded] off_abc ... [truncated] \\u00e9", "n":1.0}',
    "bare refs": json.dumps({"ref": REF, "refs": [f"[{REF}]", f"see {ref_of(OTHER)}"]}),
    "unknown ref": json.dumps([stub_of("of somebody else")]),
    "almost": json.dumps(f"[offloaded {REF[:-1]}"),
    "brackets": json.dumps([[[1], "[", "[o", "[offloaded off_"]]),
    "no json": "[offloaded off_",
}


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("kind", LOOK_ALIKES)
def test_look_alikes_pass_unchanged(kind: str, size: int) -> None:
    """Byte for byte, comments and odd usage included."""
    arguments = LOOK_ALIKES[kind]
    data = stream(ROLE, *written(arguments, size=size), END, usage_chunk(), done=False) + b": x\n\nid: 4\n\n" + DONE
    assert same_for_any_cut([data]).sent == data
    body = whole({"content": STUB, "tool_calls": [tool_call("c0", "write", arguments)]}, "tool_calls")
    assert play_whole([body], guard=GUARD).sent == body


def test_nothing_waits_that_cannot_be_a_head() -> None:
    """Each frame leaves before the next one is there; one that ends like a head waits for exactly one more."""
    script = Playbook(guard=GUARD)
    script >> Opened()
    for item in (ROLE, *written('{"list":[1,2],"of', size=4)):
        script >> Received(event(item)) << Emit(event(item))
    first, second = event(calls(call(0, None, None, "a [offl"))), event(calls(call(0, None, None, "ine] b")))
    script >> Received(first) >> Received(b": ping\n\n") >> Received(second) << Emit(first + b": ping\n\n" + second)
    last = event(calls(call(0, None, None, "[")))
    script >> Received(last) >> Received(event(END)) << Emit(last + event(END))
    script >> Received(DONE) << Emit(DONE) >> Ended() << Finished
    script.end()


def test_the_assistants_text_is_never_touched() -> None:
    """A stub in content or reasoning is what the model says; it is not even delayed."""
    for key in ("content", "reasoning_content"):
        script = Playbook(guard=GUARD)
        data = event(chunk({key: STUB}))
        script >> Opened() >> Received(data) << Emit(data)
    data = stream(ROLE, chunk({"content": STUB}), *written("{}"), chunk({"content": STUB}), END)
    assert same_for_any_cut([data]).sent == data


def test_without_a_guard_a_stub_is_text() -> None:
    """Where no stubs were sent there are none to be copied."""
    data = stream(ROLE, *written(COPY), END)
    assert play([data]).sent == data
    assert play([data], tool=None).sent == data


def test_a_call_of_the_reading_tool_may_hold_what_it_likes() -> None:
    """It never reaches the client; what the model asks for is the reader's business."""
    asked = json.dumps({"ref": STUB})
    turn = same_for_any_cut([stream(ROLE, *written(asked, name=TOOL), END), saying("x")])
    assert turn.reads[0].calls[0].arguments == asked
    assert assemble(turn.chunks)["content"] == "x"


# -- bad copies


def test_a_bad_copy_is_declined_while_nothing_of_its_call_was_sent() -> None:
    """The model is told what to read, the client sees the text of both rounds, and the turn is remembered."""
    script = Playbook(guard=GUARD, wants_usage=True)
    text = event(ROLE) + event(chunk({"content": "now "}))
    script >> Opened() >> Received(text) << Emit(text)
    script >> Received(event(at_once(BAD)) + event(at_once("{}", 1, "run")) + event(END) + event(usage_chunk()))
    script >> Received(DONE) << CloseUpstream() >> Ended()
    reopen = script.waiting[0]
    assert isinstance(reopen, Reopen)
    message, first, second = told(reopen)
    made = [tool_call("c0", "write", BAD), tool_call("c1", "run", "{}")]
    assert message == {"role": "assistant", "content": "now ", "tool_calls": made}
    assert (first["role"], first["tool_call_id"], second["tool_call_id"]) == ("tool", "c0", "c1")
    assert f'{TOOL}(ref="{REF}")' in first["content"]
    assert "Not executed, because another call" in second["content"]
    script << Reopen >> Opened() >> Received(stream(ROLE, *written("[]", 0, "write"), END, usage_chunk()))
    script << sends(b'"c0"') << CloseUpstream() >> Ended()
    script << (lambda c: isinstance(c, Remember) and [*map(json.loads, c.turn.rounds)] == [message, first, second])
    script << sends(b"tool_calls") << (lambda c: c.usage["prompt_tokens"] == 2 * USAGE["prompt_tokens"])
    script.end()


BAD_ROUNDS = {
    "whole": stream(ROLE, at_once(BAD), END),
    "with a good one": stream(ROLE, calls(call(0, "c0", "write", BAD), call(1, "c1", "write", COPY)), END),
    "two": stream(ROLE, chunk({"tool_calls": [call(0, "c0", "write", BAD)]}), at_once(BAD, 1), END),
    "no finish": stream(ROLE, at_once(BAD)),
    "finish at once": stream({**ROLE}, calls(call(0, "c0", "write", BAD), finish="stop")),
    "no id": stream(ROLE, calls(call(0, None, "write", BAD)), END),
    "no json": stream(ROLE, at_once('{"a": "' + spelled(STUB, spell_usually)), END),
}


@pytest.mark.parametrize("kind", BAD_ROUNDS)
def test_declined_rounds_are_hidden(kind: str) -> None:
    """Nothing of the calls shows; each has an answer with its id, and arguments that strict upstreams take."""
    turn = same_for_any_cut([BAD_ROUNDS[kind], saying("done")])
    assert assemble(turn.chunks)["calls"] == {}
    assert assemble(turn.chunks)["content"] == "done"
    assert b"offloaded" not in turn.sent
    assert turn.reads == []
    message, *answers = told(turn.reopened[0])
    assert [made["id"] for made in message["tool_calls"]] == [answer["tool_call_id"] for answer in answers]
    for made in message["tool_calls"]:
        json.loads(made["function"]["arguments"])
    assert any(REF in answer["content"] for answer in answers)
    (remembered,) = turn.remembered
    assert [*map(json.loads, remembered.turn.rounds)] == [message, *answers]


def test_reads_beside_a_declined_call_are_answered() -> None:
    """The model gets what it asked for, in the order of its calls."""
    data = stream(ROLE, OURS, at_once(BAD), calls(call(8, "h2", TOOL, "{}")), END)
    turn = same_for_any_cut([data, saying("x")])
    (read,) = turn.reads
    assert read.calls == (ToolUse("h1", TOOL, '{"ref":"x"}'), ToolUse("h2", TOOL, "{}"))
    _, *answers = told(turn.reopened[0])
    assert [answer["content"][:12] for answer in answers] == ['answer {"ref', "Not executed", "answer {}"]
    assert answers[1]["tool_call_id"] == "c0"


def test_reads_beside_a_restored_call() -> None:
    """A mixed round as any other: the client has its call, ours is remembered."""
    for parts in ([OURS, *written(COPY)], [*written(COPY), OURS], [at_once("{}", 4), OURS, at_once(COPY)]):
        turn = same_for_any_cut([stream(ROLE, *parts, END)])
        assert arguments_of(turn)[-1] == RESTORED
        assert TOOL.encode() not in turn.sent.replace(b"read_offloaded(ref", b"")
        (remembered,) = turn.remembered
        visible = json.loads(remembered.turn.visible)
        assert visible["tool_calls"][-1]["function"]["arguments"] == RESTORED
        assert len(remembered.turn.calls) == len(remembered.turn.answers) == 1


def test_a_restored_call_after_a_hidden_round() -> None:
    """What is remembered is what the client will send back."""
    turn = same_for_any_cut([stream(ROLE, OURS, END), stream(ROLE, *written(COPY), END)])
    assert arguments_of(turn) == [RESTORED]
    visible = json.loads(turn.remembered[0].turn.visible)
    assert visible["tool_calls"] == [tool_call("c0", "write", RESTORED)]


TOO_LATE = {
    "its head was sent": [stream(ROLE, *written(BAD), END)],
    "another call was sent": [stream(ROLE, *written("{}"), at_once(BAD, 1), END)],
    "in a later round": [stream(ROLE, OURS, END), stream(ROLE, *written(BAD), END)],
    "a good copy before it": [stream(ROLE, *written(COPY), at_once(BAD, 1), END)],
    "cut by length": [stream(ROLE, *written(COPY[:200]), chunk({}, "length"))],
    "no finish": [stream(ROLE, *written(BAD))],
    "after the finish": [stream(ROLE, *written("{}"), END, *written(COPY, 1), usage_chunk())],
    "all after the finish": [stream(ROLE, chunk({}, "stop"), at_once(COPY), chunk({}, "stop"))],
}


@pytest.mark.parametrize("kind", TOO_LATE)
def test_a_call_that_was_begun_ends_as_an_error(kind: str) -> None:
    """The client never gets the end of such a call, nor a finish that lets it run what it has."""
    turn = same_for_any_cut(TOO_LATE[kind])
    assert failed(turn)
    assert b"[offl" not in turn.sent.replace(b'"copied_stub"', b"")
    assert turn.remembered == []
    last = assemble(item for item in turn.chunks if "choices" in item)
    is_late = "after the finish" in kind
    assert last["finish"] == (["stop" if kind.startswith("all") else "tool_calls"] if is_late else [])


def test_the_upstream_is_left_where_an_error_ends_the_turn() -> None:
    """What would still come does not matter."""
    script = Playbook(guard=GUARD)
    begun = stream(ROLE, *written("{}"), END, done=False)
    script >> Opened() >> Received(begun) << Emit(begun)
    script >> Received(event(at_once(COPY, 1))) << CloseUpstream() << sends(b"copied_stub") << Finished
    script.end()


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_stopped_model_is_not_asked_again(finish: str) -> None:
    """What it had begun to call is left out, and the finish stays; a whole copy in a whole call is restored."""
    turn = same_for_any_cut([stream(ROLE, chunk({"content": "a"}), at_once(COPY[:200]), chunk({}, finish))])
    message = assemble(turn.chunks)
    assert (message["content"], message["calls"], message["finish"]) == ("a", {}, [finish])
    assert turn.reopened == []
    restored = same_for_any_cut([stream(ROLE, *written(COPY), chunk({}, finish))])
    assert (arguments_of(restored), assemble(restored.chunks)["finish"]) == ([RESTORED], [finish])
    body = whole({"content": "a", "tool_calls": [tool_call("c0", "write", BAD)]}, finish)
    choice = json.loads(play_whole([body], guard=GUARD).sent)["choices"][0]
    assert choice == {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": finish}


def test_declined_rounds_count() -> None:
    """A model that does not stop copying comes to an end: in an error, whether it wrote a text or not."""
    bad = stream(ROLE, chunk({"content": "a"}), at_once(BAD), END)
    turn = play([bad] * 5, rounds=2, guard=GUARD)
    assert [reopen.tool for reopen in turn.reopened] == [True, False]
    assert failed(turn)
    bodies = [whole({"content": "a", "tool_calls": [tool_call("c0", "write", BAD)]}, "tool_calls")] * 5
    refused = play_whole(bodies, rounds=2, guard=GUARD).refused
    assert refused is not None
    assert (refused.status, b"copied_stub" in refused.body) == (502, True)


# -- streams that break


BROKEN = {
    "in a copy": stream(ROLE, *written(COPY[:200]), done=False),
    "behind a copy": stream(ROLE, *written(COPY), chunk({"content": "b"}), done=False),
    "at a bracket": stream(ROLE, *written("a [offl", size=99), done=False),
    "at a bracket, spliced": stream(ROLE, OURS, *written("a [offl", size=99), chunk({"content": "b"}), done=False),
    "a bad copy": stream(ROLE, at_once(BAD), done=False),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_break_gives_no_copy_away(kind: str) -> None:
    """It is an early end like any other, and nothing is told to the model."""
    for turn in (same_for_any_cut([BROKEN[kind]]), play([BROKEN[kind]], broken=True, guard=GUARD)):
        assert turn.chunks[-1]["error"]["code"] == "upstream_broken"
        assert b"[offloaded" not in turn.sent
        assert ("bracket" in kind) is (b"[offl" in turn.sent)
        assert (turn.reopened, turn.remembered) == ([], [])


def test_an_error_of_the_upstream_gives_no_copy_away() -> None:
    """Its error passes, the call that was held back does not."""
    error = {"error": {"message": "High load"}}
    turn = same_for_any_cut([stream(ROLE, *written(COPY), error)])
    assert turn.chunks[-1] == error
    assert b"[offl" not in turn.sent


# -- whole bodies


def test_a_whole_body_is_restored() -> None:
    """The arguments change, and not a byte beside them; nothing is asked again."""
    odd = {"x": 1.0, "function": {"arguments": COPY, "name": "write", "strict": None}, "id": "c0", "type": "function"}
    body = whole({"content": "a", "tool_calls": [odd, tool_call("c1", "run", '{ "a":1.0}')]}, "tool_calls", y=[1.50])
    turn = play_whole([body], guard=GUARD)
    expected = body.replace(json.dumps(COPY).encode(), json.dumps(RESTORED, ensure_ascii=False).encode())
    assert json.loads(turn.sent) == json.loads(expected)
    assert b'"arguments":"{ \\"a\\":1.0}"' in turn.sent.replace(b'": ', b'":')
    assert [type(command) for command in turn.commands] == [Emit, Finished]
    assert json.loads(turn.finished.visible or b"")["tool_calls"][0]["function"]["arguments"] == RESTORED


def test_a_whole_body_is_declined() -> None:
    """All its calls are answered here, and the next answer is the client's."""
    made = [tool_call("c0", "write", BAD), tool_call("h1"), tool_call("c1", "run", "{}")]
    first = whole({"content": "a ", "tool_calls": made}, "tool_calls")
    turn = play_whole([first, whole({"content": "b"})], guard=GUARD)
    assert json.loads(turn.sent)["choices"][0]["message"]["content"] == "a b"
    assert [type(command) for command in turn.commands] == [Read, Reopen, Remember, Emit, Finished]
    message, *answers = told(turn.reopened[0])
    assert message["tool_calls"] == made
    assert [answer["tool_call_id"] for answer in answers] == ["c0", "h1", "c1"]
    assert turn.reads[0].calls == (ToolUse("h1", TOOL, '{"ref":"off_a"}'),)
    alone = play_whole([whole({"tool_calls": made[:1]}, "tool_calls"), whole({"content": "b"})], guard=GUARD)
    assert [type(command) for command in alone.commands] == [Reopen, Remember, Emit, Finished]


def test_a_whole_body_in_a_later_round_of_a_stream() -> None:
    """It is taken as if it had been streamed."""
    for arguments, restored in ((COPY, [RESTORED]), (BAD, [])):
        machine = Interceptor(options(guard=GUARD))
        commands: list[Command] = []
        body = whole({"content": None, "tool_calls": [tool_call("c0", "write", arguments)]}, "tool_calls")
        for item in (Opened(), Received(stream(ROLE, OURS, END)), Ended(), Answered(("row",)), Body(body)):
            commands += machine.receive(item)
        sent = b"".join(command.data for command in commands if isinstance(command, Emit))
        assert [made["arguments"] for made in assemble(events_of(sent))["calls"].values()] == restored
        assert isinstance(commands[-1], Finished if restored else Reopen)


def test_stubs_that_cannot_be_read_are_watched_as_well() -> None:
    """Where the reading tool cannot be declared a copy is restored all the same, and a bad one is declined."""
    turn = same_for_any_cut([stream(ROLE, *written(COPY), END)], tool=None)
    assert arguments_of(turn) == [RESTORED]
    declined = play([stream(ROLE, at_once(BAD), END), saying("x")], tool=None, guard=GUARD)
    assert "cannot be read" in told(declined.reopened[0])[1]["content"]
    body = whole({"tool_calls": [tool_call("c0", "write", COPY)]}, "tool_calls")
    assert json.loads(play_whole([body], tool=None, guard=GUARD).sent)["choices"][0]["message"]["tool_calls"] == [
        tool_call("c0", "write", RESTORED)
    ]


# -- any turn


ARGUMENTS = st.sampled_from(
    [
        (COPY, RESTORED),
        (spelled(STUB, spell_usually).join(['{"a":"', '[","b":[]}']), None),
        ('{"a":"[[offload [offloaded off_a"}', '{"a":"[[offload [offloaded off_a"}'),
        ("{}", "{}"),
        ("", ""),
        (json.dumps([HEAD[:-10]]), json.dumps([HEAD[:-10]])),
    ]
)


@given(
    st.lists(st.tuples(ARGUMENTS, st.integers(1, 40)), min_size=1, max_size=4),
    st.lists(st.integers(0, 20_000), max_size=4),
    st.sampled_from([b"\n", b"\r\n"]),
)
@settings(max_examples=settings().max_examples // 2)
def test_any_calls_in_any_split(
    made: list[tuple[tuple[str, str | None], int]], cuts: list[int], line_end: bytes
) -> None:
    """The client gets every call in full, copies restored, and the same bytes for every split."""
    chunks = [ROLE]
    expected = []
    for index, ((arguments, restored), size) in enumerate(made):
        chunks += written(arguments, index, size=size)
        original = json.dumps(ORIGINAL, ensure_ascii=False)[1:-1]
        expected.append(f'{{"a":"{original}[","b":[]}}' if restored is None else restored)
    data = stream(*chunks, END).replace(b"\n", line_end)
    turn = play([data], guard=GUARD)
    assert arguments_of(turn) == expected
    assert_same(play([data], cuts=cuts, guard=GUARD), turn)
    if all(arguments == restored for (arguments, restored), _ in made):
        assert turn.sent == data


@given(st.integers(0, 3000), st.booleans(), st.sampled_from([COPY, BAD]), st.booleans())
def test_a_turn_that_stops_anywhere_gives_no_copy_away(at: int, broken: bool, arguments: str, is_whole: bool) -> None:
    """Wherever the stream ends: no known head of a stub has left, and a call ends only restored."""
    made = [at_once(arguments)] if is_whole else written(arguments)
    data = stream(ROLE, *made, END)
    turn = play([data[: at * len(data) // 3000]], broken=broken, guard=GUARD)
    assert HEAD.encode() not in turn.sent
    if turn.commands and isinstance(turn.commands[-1], Finished) and not turn.finished.aborted:
        assert arguments_of(turn) in ([RESTORED], [])


FRAMES = st.sampled_from(
    [
        *written(COPY, size=60)[:4],
        *(at_once(COPY), at_once(BAD, 1), at_once("[", 2), OURS, END, chunk({}, "stop"), usage_chunk()),
        *(calls(call(0, None, None, text)) for text in ("[", HEAD, HEAD[:20], HEAD[20:], "x")),
        *(calls(call(1, "r", "read", "")), calls(call(None, None, None, STUB)), {"error": {"message": "m"}}),
        *(chunk({"content": "a"}), calls(call(3, "d", None, HEAD)), calls({"index": 4, **custom(STUB, id="p")})),
    ]
).map(event) | st.sampled_from([DONE, b": ping\n\n", b"data: {\n\n"])
BODIES = st.sampled_from([COPY, BAD, "{}"]).map(
    lambda text: Body(whole({"content": "a", "tool_calls": [tool_call("c0", "write", text)]}, "tool_calls"))
)
TOLD = st.lists(
    st.lists(FRAMES, max_size=8).map(lambda frames: Received(b"".join(frames)))
    | BODIES
    | st.sampled_from([Opened(), Ended(), Answered(("a",)), Broke("x")]),
    max_size=12,
)


@given(TOLD, st.booleans(), st.sampled_from([TOOL, None]))
@settings(max_examples=settings().max_examples * 3)
def test_no_order_of_events_gives_a_copy_away(told_events: list[Event], streaming: bool, tool: str | None) -> None:
    """Whatever comes in whatever order: nothing raises, the turn ends at most once, and no stub leaves.

    Only behind an error of the upstream's own everything passes as it came.
    """
    machine = Interceptor(options(streaming=streaming, tool=tool, rounds=2, guard=GUARD))
    commands = [command for item in told_events for command in machine.receive(item)]
    ends = [at for at, command in enumerate(commands) if isinstance(command, Finished)]
    assert ends in ([], [len(commands) - 1])
    sent = b"".join(command.data for command in commands if isinstance(command, Emit))
    assert f"[offloaded {REF}".encode() not in sent.partition(b'"error"')[0]
