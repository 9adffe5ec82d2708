"""What a policy is shown."""

from __future__ import annotations

from proxy.core.policy import Candidate, View


def candidate(message: int, size: int, block: int | None = None) -> Candidate:
    """A result of this size."""
    return Candidate(message=message, at=-1, kind="result", exact=bytes([message]), size_bytes=size, block=block)


def view(*candidates: Candidate, counted: list[int] | None = None) -> View:
    """A view in which a byte is a token; `counted` collects what was counted."""

    def count(one: Candidate) -> int:
        if counted is not None:
            counted.append(one.message)
        return one.size_bytes

    return View(candidates, count, lambda c: c.size_bytes)


def test_small_texts_are_never_counted() -> None:
    """A token is at least a byte, so a text with fewer bytes than the limit needs no tokenizer."""
    counted: list[int] = []
    shown = view(candidate(1, 100), candidate(2, 101), counted=counted)
    assert [shown.is_over(c, 100) for c in shown.texts("result")] == [False, True]
    assert counted == [2]


def test_what_is_taken_is_not_shown_again() -> None:
    """Later policies see only what earlier ones left."""
    shown = view(candidate(1, 1), candidate(2, 1))
    shown.taken.add((1, -1))
    assert [c.message for c in shown.texts("result")] == [2]
    assert list(shown.texts("user")) == []


def test_blocks_group_what_is_answered_together() -> None:
    """Results of one assistant message come as one group; strays without a call are in none."""
    shown = view(candidate(1, 1, 0), candidate(2, 1, 0), candidate(3, 1), candidate(5, 1, 4))
    assert [[c.message for c in group] for group in shown.blocks()] == [[1, 2], [5]]
