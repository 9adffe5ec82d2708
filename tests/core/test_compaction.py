"""What leaves the context: when, how far, in which order, and what is never touched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.compaction import Bounds, Compaction, Knobs, Reduction, Scene, Unit, units
from proxy.core.history import History, Slot
from tests.core.conversations import Message, conversations
from tests.core.test_history import assistant, history, tool, user

SYSTEM: Message = {"role": "system", "content": "s"}
STUB = 20  # tokens of a stub
BARE = 10  # tokens of a message without its texts
FRAME, PIN_LINE = 400, 12  # tokens of a block, and of the line above a pin
ALL = Knobs(inputs_over_characters=500, takes_results=True, folds=True, keep_steps=2)
RESULTS = Knobs(takes_results=True, keep_steps=2)
FOLDS = Knobs(folds=True, keep_steps=2)


def step(result: int = 0, argument: int = 0) -> list[Message]:
    """A call with an input of so many characters, and its answer."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": "i" * argument})}}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, tool("c", "r" * result)]


def scene(messages: Sequence[Message], **fields: Any) -> Scene:
    """A request in which a character of a text that can leave is a token."""
    told = history(*messages)
    return Scene(
        **{
            "history": told,
            "sizes": [BARE + sum(slot.size_bytes for slot in facts.slots) for facts in told.facts],
            "overhead_tokens": 0,
            "stubbed": frozenset(),
            "tokens": lambda _, slot: slot.size_bytes,
            "characters": lambda _, slot: slot.size_bytes,
            "saving": saving,
            "folded": told.leading,
            "block_tokens": 0,
            **fields,
        }
    )


def saving(_: int, slot: Slot) -> int:
    """What a stub saves."""
    return slot.size_bytes - STUB if slot.size_bytes >= 2 * STUB else 0


def find(shown: Scene, knobs: Knobs, trigger: int = 0, target: int = 0, limit: int = 10**9) -> Reduction | None:
    """The compaction of a scene."""
    bounds = Bounds(trigger_tokens=trigger, limit_tokens=limit, target_tokens=target)
    return Compaction(shown, bounds, knobs).find()


def total(shown: Scene, knobs: Knobs, cut: int | None = None) -> int:
    """Tokens of a scene with a block up to a cut."""
    return Compaction(shown, Bounds(0, 0, 0), knobs).total(cut)


def kinds(found: Reduction | None) -> list[tuple[int, str]]:
    """What a compaction takes: message and kind of text."""
    return [] if found is None else [(taken.message, taken.slot.kind) for taken in found.taken]


# 0 system, 1 goal, 2-3 a large result, 4-5 a large input, 6-7, 8-9 newest
WORK = [SYSTEM, user("goal"), *step(result=5000), *step(argument=3000), *step(result=50), *step(result=5000)]


def test_units_are_steps() -> None:
    """An assistant message and all its answers are one, everything else stands alone; leading messages are outside."""
    messages = [SYSTEM, user("x"), assistant(None, ("c", "f"), ("d", "f")), tool("d", "2"), tool("c", "1"), user("y")]
    told = history(*messages, SYSTEM, assistant("ok"), assistant("more"), tool("stray", "?"))
    assert units(told) == [Unit(1, 2), Unit(2, 5), Unit(5, 6), Unit(6, 7), Unit(7, 8), Unit(8, 10)]
    assert units(history()) == units(history(SYSTEM)) == []


@given(conversations())
def test_units_cover_the_chain_once(growth: list[list[Message]]) -> None:
    """No message is in two steps or in none."""
    told = history(*growth[-1])
    borders = [told.leading, *(unit.stop for unit in units(told))]
    assert [unit.start for unit in units(told)] == borders[:-1]
    assert borders[-1] == len(told)


@pytest.mark.parametrize(("below", "is_due"), [(1, False), (0, True), (-1, True)])
def test_nothing_happens_below_the_trigger(below: int, *, is_due: bool) -> None:
    """One token too few and the prefix stays as it is."""
    shown = scene(WORK)
    assert (find(shown, ALL, trigger=total(shown, ALL) + below) is not None) is is_due


