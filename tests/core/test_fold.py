"""A block in force: where it ends in this request, and which messages stay in front of that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.fold import find_fold, make_fold
from proxy.core.ledger import Compacted, Learnt, Ledger, Recognition
from tests.core.test_history import assistant, history, tool, user

SYSTEM: dict[str, Any] = {"role": "system", "content": "s"}
CHAIN = [
    user("goal"),
    assistant(None, ("a", "f")),
    tool("a", "1"),
    SYSTEM,
    user("more"),
    assistant(None, ("b", "f")),
    tool("b", "2"),
    assistant("done"),
]


def known(*entries: Compacted | Learnt, shift: int = 0) -> Recognition:
    """A ledger with these entries, recognised at a shift."""
    return Recognition(Ledger("ses", entries), known=0, shift=shift)


@pytest.mark.parametrize("leading", [0, 1, 3])
@pytest.mark.parametrize("trimmed", [0, 1, 3])
def test_the_cut_is_a_place_in_the_chain(leading: int, trimmed: int) -> None:
    """System messages at the front move it back, messages that the client left out move it forward."""
    sent = history(*[SYSTEM] * leading, *CHAIN[trimmed:])
    started = sent.leading  # a system message that became the first one leads, too
    shift = len(CHAIN) - sent.length
    fold = find_fold(sent, known(Compacted(made_at=8, cut=5), shift=shift))
    assert fold is not None
    assert fold.cut == 5 - shift + started
    assert sent.facts[fold.cut].match == history(*CHAIN).facts[5].match


def test_what_stays_in_front_of_the_cut() -> None:
    """The first user message and the client's system messages stay; the block stands for all else."""
    sent = history(SYSTEM, *CHAIN)
    fold = find_fold(sent, known(Compacted(made_at=8, cut=6)))
    assert fold is not None
    assert (fold.cut, fold.goal, fold.kept) == (7, 1, (4,))
    assert fold.leaving(sent) == [2, 3, 5, 6]


def test_a_span_without_a_user_message_has_no_goal() -> None:
    """Where the client dropped its first message, one behind the cut does not take its place."""
    sent = history(*CHAIN[1:])
    fold = find_fold(sent, known(Compacted(made_at=8, cut=3), shift=1))
    assert fold is not None
    assert (fold.cut, fold.goal, fold.kept) == (2, None, ())
    assert fold.leaving(sent) == [0, 1]


@pytest.mark.parametrize(
    ("entries", "sent", "shift"),
    [
        ((), CHAIN, 0),
        ((Compacted(made_at=8),), CHAIN, 0),
        ((Learnt("x"),), CHAIN, 0),
        ((Compacted(made_at=8, cut=5),), CHAIN[:7], 0),
        ((Compacted(made_at=8, cut=2),), CHAIN[4:], 4),
        ((Compacted(made_at=8, cut=4),), CHAIN[4:], 4),
        ((Compacted(made_at=1, cut=5),), CHAIN[:3], 0),
        ((Compacted(made_at=1, cut=2),), [], 4),
    ],
    ids=["nothing", "no-cut", "no-block", "shorter", "span-lost", "span-just-lost", "not-reached", "empty"],
)
def test_no_block_is_in_force(entries: tuple[Compacted | Learnt, ...], sent: list[dict[str, Any]], shift: int) -> None:
    """A history from before the compaction, or without the end of its span, is sent without the block."""
    assert find_fold(history(SYSTEM, *sent), known(*entries, shift=shift)) is None


def test_the_last_message_of_the_span_is_enough() -> None:
    """As long as one message of the span is sent the block stands for it, also at the end of a history."""
    sent = history(*CHAIN[4:])
    fold = find_fold(sent, known(Compacted(made_at=8, cut=5), shift=4))
    assert fold is not None
    assert (fold.cut, fold.goal, fold.leaving(sent)) == (1, 0, [])
    assert find_fold(history(*CHAIN[:5]), known(Compacted(made_at=5, cut=5))) is not None
    assert find_fold(history(*CHAIN[:4]), known(Compacted(made_at=4, cut=5))) is None


def test_the_newest_block_that_a_history_has_reached_counts() -> None:
    """A branch from before the second compaction has the first one."""
    first, second = Compacted(made_at=4, cut=1), Compacted(made_at=8, cut=5)
    lengths = {n: find_fold(history(*CHAIN[:n]), known(first, second)) for n in (3, 4, 7, 8)}
    assert {n: fold and fold.entry for n, fold in lengths.items()} == {3: None, 4: first, 7: first, 8: second}


@given(st.lists(st.sampled_from([SYSTEM, user("u"), assistant("a")]), min_size=1, max_size=9), st.data())
def test_every_message_of_the_span_either_leaves_or_stays(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    """Goal, kept and leaving are the span, each message once; leading system messages are no part of it."""
    sent = history(*messages)
    cut = data.draw(st.integers(sent.leading, len(sent)))
    fold = make_fold(sent, Compacted(made_at=0, cut=cut), cut)
    goal = [] if fold.goal is None else [fold.goal]
    assert sorted([*goal, *fold.kept, *fold.leaving(sent)]) == list(range(sent.leading, cut))
    assert all(sent.facts[i].role == "assistant" or i > goal[0] for i in fold.leaving(sent))


@pytest.mark.parametrize(("trimmed", "expected"), [(0, (2, 3)), (1, ()), (2, ()), (3, ())])
def test_chosen_steps_follow_on_the_block(trimmed: int, expected: tuple[int, ...]) -> None:
    """They are places in the chain, too. Where the client cut one, or what the user said before it, it is gone."""
    sent = history(SYSTEM, *CHAIN[trimmed:])
    fold = find_fold(sent, known(Compacted(made_at=8, cut=7, chosen=(1, 2)), shift=len(CHAIN) - sent.length))
    assert fold is not None
    assert fold.chosen == expected
    assert not set(fold.leaving(sent)) & set(expected)
