"""Reasoning of old turns, as it is written in the configuration."""

from __future__ import annotations

import msgspec
import pytest

from policies import discover
from policies.clear_reasoning import ClearReasoning
from proxy.presets import built_in
from tests.core.test_policy import candidate, view


def test_it_is_a_policy_of_the_presets_that_compact() -> None:
    """It is found under its name, and has no knobs."""
    assert discover()["clear_reasoning"] is ClearReasoning
    having = {name for name, preset in built_in().items() if ClearReasoning() in preset.policies}
    assert having == {"balanced", "shadow", "deep"}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"keep": 3}, ClearReasoning)


def test_nothing_leaves_when_it_arrives() -> None:
    """It waits for a compaction."""
    assert list(ClearReasoning().edits(view(candidate(1, 1_000_000)))) == []
