"""Calls are put together from every dialect of deltas, and known for ours or the client's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from proxy.core.calls import Call, Calls, Owner, index_of, restored_routes
from proxy.core.wire.raw import write
from tests.playbook import TOOL, call, tool_call

Delta = dict[str, Any]
Seen = tuple[str | None, str, str]
Dialect = tuple[list[Delta], list[Seen]]


def collect(*deltas: Delta) -> Calls:
    """Return the calls of one message, each delta in a chunk of its own."""
    collected = Calls((TOOL,))
    for delta in deltas:
        collected.add([write(delta)])
    return collected


def seen(collected: Calls) -> list[Seen]:
    """Return id, name and arguments of all calls."""
    return [(json.loads(bytes(c.id)) if c.id else None, c.name, c.arguments) for c in collected]


ONE: list[Seen] = [("a", "f", '{"k":1}')]
TWO: list[Seen] = [*ONE, ("b", "g", "{}")]
DIALECTS: dict[str, Dialect] = {
    "whole": ([call(0, "a", "f", '{"k":1}'), call(1, "b", "g", "{}")], TWO),
    "fragments": ([call(0, "a", "f", ""), call(0, None, None, '{"k"'), call(0, None, None, ":1}")], ONE),
    "interleaved": (
        [
            call(0, "a", "f", ""),
            call(1, "b", "g", ""),
            call(1, None, None, "{"),
            call(0, None, None, '{"k":1}'),
            call(1, None, None, "}"),
        ],
        TWO,
    ),
    "index 0 for all": ([call(0, "a", "f", '{"k":1}'), call(0, "b", "g", "{}")], TWO),
    "no index": ([call(None, "a", "f", '{"k":1}'), call(None, "b", "g", "{"), call(None, None, None, "}")], TWO),
    "null index": ([{**call(0, "a", "f", '{"k":1}'), "index": None}], ONE),
    "odd index": ([{**call(0, "a", "f", '{"k":1}'), "index": "zero"}, {**call(0, "b", "g", "{}"), "index": 1e99}], TWO),
    "head repeated": ([call(0, "a", "f", '{"k"'), call(0, "a", "f", ":1}")], ONE),
    "head and tail under other indices": (
        [call(0, "a", "f", '{"k":1}'), call(0, "b", "g", ""), call(1, None, None, "{"), call(1, None, None, "}")],
        TWO,
    ),
    "known id wins": ([call(0, "a", "f", ""), call(1, "b", "g", "{}"), call(1, "a", None, '{"k":1}')], TWO),
    "id first": (
        [{"index": 0, "id": "a", "type": "function"}, call(0, None, "f"), call(0, None, None, '{"k":1}')],
        ONE,
    ),
    "id last": ([call(0, None, "f", '{"k":1}'), {"index": 0, "id": "a"}], ONE),
    "name in pieces": (
        [call(0, "a", "f", ""), call(0, None, "oo", ""), call(0, None, None, "{}")],
        [("a", "foo", "{}")],
    ),
    "nulls": (
        [
            {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": None}},
            {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": '{"k":1}'}},
            {"index": 0, "function": None},
            {"index": 0},
        ],
        ONE,
    ),
    "empty strings": (
        [call(0, "a", "f", ""), {"index": 0, "id": "", "type": "", "function": {"name": "", "arguments": '{"k":1}'}}],
        ONE,
    ),
    "object arguments": ([call(0, "a", "f", {"k": 1})], ONE),
    "empty object arguments": ([call(0, "b", "g", {})], [("b", "g", "{}")]),
    "no arguments": ([call(0, "b", "g")], [("b", "g", "")]),
    "no ids": ([call(0, None, "f", '{"k":1}'), call(0, None, "g", "{}")], [(None, "f", '{"k":1}'), (None, "g", "{}")]),
    "an id after a whole call without": (
        [call(0, None, "f", '{"k":1}'), call(0, "b", "g", "{}")],
        [(None, "f", '{"k":1}'), ("b", "g", "{}")],
    ),
    "neither ids nor indices": (
        [call(None, None, "f", '{"k":1}'), call(None, None, "g", "{"), call(None, None, None, "}")],
        [(None, "f", '{"k":1}'), (None, "g", "{}")],
    ),
    "custom": (
        [
            {"index": 0, "id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}},
            {"index": 0, "custom": {"input": "y"}},
        ],
        [("a", "f", "xy")],
    ),
}


@pytest.mark.parametrize("kind", DIALECTS)
def test_every_dialect_gives_the_same_calls(kind: str) -> None:
    """However a provider cuts its deltas, ids, names and arguments come out."""
    deltas, expected = DIALECTS[kind]
    assert seen(collect(*deltas)) == expected


def test_deltas_of_one_chunk_are_told_apart() -> None:
    """Several calls in one chunk, and entries that are no objects, do no harm."""
    collected = Calls((TOOL,))
    routes = collected.add([write(x) for x in (call(None, "a", "f", '{"k":1}'), None, 7, call(None, "b", "g", "{}"))])
    assert seen(collected) == TWO
    assert [route.call.position for route in routes] == [0, 1]


OWNERS: dict[str, tuple[list[Delta], Owner]] = {
    "our name": ([call(0, "a", TOOL, "")], Owner.OURS),
    "our name in pieces": ([call(0, "a", "read_", ""), call(0, None, "offloaded", "")], Owner.OURS),
    "our name, growing": ([call(0, "a", "read_", ""), call(0, None, TOOL, "")], Owner.OURS),
    "no name yet": ([{"index": 0, "id": "a"}], Owner.OPEN),
    "arguments before a name": ([call(0, "a", None, "{")], Owner.OPEN),
    "beginning of our name": ([call(0, "a", "read", "")], Owner.OPEN),
    "client's tool with the beginning of our name": (
        [call(0, "a", "read", ""), call(0, None, None, "{")],
        Owner.THEIRS,
    ),
    "client's tool with our name and more": ([call(0, "a", TOOL, ""), call(0, None, "_2", "")], Owner.THEIRS),
    "another name": ([call(0, "a", "f", "")], Owner.THEIRS),
    "another case": ([call(0, "a", TOOL.upper(), "")], Owner.THEIRS),
    "custom": ([{"index": 0, "id": "a", "type": "custom", "custom": {"name": TOOL, "input": ""}}], Owner.THEIRS),
}


@pytest.mark.parametrize("kind", OWNERS)
def test_whose_a_call_is(kind: str) -> None:
    """Ours is what has exactly our name; while that is open, so is the owner."""
    deltas, owner = OWNERS[kind]
    collected = collect(*deltas)
    assert [c.owner for c in collected] == [owner]
    assert collected.has(owner)
    assert len(collected.of(owner)) == 1


def test_the_end_of_a_turn_ends_names() -> None:
    """A call that stopped at the beginning of our name was the client's."""
    collected = collect(call(0, "a", "read", ""), call(1, "b", TOOL, ""))
    assert not collected.are_theirs()
    collected.settle_names()
    assert [c.owner for c in collected] == [Owner.THEIRS, Owner.OURS]
    assert collect(call(0, "a", "f", "")).are_theirs()
    assert not Calls((TOOL,)).are_theirs()


