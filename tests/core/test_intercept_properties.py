"""What holds for every turn of the interceptor: one answer, whatever its rounds are, wherever they are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from proxy.core.intercept import Answered, Body, Broke, Emit, Ended, Finished, Interceptor, Opened, Received, Refused
from tests.playbook import (
    DONE,
    TOOL,
    Turn,
    assemble,
    call,
    calls,
    chunk,
    event,
    events_of,
    options,
    play,
    reading,
    saying,
    stream,
    tool_call,
    usage_chunk,
    whole,
)

HEAD = chunk({"role": "assistant", "content": ""})
OURS = calls(call(0, "h1", TOOL, '{"ref":"off_a"}'))
THEIRS = calls(call(1, "c1", "f", "{}"))
ERROR = {"error": {"message": "High load", "type": "server_error", "code": None}}
ARGUMENTS = '{"ref":"off_a"}'

DIALECTS = ["openai", "whole", "index 0", "no index", "repeat", "nulls", "pieces"]
LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
NOISES = st.sampled_from([b"", b": ping\n\n", b"event: ping\n\n", b"\n"])
WORDS = st.sampled_from(["a ", "é", "漢字 ", "🙂", '"finish_reason":"stop"', "[DONE]", "data: x\n\n", ""])


def deltas_of(number: int, name: str, arguments: str, dialect: str) -> list[dict[str, Any]]:
    """Return the deltas of one call."""
    identity = f"{name[:1]}{number}"
    index = {"index 0": 0, "no index": None}.get(dialect, number)
    parts = [arguments[i : i + 3] for i in range(0, len(arguments), 3)]
    rest = [call(index, None, None, part) for part in parts]
    if dialect in ("whole", "index 0", "no index"):
        return [call(index, identity, name, arguments)]
    if dialect == "repeat":
        return [call(index, identity, name, part) for part in parts]
    if dialect == "nulls":
        head = {"index": index, "id": identity, "type": "function", "function": {"name": name, "arguments": None}}
        nulls = {"index": index, "id": "", "type": None}
        return [head, *({**nulls, "function": {"name": None, "arguments": part}} for part in parts)]
    if dialect == "pieces":
        half = len(name) // 2
        return [call(index, identity, name[:half], ""), call(index, None, name[half:], ""), *rest]
    return [call(index, identity, name, ""), *rest]


class Scene:
    """A round made at random, with what it says."""

    def __init__(self, draw: st.DrawFn, number: int, *, is_last: bool) -> None:
        self.text, self.reasoning = "", ""
        self.theirs: list[tuple[str, str, str]] = []
        dialect = draw(st.sampled_from(DIALECTS))
        chunks = [chunk({"role": "assistant", "content": draw(st.sampled_from(["", None]))})]
        plan = self.plan(draw, is_last=is_last)
        for at, kind in enumerate(plan):
            place = sum(k in ("ours", "theirs") for k in plan[:at])
            chunks += self.said(draw, kind) if kind in ("text", "thought") else self.called(draw, kind, place, dialect)
        self.finish = "tool_calls" if self.theirs else "stop"
        chunks.append(chunk({}, self.finish if is_last else draw(st.sampled_from(["stop", "tool_calls"]))))
        if draw(st.booleans()):
            chunks.append(usage_chunk())
        for item in chunks:
            item["id"], item["created"] = f"c{number}", number
        self.is_done = draw(st.booleans())
        self.data = self.framed(draw, [event(item) for item in chunks])

    def plan(self, draw: st.DrawFn, *, is_last: bool) -> list[str]:
        """Return what comes in which order; a hidden round has one or two calls of ours."""
        plan = draw(st.lists(st.sampled_from(["text", "thought", *(["theirs"] if is_last else [])]), max_size=5))
        if not is_last:
            plan.insert(draw(st.integers(0, len(plan))), "ours")
            plan += ["ours"] if draw(st.booleans()) else []
        return plan

    def said(self, draw: st.DrawFn, kind: str) -> list[dict[str, Any]]:
        """Return a chunk of text or reasoning."""
        word = draw(WORDS)
        if kind == "text":
            self.text += word
            return [chunk({"content": word})]
        self.reasoning += word
        return [chunk({"reasoning_content": word})]

    def called(self, draw: st.DrawFn, kind: str, place: int, dialect: str) -> list[dict[str, Any]]:
        """Return the chunks of a call."""
        name = TOOL if kind == "ours" else draw(st.sampled_from(["f", "read", "read_offloaded_files"]))
        if kind == "theirs":
            self.theirs.append((f"{name[:1]}{place}", name, ARGUMENTS))
        return [calls(delta) for delta in deltas_of(place, name, ARGUMENTS, dialect)]

    def framed(self, draw: st.DrawFn, frames: list[bytes]) -> bytes:
        """Return the stream, with noise somewhere, in some line ends, perhaps without the last blank line."""
        frames.insert(draw(st.integers(0, len(frames))), draw(NOISES))
        data = (b"".join(frames) + (DONE if self.is_done else b"")).replace(b"\n", draw(LINE_ENDS))
        is_open = draw(st.booleans()) and data.rstrip(b"\r\n").endswith((b"}", b"[DONE]"))
        return data.rstrip(b"\r\n") if is_open else data


@st.composite
def scenes(draw: st.DrawFn) -> list[Scene]:
    """Draw a turn: hidden rounds, then the last."""
    hidden = draw(st.integers(0, 2))
    return [Scene(draw, number, is_last=number == hidden) for number in range(hidden + 1)]


def leaks(sent: bytes) -> bool:
    """Say whether our tool shows; the client may have one whose name begins with ours."""
    return TOOL.encode() in sent.replace(b"read_offloaded_files", b"")


def assert_same(turn: Turn, expected: Turn) -> None:
    """Two turns sent the same bytes, and gave the same commands beside that."""
    assert turn.sent == expected.sent
    others = [[c for c in each.commands if not isinstance(c, Emit)] for each in (turn, expected)]
    assert others[0] == others[1]


@given(scenes(), st.booleans())
def test_every_turn_is_one_answer(turn: list[Scene], wants_usage: bool) -> None:
    """All text in order, the client's calls whole, one role, one finish, nothing of ours; unspliced: every byte."""
    played = play([scene.data for scene in turn], wants_usage=wants_usage)
    assert len(played.reopened) == len(turn) - 1
    assert not played.finished.aborted
    if len(turn) == 1:
        assert played.sent == turn[0].data
        return
    last = turn[-1]
    assert not leaks(played.sent)
    message = assemble(played.chunks)
    assert message["content"] == "".join(scene.text for scene in turn)
    assert message["reasoning_content"] == "".join(scene.reasoning for scene in turn)
    assert (message["role"], message["finish"]) == ("assistant", [last.finish])
    assert list(message["calls"]) == list(range(len(last.theirs)))
    assert [(c["id"], c["name"], c["arguments"]) for c in message["calls"].values()] == last.theirs
    assert {(item["id"], item["created"]) for item in played.chunks if item["choices"]} == {("c0", 0)}
    usages = [position for position, item in enumerate(played.chunks) if item.get("usage")]
    assert usages in ([], [len(played.chunks) - 1] * wants_usage)
    assert played.sent.endswith(DONE) is last.is_done


