"""What leaves is what came, what was held back, or what was edited."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from proxy.core.outlet import Outlet, Piece
from proxy.core.rounds import Round
from proxy.core.wire.chat_stream import read_chunk
from tests.playbook import DONE, TOOL, USAGE, call, calls, chunk, event, events_of, options, usage_chunk


class Bench:
    """An outlet with its round."""

    def __init__(self, **changes: Any) -> None:
        chosen = options(**changes)
        self.round = Round(chosen.tool)
        self.outlet = Outlet(chosen, self.round)

    def piece(self, value: dict[str, Any]) -> Piece:
        """Return a chunk as it is handled."""
        found = read_chunk(json.dumps(value).encode())
        assert found is not None
        return Piece(event(value), found, tuple(self.round.route(found.calls)))


def test_frames_leave_in_order_and_once() -> None:
    """What was taken is gone."""
    bench = Bench()
    first, second = event(chunk({"content": "a"})), bench.piece(chunk({"content": "b"}))
    bench.outlet.let_plain(first)
    bench.outlet.let(second)
    assert bench.outlet.take() == first + second.frame
    assert bench.outlet.take() == b""


def test_held_frames_are_released_as_they_came() -> None:
    """Calls, text and comments leave in the order in which they arrived."""
    bench = Bench()
    held = [bench.piece(calls(call(0, "a", "read", ""))), Piece(b": ping\n\n"), bench.piece(chunk({"content": "a"}))]
    for piece in held:
        bench.outlet.hold(piece)
    assert bench.outlet.has_held()
    bench.outlet.release()
    assert bench.outlet.take() == b"".join(piece.frame for piece in held)
    assert not bench.outlet.has_held()


def test_held_frames_are_dropped_but_for_what_is_not_a_call() -> None:
    """When a stream breaks, an open call may be ours; text beside and after it is not."""
    bench = Bench()
    mixed = bench.piece(chunk({"content": "a", "tool_calls": [call(0, "a", "read", "")]}))
    text = bench.piece(chunk({"content": "b"}))
    theirs = bench.piece(calls(call(1, "b", "f", "")))
    for piece in (mixed, text, theirs):
        bench.outlet.hold(piece)
    bench.outlet.drop_held()
    sent = bench.outlet.take()
    assert sent.endswith(text.frame + theirs.frame)
    assert events_of(sent)[0] == chunk({"content": "a"})


@pytest.mark.parametrize(("added", "wants", "leaves"), [(False, False, True), (True, False, False), (True, True, True)])
def test_usage_that_the_gateway_asked_for_is_not_the_clients(added: bool, wants: bool, leaves: bool) -> None:
    """An unasked usage chunk is swallowed only where the gateway caused it."""
    bench = Bench(added_usage=added, wants_usage=wants)
    bench.outlet.let(bench.piece(usage_chunk()))
    bench.outlet.forward(bench.piece(usage_chunk()))
    assert bench.outlet.take() == event(usage_chunk()) * (2 if leaves else 0)


def test_long_answers_are_read_before_they_fill_the_memory() -> None:
    """Frames are kept unread up to a bound; nothing of them is lost."""
    bench = Bench()
    frame = event(chunk({"content": "x" * 100_000}))
    for _ in range(100):
        bench.outlet.let_plain(frame)
        assert bench.round.kept_bytes < 5_000_000
    bench.outlet.splice_in(bench.piece(calls(call(0, "h", TOOL, "{}"))))
    message = json.loads(bytes(bench.round.draft.message(beside_calls=True)["content"]))
    assert message == "x" * 10_000_000


def test_without_a_tool_nothing_is_kept() -> None:
    """A relay needs no memory."""
    bench = Bench(tool=None)
    bench.outlet.let_plain(event(chunk({"content": "a"})))
    assert bench.round.kept == []


def test_a_divided_end_of_line_is_made_whole() -> None:
    """A frame that is passed where others are dropped has its blank line, however it was cut."""
    bench = Bench()
    for frame in (b"data: x\r\n\r", b"data: x\r\r", b"data: x\n\n", b"data: x"):
        bench.outlet.forward(Piece(frame))
        assert bench.outlet.take() == b"data: x\n\n"


def test_the_end_comes_last() -> None:
    """Finish, what followed it, usage, the mark: in this order, each once."""
    bench = Bench(wants_usage=True)
    moderation = chunk(choices=[], moderation={"x": 1})
    for value in (chunk({"role": "assistant"}), chunk({"content": "a"}, "stop")):
        bench.outlet.edit(bench.piece(value))
    bench.outlet.edit(bench.piece(moderation))
    bench.outlet.edit(bench.piece(chunk({"content": "b"})))
    bench.round.usage_chunk = bench.piece(usage_chunk()).chunk
    bench.round.is_done = True
    assert events_of(bench.outlet.take()) == [
        chunk({"role": "assistant"}),
        chunk({"content": "a"}),
        chunk({"content": "b"}),
    ]
    bench.outlet.ending(None, Raw(json.dumps(USAGE).encode()))
    sent = bench.outlet.take()
    assert events_of(sent) == [chunk({}, "stop"), moderation, usage_chunk()]
    assert sent.endswith(DONE)


def test_an_event_of_our_own_stands_alone() -> None:
    """After an event without a blank line one is put in."""
    bench = Bench()
    bench.outlet.event(b"{}")
    bench.outlet.event(b"{}", after_rest=True)
    assert bench.outlet.take() == b"data: {}\n\n\n\ndata: {}\n\n"
