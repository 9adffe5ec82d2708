"""The memo is bounded and keeps what is used."""

from __future__ import annotations

from proxy.core.memo import Memo


def test_it_never_holds_more_than_two_generations() -> None:
    """However much is put in, at most about twice the capacity stays."""
    memo: Memo[int, int] = Memo(100)
    for number in range(10_000):
        memo.put(number, number)
    assert len(memo) <= 202


def test_what_is_used_survives() -> None:
    """A value that is asked for in time is carried over."""
    memo: Memo[int, str] = Memo(10)
    memo.put(-1, "kept")
    for number in range(100):
        memo.put(number, "other")
        assert memo.get(-1) == "kept"
    assert memo.get(50) is None


def test_weight_counts() -> None:
    """Heavy values fill the memo sooner."""
    memo: Memo[int, str] = Memo(100)
    for number in range(10):
        memo.put(number, "x", weight=60)
    assert len(memo) <= 4
