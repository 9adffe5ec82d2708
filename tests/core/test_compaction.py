"""What leaves the context: when, how far, in which order, and what is never touched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.compaction import Bounds, Compaction, Knobs, Reduction, Scene, Taken
from proxy.core.history import History
from proxy.core.ledger import Compacted
from proxy.core.selection import Told
from proxy.core.steps import steps
from proxy.core.trail import Act
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
            "head_tokens": 0,
            "calls": 10**6,  # an old conversation that hardly grows: every break pays
            "growth_tokens": 0,
            "told": lambda _: Told("", ()),
            "user_texts": list,
            **fields,
        }
    )


def saving(taken: Taken) -> int:
    """What a stub saves."""
    size = taken.slot.size_bytes
    return size - STUB if size >= 2 * STUB else 0


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
        if 2 < found.cut < 16:  # else the latest that is allowed
            assert found.tokens <= target
            earlier = msgspec.structs.replace(found, cut=found.cut - 2)  # in front of an answer of the assistant
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
WHOLE = msgspec.structs.replace(FORCED, pin_tokens=10**6)  # user texts are pinned whole


@pytest.mark.parametrize(
    ("limit", "knobs", "taken", "cut"),
    [
        (8700, FORCED, [(5, "result")], None),
        (8000, FORCED, [(5, "result")], 2),
        (7755, FORCED, [(5, "result")], 4),
        (7150, FORCED, [(5, "result")], 4),
        (6850, FORCED, [(5, "result"), (1, "user"), (3, "user")], 9),
        (6800, FORCED, [(5, "result"), (1, "user"), (3, "user")], 9),
        (100, FORCED, [(5, "result"), (1, "user"), (3, "user")], 9),
        (8000, WHOLE, [(5, "result"), (1, "user")], None),
        (7150, WHOLE, [(5, "result"), (1, "user"), (3, "user")], None),
        (6000, WHOLE, [(5, "result"), (1, "user"), (3, "user")], 9),
    ],
)
def test_what_gives_way_at_the_limit(limit: int, knobs: Knobs, taken: list[tuple[int, str]], cut: int | None) -> None:
    """Results, then the span, then user texts, oldest first, then steps; the newest step stays."""
    found = find(scene(LONG), knobs, target=limit, limit=limit)
    assert found is not None
    assert (kinds(found), found.cut, found.is_forced) == (taken, cut, True)
    assert {t.reason for t in found.taken if t.slot.kind == "user"} <= {"over_window"}
    assert {t.reason for t in found.taken if t.slot.kind != "user"} == {"compaction"}


def test_the_limit_may_be_below_the_target() -> None:
    """Where a long answer leaves less than the target, the order is the same and it goes down to the limit."""
    below = find(scene(LONG), FORCED, target=10**6, limit=7150)
    assert below is not None
    assert below == find(scene(LONG), FORCED, target=7150, limit=7150)
    assert (kinds(below), below.cut) == ([(5, "result")], 4)


@pytest.mark.parametrize(
    ("narrative", "limit", "taken", "narrates"),
    [
        (300, 7900, [(5, "result")], True),
        (300, 7150, [(5, "result")], False),
        (50_000, 7150, [(5, "result")], False),
        (50_000, 6800, [(5, "result"), (1, "user"), (3, "user")], False),
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
    long_pin = BARE + STUB + PIN_LINE
    assert total(shown, knobs) == total(shown, knobs, 1) == 7 + sum(sizes)
    assert total(shown, knobs, 2) == front + FRAME + 300 + sum(sizes[2:])
    assert total(shown, knobs, 4) == front + FRAME + 300 + pin + sum(sizes[4:])
    assert total(shown, knobs, 8) == front + FRAME + 300 + pin + sizes[4] + long_pin + sum(sizes[8:])
    question = sum(sizes[6:9])  # it is being worked on, so it stays, with the step in front of it
    assert total(shown, knobs, 9) == front + FRAME + 300 + pin + sizes[4] + long_pin + question + sum(sizes[9:])


def test_a_sacrifice_in_the_block_counts() -> None:
    """A user text in the block in force leaves once, and what fits then loses nothing more."""
    messages = [user("g"), user("a" * 900), *step(), user("b" * 900), *step(), user("n"), *step()]
    shown = scene(messages, folded=7, block_tokens=400 + 2 * 922)
    whole = total(shown, WHOLE)
    found = find(shown, WHOLE, limit=whole - 800)
    assert found is not None
    assert (kinds(found), found.cut, found.tokens) == ([(1, "user")], None, whole - 900 + STUB)


THOUGHTS = [user("g"), *step(result=3000), assistant("x"), user("u"), *step(), assistant("y"), user("n"), *step()]


@pytest.mark.parametrize(
    ("keep_steps", "bare", "freed"), [(1, 8, 700), (3, 7, 500), (4, 5, 300), (6, 3, 100), (9, 0, 0)]
)
def test_reasoning_goes_along(keep_steps: int, bare: int, freed: int) -> None:
    """Of what stands in front of the kept steps and of the newest question; in a break that is made anyway."""
    thoughts = {1: 100, 3: 200, 5: 200, 7: 200, 9: 500}
    knobs = Knobs(takes_results=True, clears_reasoning=True, keep_steps=keep_steps)
    shown = scene(THOUGHTS, reasoning=thoughts)
    shown = msgspec.structs.replace(shown, sizes=[s + thoughts.get(i, 0) for i, s in enumerate(shown.sizes)])
    found = find(shown, knobs)
    if not freed:
        assert found is None
        return
    assert found is not None
    assert found.bare == bare
    assert found.before - found.tokens == 3000 - STUB + freed


def test_reasoning_alone_is_no_reason() -> None:
    """Only where the request would not fit is it a break of its own."""
    shown = scene([user("g"), assistant("x"), user("n"), *step()], reasoning={1: 5000}, overhead_tokens=6000)
    knobs = Knobs(clears_reasoning=True, keep_steps=1)
    assert find(shown, knobs) is None
    forced = find(shown, knobs, limit=1000)
    assert forced is not None
    assert (forced.bare, forced.is_forced) == (2, True)


CHATTY = [user("goal"), *(message for number in range(30) for message in step(result=100 + number))]


@pytest.mark.parametrize(
    ("ratio", "target", "kept"), [(1.0, 2000, 9), (0.3, 2000, 7), (0.3, 10**6, None), (0.1, 2000, 2), (1.0, 900, 1)]
)
def test_the_best_steps_stay(ratio: float, target: int, kept: int | None) -> None:
    """As many as fit their share of the span and the target; here all are alike, so they are the newest."""
    knobs = Knobs(folds=True, keep_steps=2, selects=True, ratio=ratio)
    found = find(scene(CHATTY), knobs, target=target)
    if kept is None:
        assert found is None
        return
    assert found is not None
    assert found.cut == 57
    assert found.chosen == tuple(range(57 - 2 * kept, 57))
    assert found.tokens == total(scene(CHATTY), knobs, 57) + sum(scene(CHATTY).sizes[57 - 2 * kept : 57])
    assert found.tokens <= max(target, total(scene(CHATTY), knobs, 57))


def test_what_was_kept_is_a_candidate_again() -> None:
    """And what had left does not come back."""
    knobs = Knobs(folds=True, keep_steps=2, selects=True, ratio=1.0)
    good, plain = Told("because", [Act("write", '{"path": "a"}', "")]), Told("", ())
    told = {5: good}
    shown = scene(
        CHATTY, folded=41, block_tokens=400, chosen=(3, 4, 5, 6), told=lambda step: told.get(step.start, plain)
    )
    assert total(shown, knobs) == sum(shown.sizes[i] for i in (0, 3, 4, 5, 6)) + 400 + sum(shown.sizes[41:])
    found = find(shown, knobs, target=1200)
    assert found is not None
    assert found.chosen[:2] == (5, 6)
    assert set(found.chosen) <= {3, 4, 5, 6, *range(41, 57)}


def test_pins_are_never_shortened_for_a_target() -> None:
    """What the user said stays whole up to its limit, however much it is; the target is missed then."""
    told = [message for _ in range(10) for message in (user("u" * 390), *step(result=900))]
    shown = scene([user("g"), *told, user("n"), *step(), *step()])
    found = find(shown, Knobs(folds=True, keep_steps=2), target=1_000)
    assert found is not None
    assert found.pin_tokens == 1_000
    assert found.tokens > 4_000


def test_words_that_are_too_many_leave_oldest_first() -> None:
    """However short each of them is: where nothing else helps the oldest are not shown, far below the limit."""
    chat = [message for _ in range(60) for message in (assistant("ok"), user("u" * 200))]
    shown = scene([user("g"), *chat])
    found = find(shown, WHOLE, target=1_000, limit=6_000)
    assert found is not None
    assert found.cut is not None
    assert 0 < found.pins_from < found.cut
    assert 2_000 < found.tokens <= 3_000
    later = msgspec.structs.replace(shown, folded=found.cut, pins_from=found.pins_from, block_tokens=1_000)
    assert total(later, WHOLE, found.cut + 2) < 6_000, "they stay out at the next compaction"


def test_trying_is_given_up() -> None:
    """After three compactions in vain only growth or the limit brings another one."""
    shown = scene(WORK, past=[Compacted(made_at=1, before_tokens=13_000, tokens=12_500)] * 3)
    whole = total(shown, ALL)
    assert find(scene(WORK), ALL) is not None
    assert find(shown, ALL) is None
    assert find(shown, ALL, limit=whole - 1) is not None
    assert find(msgspec.structs.replace(shown, overhead_tokens=15_000 - whole), ALL) is not None


def test_a_break_that_does_not_pay_is_not_made() -> None:
    """Where the target is out of reach it depends on the session's age and growth."""
    assert find(scene(WORK, calls=1), ALL) is None
    assert find(scene(WORK, growth_tokens=5000), ALL) is None
    assert find(scene(WORK, calls=1, growth_tokens=5000), ALL, target=6000) is not None


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
    starts = [told.history.leading, *(step.start for step in steps(told.history)[1:])]
    folded = draw(st.sampled_from(starts))
    block = draw(st.integers(1, 900)) + told_by_user(told, folded) if folded > told.history.leading else 0
    shown = msgspec.structs.replace(told, folded=folded, block_tokens=block)
    knobs = draw(KNOBS)
    whole = total(shown, knobs)
    limit = int(whole * draw(st.floats(0.2, 1.5)))
    trigger = int(min(limit, whole) * draw(st.floats(0.2, 1))) + draw(st.sampled_from([0, 0, 0, 1]))
    return shown, Bounds(min(trigger, limit), limit, int(trigger * draw(st.floats(0, 1)))), knobs


