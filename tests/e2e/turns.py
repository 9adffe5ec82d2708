"""Turns in which the gateway answers reads, and what a client must make of each; both SDKs are tried on all of them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tests.e2e.gateway import KEEPALIVE_SECONDS
from tests.e2e.model import TOOL, Call, call, reads, refs, says
from tests.fakes.upstream import Received, Reply, Scripted, events

Delta = dict[str, Any]


class Turn(Struct, frozen=True):
    """What the model says, round by round, and the one message that comes of it."""

    replies: tuple[Scripted, ...]
    text: str | None
    calls: tuple[Call, ...] = ()
    finish: str = "stop"
    reasoning: str = ""
    completion_tokens: int = 10  # 5 a round


def _streams(*deltas: Delta, finish: str = "tool_calls", **head: object) -> Scripted:
    """Return a round of these deltas exactly, `$REF` standing for the first ref in the request."""

    def reply(received: Received) -> Reply:
        ref = next(iter(refs(received.body)), "")
        chunk = {"id": "chatcmpl-odd", "object": "chat.completion.chunk", "created": 7, "model": "m", **head}
        last: Delta = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        chunks = [{**chunk, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        asked = (received.json.get("stream_options") or {}).get("include_usage")
        tail = [{**chunk, "choices": [], "usage": usage}] if asked else []
        written = events(*chunks, {**chunk, **last}, *tail)
        steps = [s.replace(b"$REF", ref.encode()) if isinstance(s, bytes) else s for s in written.steps]
        return Reply(written.status, written.headers, tuple(steps), written.framing)

    return reply


def _delta(index: int | None = 0, ident: str | None = None, name: str | None = None, text: str | None = None) -> Delta:
    """Return one piece of a call; what is None is left out."""
    function = {"name": name, "arguments": text}
    piece: Delta = {"index": index, "id": ident, "type": "function" if ident else None}
    kept = {key: value for key, value in piece.items() if value is not None}
    return {**kept, "function": {key: value for key, value in function.items() if value is not None}}


def _calls(*pieces: Delta, **more: object) -> Delta:
    return {"tool_calls": list(pieces), **more}


_READ = '{"ref": "$REF"}'
_ROLE: Delta = {"role": "assistant", "content": None}
_THEIRS = call("search", '{"path": "a"}', "c2")

TURNS: dict[str, Turn] = {
    "a read": Turn((says("", reads()), says("seen")), "seen"),
    "text around a read": Turn((says("I look. ", reads()), says("I see.")), "I look. I see."),
    "two rounds": Turn(
        (says("one ", reads()), says("two ", reads("index", "r2")), says("three")),
        "one two three",
        completion_tokens=15,
    ),
    "reads in parallel": Turn((says("", reads(), reads("index", "r2")), says("seen")), "seen"),
    "reasoning": Turn(
        (says("", reads(), reasoning="what is it? "), says("seen", reasoning="a text")),
        "seen",
        reasoning="what is it? a text",
    ),
    "a read before a call": Turn(
        (says("both ", reads(), _THEIRS),), "both ", (_THEIRS,), "tool_calls", completion_tokens=5
    ),
    "a read behind a call": Turn((says("", _THEIRS, reads()),), None, (_THEIRS,), "tool_calls", completion_tokens=5),
    "a read between calls": Turn(
        (says("", call("read_file", "{}", "c1"), reads(), _THEIRS),),
        None,
        (call("read_file", "{}", "c1"), _THEIRS),
        "tool_calls",
        completion_tokens=5,
    ),
    "a call after a read": Turn((says("", reads()), says("now ", _THEIRS)), "now ", (_THEIRS,), "tool_calls"),
    "mixed after a read": Turn(
        (says("first ", reads()), says("then ", reads("index", "r2"), _THEIRS)), "first then ", (_THEIRS,), "tool_calls"
    ),
    "an end by length": Turn((says("", reads()), says("and so", finish="length")), "and so", finish="length"),
    "a slow round": Turn((says("wait ", reads()), says("done", pause_seconds=1.3 * KEEPALIVE_SECONDS)), "wait done"),
}

SPLIT_NAME = "a call whose name begins like ours, in pieces"
STREAMED: dict[str, Turn] = {
    "a name in pieces": Turn(
        (
            _streams(
                _ROLE,
                _calls(_delta(0, "r1", "read_")),
                _calls(_delta(0, None, "offloaded")),
                _calls(_delta(0, None, None, _READ)),
            ),
            says("seen"),
        ),
        "seen",
    ),
    "an id before the name": Turn(
        (
            _streams(
                _ROLE, _calls(_delta(0, "r1")), _calls(_delta(0, None, TOOL, "")), _calls(_delta(0, None, None, _READ))
            ),
            says("seen"),
        ),
        "seen",
    ),
    "a call in one piece": Turn((_streams({**_ROLE, **_calls(_delta(0, "r1", TOOL, _READ))}), says("seen")), "seen"),
    "index 0 for all": Turn(
        (_streams(_ROLE, _calls(_delta(0, "r1", TOOL, _READ)), _calls(_delta(0, "c2", "search", '{"path": "a"}'))),),
        None,
        (_THEIRS,),
        "tool_calls",
        completion_tokens=5,
    ),
    "no index": Turn(
        (_streams(_ROLE, _calls(_delta(None, "r1", TOOL, _READ), _delta(None, "c2", "search", '{"path": "a"}'))),),
        None,
        (_THEIRS,),
        "tool_calls",
        completion_tokens=5,
    ),
    "heads repeated": Turn(
        (
            _streams(_ROLE, _calls(_delta(0, "r1", TOOL, "")), _calls(_delta(0, "r1", TOOL, _READ))),
            _streams(
                {"role": "assistant", "content": "se"}, {"role": "assistant", "content": "en"}, finish="stop", created=9
            ),
        ),
        "seen",
    ),
    "a finish of stop": Turn(
        (_streams(_ROLE, _calls(_delta(0, "r1", TOOL, _READ)), finish="stop"), says("seen")), "seen"
    ),
    SPLIT_NAME: Turn(
        (
            _streams(
                _ROLE,
                _calls(_delta(0, "c1", "read_")),
                _calls(_delta(0, None, "file", "{}")),
                _calls(_delta(1, "r1", TOOL, _READ)),
            ),
        ),
        None,
        (call("read_file", "{}", "c1"),),
        "tool_calls",
        completion_tokens=5,
    ),
}