@pytest.mark.parametrize(
    ("target", "taken", "cut"),
    [
        (10_200, [(4, "input")], None),
        (10_174, [(4, "input")], None),
        (10_173, [(3, "result"), (4, "input")], None),
        (5_000, [(3, "result"), (4, "input")], None),
        (0, [(3, "result"), (4, "input")], None),
    ],
)
def test_inputs_go_before_results(target: int, taken: list[tuple[int, str]], cut: int | None) -> None:
    """Results stay where the inputs are enough, and without folding that is all that can be done."""
    knobs = msgspec.structs.replace(ALL, folds=False)
    found = find(scene(WORK), knobs, target=target)
    assert found is not None
    assert (sorted(kinds(found)), found.cut, found.is_forced) == (taken, cut, False)


def test_the_oldest_span_goes_last() -> None:
    """A block is made only where inputs and results are not enough, and ends as early as the target allows."""
    talk = [message for _ in range(6) for message in (assistant("ok"), user("u" * 900))]
    shown = scene([SYSTEM, user("goal"), *step(result=2000), *talk, *step(), *step()])
    knobs = msgspec.structs.replace(ALL, pin_tokens=0)
    whole = total(shown, knobs)
    enough = find(shown, knobs, target=whole - 1980)
    assert enough is not None
    assert (kinds(enough), enough.cut) == ([(3, "result")], None)
    cuts = []
    for target in range(whole - 1981, 0, -40):
        found = find(shown, knobs, target=target)
        assert found is not None
        assert found.cut is not None
        assert kinds(found) == [(3, "result")]
        cuts.append(found.cut)
        if found.cut < 16:  # else the latest that is allowed
            assert found.tokens <= target
            earlier = msgspec.structs.replace(found, cut=found.cut - 1)
            assert total(applied(shown, earlier), knobs, earlier.cut) > target
    assert cuts == sorted(cuts)
    assert len(set(cuts)) > 3
    assert cuts[-1] == 16, "the two newest steps stay"


@pytest.mark.parametrize(
    ("knobs", "taken"),
    [
        (Knobs(), []),
        (Knobs(inputs_over_characters=500, keep_steps=2), [(4, "input")]),
        (Knobs(inputs_over_characters=3000, keep_steps=2), []),
        (Knobs(takes_results=True, keep_steps=2), [(3, "result")]),
        (Knobs(takes_results=True, keep_steps=0), [(3, "result")]),
        (Knobs(takes_results=True, keep_steps=4), []),
        (Knobs(takes_results=True, keep_steps=99), []),
        (Knobs(takes_results=True, keep_steps=1, keep_messages=6), [(3, "result")]),
        (Knobs(takes_results=True, keep_steps=1, keep_messages=7), []),
    ],
)
def test_knobs(knobs: Knobs, taken: list[tuple[int, str]]) -> None:
    """Policies say what may go and how much stays; the newest step stays whatever they say."""
    found = find(scene(WORK), knobs)
    assert kinds(found) == taken
    assert (found is None) is (not taken)


@pytest.mark.parametrize(
    ("size", "tokens", "is_taken"),
    [(999, 999, False), (1000, 1000, True), (4000, 999, False), (4000, 1000, True)],
)
def test_small_results_stay(size: int, tokens: int, *, is_taken: bool) -> None:
    """A result under a thousand tokens is worth no stub, and one of fewer bytes is not even counted."""
    shown = scene([user("goal"), *step(result=size), *step(), *step()], tokens=lambda *_: tokens)
    assert kinds(find(shown, RESULTS)) == ([(2, "result")] if is_taken else [])


def test_what_saves_nothing_or_left_already_is_not_taken() -> None:
    """A text that is a stub, or whose stub would not be smaller, is left alone."""
    told = scene(WORK)
    at = told.history.facts[2 + 1].slots[0].at
    assert kinds(find(told, RESULTS)) == [(3, "result")]
    assert find(scene(WORK, stubbed=frozenset({(3, at)})), RESULTS) is None
    assert find(scene(WORK, saving=lambda *_: 0), RESULTS) is None
    assert find(scene(WORK, folded=4, block_tokens=100), RESULTS) is None, "what is in a block does not leave again"


