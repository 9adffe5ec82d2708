"""Which inputs of old calls leave the context, as it is written in the configuration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from policies import discover
from policies.truncate_inputs import TruncateInputs
from proxy.presets import built_in
from tests.core.test_policy import candidate, view


def test_it_is_a_policy_of_the_default_preset() -> None:
    """It is found under its name, and `balanced` has it with the limit that is its own default."""
    assert discover()["truncate_inputs"] is TruncateInputs
    (policy,) = [p for p in built_in()["balanced"].policies if isinstance(p, TruncateInputs)]
    assert policy == TruncateInputs(over_chars=2000) == TruncateInputs()


def test_nothing_leaves_when_it_arrives() -> None:
    """Inputs and results of any size wait for a compaction."""
    long = msgspec.structs.replace(candidate(1, 1_000_000), kind="input")
    assert list(TruncateInputs(over_chars=1).edits(view(long, candidate(2, 1_000_000)))) == []


@pytest.mark.parametrize("knobs", [{"over_chars": 0}, {"over_chars": "2000"}, {"over_tokens": 1}])
def test_wrong_knobs_are_refused(knobs: dict[str, Any]) -> None:
    """A limit is a positive number of characters."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(knobs, TruncateInputs)
