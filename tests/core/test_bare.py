"""Messages that are sent without their reasoning."""

from __future__ import annotations

import pytest

from proxy.core.bare import find_bare
from proxy.core.ledger import Compacted, Ledger, Recognition
from tests.core.test_history import assistant, history, user

SYSTEM = {"role": "system", "content": "s"}
THOUGHT = {"reasoning_content": "hm"}
CHAIN = [user("goal"), assistant("a") | THOUGHT, user("b"), assistant("c"), user("d"), assistant("e") | THOUGHT]


@pytest.mark.parametrize(
    ("bare", "trimmed", "expected"),
    [
        (0, 0, set()),
        (1, 0, set()),
        (2, 0, {2}),
        (5, 0, {2}),
        (6, 0, {2, 6}),
        (99, 0, {2, 6}),
        (2, 1, {1}),
        (5, 2, set()),
        (6, 2, {4}),
    ],
)
def test_old_reasoning_is_gone(bare: int, trimmed: int, expected: set[int]) -> None:
    """Up to a position of the chain, where there is any."""
    told = history(SYSTEM, *CHAIN[trimmed:])
    known = Recognition(Ledger("ses", [Compacted(made_at=6, bare=bare)]), known=0, shift=trimmed)
    assert find_bare(told, known, ()) == expected


def test_hidden_turns_keep_theirs() -> None:
    """What is put back in front of a message holds what it thought."""
    known = Recognition(Ledger("ses", [Compacted(made_at=6, bare=6)]), known=0, shift=0)
    assert find_bare(history(*CHAIN), known, {1: None}) == {5}


def test_a_later_compaction_brings_nothing_back() -> None:
    """What is gone stays gone, and a branch from before the compaction keeps all."""
    known = Recognition(Ledger("ses", [Compacted(made_at=4, bare=2), Compacted(made_at=6)]), known=0, shift=0)
    assert find_bare(history(*CHAIN), known, ()) == {1}
    assert find_bare(history(*CHAIN[:3]), known, ()) == set()