@pytest.mark.parametrize(("overhead", "is_made"), [(44_726, True), (44_727, False)])
def test_a_break_must_free_a_tenth(overhead: int, *, is_made: bool) -> None:
    """The provider reads everything anew, so small gains are left; not where the request would not fit."""
    shown = scene([user("goal"), *step(result=5000), *step(), *step()], overhead_tokens=overhead)
    before = total(shown, RESULTS)
    assert (before <= 10 * (5000 - STUB)) is is_made
    found = find(shown, RESULTS)
    assert (found is not None) is is_made
    forced = find(shown, RESULTS, limit=before - 1)
    assert forced is not None
    assert (forced.is_forced, forced.tokens) == (True, before - 5000 + STUB)
    assert find(shown, RESULTS, limit=before) == found, "at the limit it still fits"


def test_a_block_that_would_not_help_is_not_made() -> None:
    """A block of a few short messages is larger than they are."""
    shown = scene([user("goal"), *[assistant("ok")] * 9])
    assert find(shown, FOLDS) is None
    assert find(shown, FOLDS, limit=10) is None, "not even where it does not fit"


# 0 goal, 1 and 3 long user texts, 2, 4-5, 6 the newest user text, 7-8 and 9-10 steps
LONG = [
    user("g" * 900),
    user("a" * 900),
    assistant("ok"),
    user("b" * 900),
    *step(result=5000),
    user("n" * 900),
    *step(result=1500),
    *step(result=3000),
]
FORCED = Knobs(takes_results=True, folds=True, keep_steps=2, pin_tokens=0)


@pytest.mark.parametrize(
    ("limit", "taken", "cut"),
    [
        (8700, [(5, "result")], None),
        (8000, [(5, "result")], 4),
        (7600, [(5, "result")], 6),
        (7550, [(5, "result"), (1, "user")], 7),
        (7000, [(5, "result"), (1, "user"), (3, "user")], 7),
        (6800, [(5, "result"), (1, "user"), (3, "user")], 9),
        (100, [(5, "result"), (1, "user"), (3, "user")], 9),
    ],
)
def test_what_gives_way_at_the_limit(limit: int, taken: list[tuple[int, str]], cut: int | None) -> None:
    """Results, then the span, then user texts, oldest first, then steps; the newest step stays."""
    found = find(scene(LONG), FORCED, target=limit, limit=limit)
    assert found is not None
    assert (kinds(found), found.cut, found.is_forced) == (taken, cut, True)
    assert {t.reason for t in found.taken if t.slot.kind == "user"} <= {"over_window"}
    assert {t.reason for t in found.taken if t.slot.kind != "user"} == {"compaction"}


def test_the_limit_may_be_below_the_target() -> None:
    """Where a long answer leaves less than the target, the order is the same and it goes down to the limit."""
    below = find(scene(LONG), FORCED, target=10**6, limit=7600)
    assert below is not None
    assert below == find(scene(LONG), FORCED, target=7600, limit=7600)
    assert (kinds(below), below.cut) == ([(5, "result")], 6)


@pytest.mark.parametrize(
    ("narrative", "limit", "taken", "narrates"),
    [
        (300, 7900, [(5, "result")], True),
        (300, 7600, [(5, "result")], False),
        (50_000, 7600, [(5, "result")], False),
        (50_000, 7550, [(5, "result"), (1, "user")], False),
    ],
)
def test_a_summary_gives_way_before_the_user(
    narrative: int, limit: int, taken: list[tuple[int, str]], *, narrates: bool
) -> None:
    """Where there is no room for a summary the block goes without, and only then user texts leave."""
    knobs = msgspec.structs.replace(FORCED, narrative_tokens=narrative)
    found = find(scene(LONG), knobs, target=limit, limit=limit)
    assert found is not None
    assert (kinds(found), found.narrates) == (taken, narrates)
    assert found.cut is not None
    assert found.tokens <= limit


def test_below_the_limit_nobody_gives_way() -> None:
    """An unreachable target alone costs neither user texts nor kept steps."""
    found = find(scene(LONG), FORCED, target=0)
    assert found is not None
    assert (kinds(found), found.is_forced) == ([(5, "result")], False)
    assert found.cut is None or found.cut <= 7


