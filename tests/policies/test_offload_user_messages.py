"""Which user texts leave the context."""

from __future__ import annotations

import msgspec

from policies.offload_user_messages import OffloadUserMessages
from tests.core.test_policy import candidate, view


def test_only_user_texts_over_the_limit_go() -> None:
    """The limit itself stays, and results are not this policy's."""
    user = [msgspec.structs.replace(candidate(i, size), kind="user") for i, size in enumerate((100, 101))]
    shown = view(*user, candidate(7, 5000))
    assert [e.candidate.message for e in OffloadUserMessages(over_tokens=100).edits(shown)] == [1]


def test_characters_can_stand_for_tokens() -> None:
    """Four characters are a token where a preset says so."""
    user = msgspec.structs.replace(candidate(0, 41), kind="user")
    assert list(OffloadUserMessages(over_tokens=10, counting="characters").edits(view(user)))
    assert not list(OffloadUserMessages(over_tokens=11, counting="characters").edits(view(user)))
