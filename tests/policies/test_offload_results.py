"""Which results leave the context."""

from __future__ import annotations

import msgspec
import pytest

from policies.offload_results import OffloadResults
from tests.core.test_policy import candidate, view


def taken(policy: OffloadResults, *sizes: int, block: int | None = 0, tool: str | None = None) -> list[tuple[int, str]]:
    """Messages that the policy takes of results with these sizes in tokens, with its reason."""
    shown = view(*[msgspec.structs.replace(candidate(i, s, block), tool=tool) for i, s in enumerate(sizes)])
    out: list[tuple[int, str]] = []
    for edit in policy.edits(shown):
        shown.taken.add((edit.candidate.message, edit.candidate.at))
        out.append((edit.candidate.message, edit.reason))
    return out


def test_only_what_is_over_the_limit_goes() -> None:
    """The limit itself stays."""
    assert taken(OffloadResults(over_tokens=100), 100, 101) == [(1, "over_limit")]


def test_parallel_results_are_limited_together() -> None:
    """The largest go until the rest is within the limit, and no more than that."""
    policy = OffloadResults(over_tokens=100, per_turn_tokens=100)
    assert taken(policy, 60, 90, 30) == [(1, "per_turn_limit")]
    assert taken(policy, 40, 30, 30) == []
    assert taken(policy, 90, 90, 90) == [(0, "per_turn_limit"), (1, "per_turn_limit")]


def test_results_of_several_messages_are_not_added_up() -> None:
    """Only answers of one message count together."""
    assert taken(OffloadResults(per_turn_tokens=100), 90, 90, block=None) == []


@pytest.mark.parametrize(("pattern", "stays"), [("read_*", True), ("read_file", True), ("write*", False)])
def test_excluded_tools_are_left_alone(pattern: str, *, stays: bool) -> None:
    """Neither limit touches results of excluded tools."""
    policy = OffloadResults(over_tokens=10, per_turn_tokens=10, exclude_tools=(pattern,))
    assert (taken(policy, 50, tool="read_file") == []) == stays


def test_characters_can_stand_for_tokens() -> None:
    """Four characters are a token where a preset says so."""
    policy = OffloadResults(over_tokens=10, counting="characters", per_turn_tokens=None)
    assert taken(policy, 40, 41) == [(1, "over_limit")]


def test_the_preview_is_passed_on() -> None:
    """The stub is asked for with the lines that the configuration names."""
    (edit,) = OffloadResults(over_tokens=1, head_lines=3, tail_lines=2).edits(view(candidate(0, 5)))
    assert (edit.head_lines, edit.tail_lines) == (3, 2)