def test_without_folding_only_user_texts_give_way() -> None:
    """Where the preset makes no blocks there is none at the limit either."""
    found = find(scene(LONG), msgspec.structs.replace(FORCED, folds=False), limit=100)
    assert found is not None
    assert (kinds(found), found.cut) == ([(5, "result"), (1, "user"), (3, "user")], None)


def test_short_user_texts_are_no_sacrifice() -> None:
    """Up to 400 tokens a user's words are worth more than what they cost."""
    messages = [user("g"), user("a" * 401), user("b" * 400), user("n"), *step(result=5000)]
    assert kinds(find(scene(messages), FORCED, limit=100)) == [(1, "user")]


def test_what_cannot_fit_gets_its_smallest_form() -> None:
    """A block that only makes it larger is no way out, and does not undo what results saved."""
    shown = scene([user("g"), user("a" * 450), *step(result=2000), user("n"), *step()])
    found = find(shown, FORCED, limit=100)
    assert found is not None
    assert (kinds(found), found.cut) == ([(3, "result"), (1, "user")], None)
    assert found.tokens == sum(shown.sizes) - (2000 + 450 - 2 * STUB)


@pytest.mark.parametrize("messages", [[], [SYSTEM], [user("x" * 5000)], [assistant("x"), tool("c", "r" * 5000)]])
def test_there_may_be_nothing_to_take(messages: list[Message]) -> None:
    """Histories of one step or none stay as they are, whatever the limit."""
    assert find(scene(messages, overhead_tokens=5000), ALL, limit=1) is None


def test_total_counts_what_would_be_sent() -> None:
    """Leading messages, the goal, system messages in the span, the block with its pins, and all behind it."""
    messages = [
        SYSTEM,
        user("g" * 2000),
        assistant("x"),
        user("p" * 50),
        SYSTEM,
        user("q" * 9000),
        *step(result=100),
        user("n" * 5000),
        *step(),
    ]
    shown = scene(messages, overhead_tokens=7)
    sizes = shown.sizes
    knobs = Knobs(pin_tokens=1000, narrative_tokens=300)
    front = 7 + sizes[0] + sizes[1]
    pin = sizes[3] + PIN_LINE
    long_pin = 1000 + FRAME + PIN_LINE
    assert total(shown, knobs) == total(shown, knobs, 1) == 7 + sum(sizes)
    assert total(shown, knobs, 2) == front + FRAME + 300 + sum(sizes[2:])
    assert total(shown, knobs, 4) == front + FRAME + 300 + pin + sum(sizes[4:])
    assert total(shown, knobs, 8) == front + FRAME + 300 + pin + sizes[4] + long_pin + sum(sizes[8:])
    newest = sizes[8] + PIN_LINE
    assert total(shown, knobs, 9) == front + FRAME + 300 + pin + sizes[4] + long_pin + newest + sum(sizes[9:])


def test_total_with_a_block_in_force() -> None:
    """The block that is there counts as it is, a later one is estimated."""
    shown = scene(WORK, folded=4, block_tokens=123)
    assert total(shown, ALL) == total(shown, ALL, 4) == sum(shown.sizes[:2]) + 123 + sum(shown.sizes[4:])
    assert total(shown, ALL, 6) == sum(shown.sizes[:2]) + FRAME + sum(shown.sizes[6:])