def test_without_a_tool_every_call_is_the_clients() -> None:
    """A turn that only relays knows no name of ours."""
    collected = Calls(())
    collected.add([write(call(0, "a", TOOL, ""))])
    assert collected.are_theirs()


def test_a_call_keeps_unknown_keys() -> None:
    """Signatures and other extensions of a call go back with it, wherever they came."""
    extra = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    collected = collect(
        call(0, "a", TOOL, "", **extra), {"index": 0, "function": {"arguments": "{}", "x": 1.50}, "y": None}
    )
    (made,) = collected
    assert json.loads(bytes(made.encode())) == {
        "id": "a",
        "type": "function",
        "function": {"name": TOOL, "arguments": "{}", "x": 1.5},
        **extra,
    }


def test_our_calls_are_made_fit_to_go_back() -> None:
    """They get an id each, none twice, and arguments that strict upstreams can parse; the client's are left alone."""
    collected = collect(
        call(0, None, TOOL, '{"ref":"x"}'),
        call(1, None, TOOL, "no json"),
        call(2, "c", "f", "cut"),
        call(3, "d", TOOL, ""),
    )
    collected.settle_names()
    collected.mend(b"salt")
    encoded = [json.loads(bytes(c.encode())) for c in collected]
    ids = [c["id"] for c in encoded]
    assert len(set(ids)) == 4
    assert ids[2:] == ["c", "d"]
    assert all(len(identity) == 9 and identity.isalnum() for identity in ids[:2])
    assert [c["function"]["arguments"] for c in encoded] == ['{"ref":"x"}', "{}", "cut", "{}"]
    again = collect(call(0, None, TOOL, '{"ref":"x"}'))
    again.mend(b"salt")
    assert [bytes(c.encode()) for c in again] == [bytes(next(iter(collected)).encode())]