@given(scenes())
@settings(max_examples=settings().max_examples // 3)
def test_the_answer_does_not_depend_on_the_split(turn: list[Scene]) -> None:
    """One byte at a time, or seven, the same bytes leave."""
    rounds = [scene.data for scene in turn]
    expected = play(rounds, wants_usage=True)
    for every in (1, 7):
        assert_same(play(rounds, every=every, wants_usage=True), expected)


@given(scenes(), st.data())
def test_nor_on_any_two_cuts(turn: list[Scene], draw: st.DataObject) -> None:
    """Cut in any two places, it is the same answer."""
    rounds = [scene.data for scene in turn]
    places = st.integers(0, sum(map(len, rounds)))
    cuts = [draw.draw(places), draw.draw(places)]
    assert_same(play(rounds, cuts=cuts, wants_usage=True), play(rounds, wants_usage=True))


NAMED_READ = [call(0, "a", "read", ""), call(0, None, None, "{"), call(0, None, None, "}")]
OPEN_NAME = calls(call(0, "h", "read_", ""))
NAME_ENDS = calls(call(0, None, "offloaded", "{}"))
SPLIT_SCENES: dict[str, list[bytes]] = {
    "hidden": [b": c\n\n" + reading(), saying("done é")],
    "hidden, CRLF": [reading().replace(b"\n", b"\r\n"), saying("done").replace(b"\n", b"\r\n")],
    "hidden, CR": [reading().replace(b"\n", b"\r"), saying("done").replace(b"\n", b"\r")],
    "mixed": [b"\xef\xbb\xbf" + stream(HEAD, OURS, THEIRS, chunk({}, "tool_calls"))],
    "held": [stream(HEAD, *map(calls, NAMED_READ), chunk({}, "stop"))],
    "held, then ours": [
        stream(HEAD, OPEN_NAME, done=False)
        + b": c\n\n"
        + stream(chunk({"content": "é"}), NAME_ENDS, chunk({}, "stop")),
        saying("done"),
    ],
    "late": [stream(HEAD, chunk({}, "stop"), OURS, usage_chunk()).replace(b"\n", b"\r\n")],
    "broken": [stream(HEAD, OPEN_NAME, chunk({"content": "é"}), done=False) + b"data: {"],
    "error": [reading(), event(ERROR).replace(b"\n", b"\r\n")],
}


@pytest.mark.parametrize("kind", SPLIT_SCENES)
def test_every_place_to_cut(kind: str) -> None:
    """Each byte position of a scene is a place where the network may cut."""
    rounds = SPLIT_SCENES[kind]
    expected = play(rounds, wants_usage=True)
    for place in range(1, sum(map(len, rounds))):
        assert_same(play(rounds, cuts=[place], wants_usage=True), expected)
    assert_same(play(rounds, every=1, wants_usage=True), expected)


@given(scenes(), st.data())
def test_a_turn_cut_anywhere_ends_as_it_should(turn: list[Scene], draw: st.DataObject) -> None:
    """Wherever the last round stops: no half event, no leak, and an error unless its end had been seen."""
    *hidden, last = [scene.data for scene in turn]
    kept = last[: draw.draw(st.integers(0, len(last)))]
    played = play([*hidden, kept], broken=draw.draw(st.booleans()))
    assert not leaks(played.sent)
    message = assemble(item for item in played.chunks if "choices" in item)
    assert message["finish"] or played.sent.rstrip().endswith(b"data: [DONE]") or played.finished.aborted
    assert sum(bool(item.get("error")) for item in events_of(played.sent)) == played.finished.aborted


FRAGMENTS = st.sampled_from(
    [
        *(b"data: ", b"data:", b"\n", b"\r", b"\n\n", b"[DONE]", b": c", b"event: error\n"),
        *(b"\xef\xbb\xbf", b"\xff", b"{", b"}", b"data: " + b"[" * 2000),
        *map(event, (HEAD, OURS, THEIRS, chunk({}, "stop"), usage_chunk(), ERROR)),
        DONE,
        event(OPEN_NAME),
        event(calls(call(None, None, "offloaded", ""))),
        event({"choices": [1, None]}),
        event({"choices": [{"delta": {"tool_calls": [1, None, {"function": 1}, {"index": "a"}]}}]}),
        event(calls(call(0, None, TOOL, [1]))),
    ]
)
EVENTS = st.one_of(
    st.lists(FRAGMENTS | st.binary(max_size=5), max_size=6).map(lambda parts: Received(b"".join(parts))),
    st.lists(FRAGMENTS, max_size=3).map(lambda parts: Body(b"".join(parts))),
    st.sampled_from([Opened(), Ended(), Broke("x"), Answered(()), Answered(("a", "b"))]),
    st.sampled_from([Refused(500, b"x"), Refused(400, b'{"error":{}}')]),
    st.sampled_from([whole({"content": "a", "tool_calls": [tool_call("h")]}), whole({"tool_calls": [1, {}]})]).map(
        Body
    ),
)


@given(st.lists(EVENTS, max_size=12), st.booleans(), st.sampled_from([TOOL, None]))
@settings(max_examples=settings().max_examples * 5)
def test_no_bytes_and_no_order_of_events_raise(told: list[Any], streaming: bool, tool: str | None) -> None:
    """Whatever is told, in whatever order: there are commands, and at most one end, which comes last."""
    machine = Interceptor(options(streaming=streaming, tool=tool, rounds=2))
    commands = [command for item in told for command in machine.receive(item)]
    ends = [position for position, command in enumerate(commands) if isinstance(command, Finished)]
    assert ends in ([], [len(commands) - 1])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_official_client_reads_a_spliced_stream(dialect: str) -> None:
    """Its own accumulator makes one plain answer of it, the client's calls included."""
    ours = [calls(delta) for delta in deltas_of(0, TOOL, ARGUMENTS, dialect)]
    theirs = [calls(delta) for delta in deltas_of(1, "f", '{"k":1}', dialect)]
    rounds = [
        stream(HEAD, chunk({"content": "one "}), *ours, chunk({}, "stop"), usage_chunk()),
        stream(HEAD, chunk({"content": "two"}), *ours, *theirs, chunk({}, "tool_calls"), usage_chunk(id="c9")),
    ]
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for item in play(rounds, wants_usage=True).chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(item))
    completion = state.get_final_completion()
    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("one two", "tool_calls")
    (made,) = choice.message.tool_calls or []
    assert (made.id, made.function.name, made.function.arguments) == ("f1", "f", '{"k":1}')
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 10
