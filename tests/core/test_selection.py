"""Which steps stay: what makes one worth more, what fits, and that the result is a sound conversation."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.history import History
from proxy.core.selection import (
    Told,
    begins_well,
    choose,
    is_choosable,
    names,
    score,
    sequence,
    with_question,
)
from proxy.core.steps import Step, steps
from proxy.core.trail import Act
from tests.core.test_history import assistant, history, tool, user

PLAIN = Told("ok", [Act("read", json.dumps({"path": "b.py"}), "fine")])
SYSTEM: dict[str, Any] = {"role": "system", "content": "s"}
CALL = (assistant(None, ("c", "f")), tool("c", "1"))


@pytest.mark.parametrize(
    "better",
    [
        Told("ok", [Act("write", json.dumps({"path": "b.py"}), "fine")]),
        Told("ok", [Act("read", json.dumps({"path": "b.py"}), "FileNotFoundError: b.py")]),
        Told("ok", [Act("bash", json.dumps({"command": "make"}), "exit code 2")]),
        Told("The root cause is the clock.", PLAIN.acts),
        Told("ok", [Act("read", json.dumps({"path": "src/a.py"}), "fine")]),
        Told("ok", [Act("read", json.dumps({"path": "b.py"}), "see MAX_ROWS")]),
    ],
    ids=["writes", "fails", "exit", "decides", "named path", "named word"],
)
def test_what_is_worth_more(better: Told) -> None:
    """A change, a failure, a reason, and what the user has named."""
    named = names(["Please fix src/a.py and keep MAX_ROWS"])
    assert score(better, named, 0.5) > score(PLAIN, named, 0.5)


def test_newer_is_worth_more() -> None:
    """And an exit code of 0 is no failure, whatever the words around it."""
    assert score(PLAIN, (), 0) > score(PLAIN, (), 0.5) > score(PLAIN, (), 1)
    passed = Told("ok", [Act("bash", "{}", "0 failed\nexit code 0")])
    assert score(passed, (), 1) == score(PLAIN, (), 1)


def test_what_users_name() -> None:
    """Paths, identifiers and numbers, not words; and not all of what was pasted."""
    said = "Look at ./src/a.py, README.md and maxRows (ticket AB-12, port 8080), then go on. " + "x " * 4000 + "late.py"
    assert names([said]) == {"./src/a.py", "README.md", "maxRows", "AB-12", "8080"}


def test_the_best_are_taken_while_they_fit() -> None:
    """One that is too large is passed over; of equals the newer one stays."""
    candidates = [Step(0, 1), Step(1, 3), Step(3, 4), Step(4, 5)]
    points = {0: 1.0, 1: 9.0, 3: 5.0, 4: 1.0}
    sizes = [10, 50, 50, 30, 10]

    def chosen(room: int) -> tuple[int, ...]:
        return choose(candidates, lambda step, _: points[step.start], sizes, room)

    assert chosen(1000) == (0, 1, 2, 3, 4)
    assert chosen(130) == (1, 2, 3)
    assert chosen(99) == (0, 3, 4)
    assert chosen(49) == (3, 4)
    assert chosen(9) == ()


def test_ages_go_from_the_oldest_to_the_newest() -> None:
    """Whatever places the candidates have."""
    candidates = [Step(3, 5), Step(9, 10), Step(20, 22)]
    expected = {3: 1, 9: 0.5, 20: 0}
    chosen = choose(candidates, lambda step, age: float(age != expected[step.start]), [1] * 30, 2)
    assert chosen == (20, 21), "nothing is off, so the newest are taken"


@pytest.mark.parametrize(
    ("step", "expected"), [(Step(0, 1), False), (Step(1, 3), True), (Step(3, 4), True), (Step(4, 6), False)]
)
def test_only_whole_steps_of_the_assistant_stay(step: Step, *, expected: bool) -> None:
    """Every call is answered."""
    told = history(user("u"), *CALL, assistant("a"), assistant(None, ("c", "f"), ("d", "f")), tool("c", "1"))
    assert is_choosable(told, step) is expected


@pytest.mark.parametrize(
    ("messages", "wanted", "expected"),
    [
        # 0 is the goal, the last message stands behind the span
        ([*CALL, user("u"), *CALL, assistant("z")], {1, 2, 4, 5}, (1, 2, 4, 5)),
        ([assistant("a"), user("u"), assistant("b"), user("v")], {1, 3}, (1, 2, 3)),
        ([assistant("a"), user("u"), assistant("b"), assistant("z")], {1, 3}, (1, 2, 3)),
        ([assistant("a"), user("u"), assistant("b"), assistant("z")], {1}, ()),
        ([assistant("a"), user("u"), assistant("z")], {1}, (1, 2)),
        ([assistant("a"), *CALL, assistant("b"), user("v")], {1, 4}, (1,)),
        ([assistant("a"), assistant("b"), user("v")], {1, 2}, (1, 2)),
        ([assistant("a"), user("u"), user("v"), *CALL, assistant("z")], {1, 4, 5}, (1, 2, 3, 4, 5)),
        ([*CALL, assistant("z")], {1}, ()),
        ([*CALL, assistant("z")], {0, 1, 2}, (1, 2)),
    ],
)
def test_what_stands_between_block_and_rest(
    messages: list[dict[str, Any]], wanted: set[int], expected: tuple[int, ...]
) -> None:
    """Two answers of the assistant that were apart keep a user message between them, or the later one goes."""
    told = history(user("goal"), *messages)
    assert sequence(told, wanted, len(told) - 1) == expected


TURNS = st.sampled_from([[user("u")], [assistant("a")], list(CALL), [SYSTEM]])


def neighbours(told: History, order: list[int]) -> set[tuple[str, str]]:
    """Kinds of neighbours; an assistant message with calls is followed by its answers and is no neighbour."""
    kinds = [told.facts[i].role for i in order if told.facts[i].role != "system"]
    return set(pairwise(kinds))


@given(st.lists(TURNS, min_size=1, max_size=12), st.data())
def test_a_selection_is_a_sound_conversation(turns: list[list[dict[str, Any]]], data: st.DataObject) -> None:
    """In order, pairs whole, no new neighbours of one role, and the same when it is looked at again."""
    told = history(user("goal"), *(message for turn in turns for message in turn))
    borders = [step.start for step in steps(told)[1:]]
    cut = data.draw(st.sampled_from(borders))
    wanted = data.draw(st.sets(st.sampled_from([s for s in steps(told) if s.stop <= cut])))
    chosen = sequence(told, {i for step in wanted for i in range(step.start, step.stop)}, cut)
    assert list(chosen) == sorted(set(chosen))
    assert 0 not in chosen
    assert all(0 < i < cut for i in chosen)
    for index in chosen:
        block = told.block_at(index)
        assert block is None or set(range(block.start, block.stop)) <= set(chosen)
    sent = [0, *chosen, *range(cut, len(told))]
    before = neighbours(told, list(range(len(told))))
    assert ("assistant", "assistant") not in neighbours(told, sent) or ("assistant", "assistant") in before
    if chosen:
        assert ("user", "user") not in neighbours(told, sent) or ("user", "user") in before
    assert sequence(told, chosen, cut) == chosen


@pytest.mark.parametrize(
    ("messages", "cut", "stays"),
    [
        ([user("g"), *CALL, user("q"), *CALL, *CALL], 6, (1, 2, 3)),
        ([user("g"), *CALL, user("q"), *CALL, *CALL], 3, ()),
        ([user("g"), *CALL, *CALL], 3, ()),
        ([user("g"), user("q"), *CALL, *CALL], 4, (1,)),
        ([user("g"), assistant("a"), user("p"), user("q"), *CALL, *CALL], 6, (3,)),
    ],
    ids=["at work", "behind the cut", "the goal itself", "two in a row", "two in a row later"],
)
def test_the_question_stays_with_the_step_before_it(
    messages: list[dict[str, object]], cut: int, stays: tuple[int, ...]
) -> None:
    """It does not come to stand beside the block unless the client itself puts two of them in a row."""
    assert with_question(history(*messages), cut) == stays


def test_a_cut_begins_with_an_answer() -> None:
    """Behind the block, which is the user's, no other message of the user comes; two in a row may stay so."""
    shown = history(user("g"), assistant("a"), user("p"), user("q"), *CALL)
    assert [begins_well(shown, cut) for cut in range(1, 7)] == [True, False, True, True, True, True]