def test_whole_calls_stay_as_they_came() -> None:
    """A call that has everything keeps its bytes; ids that stand twice are told apart; objects become text."""
    arguments = rb'"{\"ref\": \"\u00e9\"}"'
    good = b'{"id":"a","type":"function","function":{"name":"read_offloaded","arguments":%s},"x":1.0}' % arguments
    collected = Calls((TOOL,))
    collected.take([write(1), *map(write, (tool_call("a", "f", "cut"), tool_call("z", arguments={"ref": "x"})))])
    assert [c.owner for c in collected] == [Owner.THEIRS, Owner.OURS]
    collected = Calls((TOOL,))
    collected.take([*map(Raw, (good, good)), write(tool_call("z", arguments={"ref": "x"}))])
    collected.mend(b"")
    first, second, third = collected
    assert bytes(first.encode()) == good
    assert json.loads(bytes(second.encode()))["id"] != "a"
    assert json.loads(bytes(third.encode()))["function"]["arguments"] == '{"ref":"x"}'


def restored(*deltas: Delta, held: int, arguments: str) -> list[list[Delta]]:
    """Return the last deltas of one call, which were held back, after its arguments were restored."""
    collected = Calls((TOOL,))
    routes = [collected.add([write(delta)]) for delta in deltas]
    next(iter(collected)).restore(arguments)
    kept = restored_routes(routes[-held:])
    return [[{key: json.loads(bytes(value)) for key, value in route.delta.items()} for route in each] for each in kept]


def test_restored_arguments_come_in_one_piece() -> None:
    """What the client does not have yet comes with the first delta; those that bring nothing else are dropped."""
    pieces = [call(0, None, None, text) for text in ("ab", "cd", "ef")]
    assert restored(call(0, "a", "f", "x"), *pieces, held=2, arguments="xab-long") == [
        [call(0, None, None, "-long")],
        [],
    ]
    signed = {**pieces[2], "extra": "s"}
    assert restored(call(0, "a", "f", ""), pieces[0], signed, held=2, arguments="y") == [
        [call(0, None, None, "y")],
        [{**call(0, None, None, ""), "extra": "s"}],
    ]
    whole_call = call(0, "a", "f", {"k": "x"})
    assert restored(whole_call, held=1, arguments='{"k":"y"}') == [[call(0, "a", "f", {"k": "y"})]]


def test_other_calls_are_not_touched_by_a_restored_one() -> None:
    """Their deltas are the same objects."""
    collected = Calls((TOOL,))
    routes = collected.add([write(call(0, "a", "f", "x")), write(call(1, "b", "g", "y"))])
    assert restored_routes([routes]) == [tuple(routes)]
    next(iter(collected)).restore("z")
    ((first, second),) = restored_routes([routes])
    assert first.text == "z"
    assert second is routes[1]


def test_a_declined_call_is_answered_here() -> None:
    """It goes back as the model wrote it, free text too, and is never shown."""
    made = {"id": "p", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    collected = Calls((TOOL,))
    collected.take([write(made)])
    (one,) = collected
    one.decline("no")
    collected.mend(b"")
    assert (one.owner, one.answer, json.loads(bytes(one.encode()))) == (Owner.OURS, "no", made)


def test_an_index_is_a_small_number() -> None:
    """What cannot be an index is none."""
    assert [index_of({"index": write(x)}) for x in (0, 12, None, "1", -1, 1.5, 10**30)] == [0, 12, *[None] * 5]
    assert index_of({}) is None


@given(
    st.lists(
        st.sampled_from(
            [call(0, "a", "f", "x"), call(1, "b", TOOL, "y"), call(None, None, None, "z"), {}, {"function": 3}]
        )
    )
)
def test_positions_are_the_order_of_appearance(deltas: list[Delta]) -> None:
    """Calls are counted from 0 in the order in which they opened."""
    collected = collect(*deltas)
    assert [c.position for c in collected] == list(range(len(collected)))
    assert all(isinstance(c, Call) for c in collected)


@pytest.mark.parametrize("cut", range(1, len("compact_conversation")))
def test_there_may_be_more_tools_of_ours(cut: int) -> None:
    """A call is open while its name may still become one of them, and theirs once it cannot."""
    name = "compact_conversation"
    collected = Calls((TOOL, name))
    for piece in (name[:cut], name[cut:]):
        assert not collected.has(Owner.THEIRS)
        collected.add([Raw(json.dumps({"index": 0, "function": {"name": piece}}).encode())])
    collected.settle_names()
    assert [call.name for call in collected.of(Owner.OURS)] == [name]
    other = Calls((TOOL, name))
    other.add([Raw(json.dumps({"index": 0, "function": {"name": name[:cut] + "!"}}).encode())])
    assert other.has(Owner.THEIRS)