def told_by_user(shown: Scene, stop: int) -> int:
    """Tokens of the user messages before `stop`, but for the first of them, which stands outside of blocks."""
    users = [i for i, facts in enumerate(shown.history.facts) if facts.role == "user"]
    return sum(shown.sizes[i] for i in users[1:] if i < stop)


def applied(shown: Scene, found: Reduction) -> Scene:
    """The scene after what was found has left."""
    sizes = list(shown.sizes)
    for taken in found.taken:
        sizes[taken.message] -= saving(taken)
    stubbed = shown.stubbed | {(taken.message, taken.slot.at) for taken in found.taken}
    after = msgspec.structs.replace(shown, sizes=sizes, stubbed=stubbed, pins_from=found.pins_from)
    freed = told_by_user(shown, shown.folded) - told_by_user(after, shown.folded)
    return msgspec.structs.replace(after, block_tokens=shown.block_tokens - freed)


def after_knobs(knobs: Knobs, found: Reduction) -> Knobs:
    """The knobs with which a compaction was made in the end."""
    narrative = knobs.narrative_tokens if found.narrates else 0
    return msgspec.structs.replace(knobs, pin_tokens=found.pin_tokens, narrative_tokens=narrative)


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
    knobs = knobs if found is None else after_knobs(knobs, found)
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
        kept = steps(told)[-max(1, knobs.keep_steps) :]
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
    knobs = after_knobs(knobs, found)
    after = applied(shown, found)
    if found.cut is not None:
        block = found.tokens - total(msgspec.structs.replace(after, folded=found.cut, block_tokens=0), knobs)
        after = msgspec.structs.replace(after, folded=found.cut, block_tokens=block)
    assert total(after, knobs) == found.tokens
    again = Compaction(after, bounds, knobs).find()
    assert again is None or found.tokens >= bounds.trigger_tokens