KNOBS = st.builds(
    Knobs,
    inputs_over_characters=st.none() | st.integers(100, 1000),
    takes_results=st.booleans(),
    folds=st.booleans(),
    keep_steps=st.integers(0, 4),
    keep_messages=st.integers(0, 6),
    pin_tokens=st.sampled_from([0, 100, 1000]),
    narrative_tokens=st.sampled_from([0, 0, 500]),
)
STEPS = st.builds(step, st.sampled_from([0, 500, 1500, 4000]), st.sampled_from([0, 0, 600, 3000]))
USERS = st.sampled_from([0, 300, 500, 3000]).map(lambda n: [user("u" * n)])
OTHERS = st.sampled_from([[SYSTEM], [assistant("ok")], [tool("stray", "?" * 2000)]])
TALKS = conversations().map(lambda growth: growth[-1]) | st.lists(STEPS | STEPS | USERS | OTHERS, max_size=14).map(
    lambda turns: [message for turn in turns for message in turn]
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Scene, Bounds, Knobs]:
    """A request, with or without a block in force, and bounds about its size."""
    told = scene(draw(TALKS), overhead_tokens=draw(st.sampled_from([0, 300])))
    starts = [told.history.leading, *(unit.start for unit in units(told.history)[1:])]
    folded = draw(st.sampled_from(starts))
    block = draw(st.integers(1, 900)) if folded > told.history.leading else 0
    shown = msgspec.structs.replace(told, folded=folded, block_tokens=block)
    knobs = draw(KNOBS)
    whole = total(shown, knobs)
    limit = int(whole * draw(st.floats(0.2, 1.5)))
    trigger = int(min(limit, whole) * draw(st.floats(0.2, 1))) + draw(st.sampled_from([0, 0, 0, 1]))
    return shown, Bounds(min(trigger, limit), limit, int(trigger * draw(st.floats(0, 1)))), knobs


def applied(shown: Scene, found: Reduction) -> Scene:
    """The scene after what was found has left."""
    sizes = list(shown.sizes)
    for taken in found.taken:
        sizes[taken.message] -= saving(0, taken.slot)
    stubbed = shown.stubbed | {(taken.message, taken.slot.at) for taken in found.taken}
    return msgspec.structs.replace(shown, sizes=sizes, stubbed=stubbed)


def called(told: History, index: int) -> int:
    """The message that holds the calls which this one answers."""
    block = told.block_at(index)
    return index if block is None else block.start


@given(cases())
def test_laws_of_compactions(case: tuple[Scene, Bounds, Knobs]) -> None:
    """Whatever the request is: what a compaction may not do, and that it is what it says of itself."""
    shown, bounds, knobs = case
    found = Compaction(shown, bounds, knobs).find()
    before, told = total(shown, knobs), shown.history
    if found is not None and not found.narrates:
        knobs = msgspec.structs.replace(knobs, narrative_tokens=0)
    assert found is None or before >= bounds.trigger_tokens
    if found is None:
        return
    assert found.is_forced is (before > bounds.limit_tokens)
    assert found.tokens == total(applied(shown, found), knobs, found.cut)
    assert found.tokens < before
    assert found.is_forced or 10 * (before - found.tokens) >= before
    if found.cut is not None:
        assert knobs.folds
        assert shown.folded < found.cut < len(told)
        assert all(called(told, i) >= found.cut for i in range(found.cut, len(told))), "calls go with their answers"
    places = [(taken.message, taken.slot.at) for taken in found.taken]
    assert len(places) == len(set(places))
    assert all(t.message >= shown.folded for t in found.taken if t.slot.kind != "user"), "what is in a block is gone"
    users = [i for i, facts in enumerate(told.facts) if facts.role == "user"]
    assert not {i for i, _ in places} & set(users[:1] + users[-1:])
    if not found.is_forced:
        kept = units(told)[-max(1, knobs.keep_steps) :]
        last = min(kept[0].start, max(told.leading, len(told) - knobs.keep_messages))
        assert max([i for i, _ in places], default=-1) < last
        assert found.cut is None or found.cut <= last
        assert all(taken.slot.kind != "user" for taken in found.taken)


@given(cases())
def test_what_was_reduced_is_not_reduced_again(case: tuple[Scene, Bounds, Knobs]) -> None:
    """After a compaction that reached the trigger's other side the next request is left alone."""
    shown, bounds, knobs = case
    found = Compaction(shown, bounds, knobs).find()
    if found is None:
        return
    if not found.narrates:
        knobs = msgspec.structs.replace(knobs, narrative_tokens=0)
    after = applied(shown, found)
    if found.cut is not None:
        block = found.tokens - total(msgspec.structs.replace(after, folded=found.cut, block_tokens=0), knobs)
        after = msgspec.structs.replace(after, folded=found.cut, block_tokens=block)
    assert total(after, knobs) == found.tokens
    again = Compaction(after, bounds, knobs).find()
    assert again is None or found.tokens >= bounds.trigger_tokens
