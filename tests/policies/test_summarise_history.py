"""How the oldest turns become a block, as it is written in the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from policies import discover
from policies.summarise_history import SummariseHistory
from proxy.presets import built_in
from proxy.settings_loader import load
from tests.core.test_policy import candidate, view


def found(name: str) -> SummariseHistory:
    """The policy of a built-in preset, the last of its chain."""
    policy = built_in()[name].policies[-1]
    assert isinstance(policy, SummariseHistory)
    return policy


def test_it_is_the_last_policy_of_the_default_preset() -> None:
    """It is found under its name; `balanced` has it as it is, without a model, prompt or anything else to set up."""
    assert discover()["summarise_history"] is SummariseHistory
    assert found("balanced") == SummariseHistory()
    policy = found("balanced")
    assert (policy.strategy, policy.keep_steps, policy.keep_messages) == ("summarise", 3, 0)
    assert (policy.model, policy.prompt, policy.wait_seconds) == (None, None, 20.0)


def test_presets_may_keep_messages_instead_of_steps() -> None:
    """The preset of a framework that counts messages says so."""
    policy = found("astreus")
    assert (policy.strategy, policy.keep_steps, policy.keep_messages, policy.ratio) == ("hybrid", 1, 3, 0.3)


def test_nothing_leaves_when_it_arrives() -> None:
    """Texts of any kind wait for a compaction."""
    texts = [msgspec.structs.replace(candidate(i, 1_000_000), kind=kind) for i, kind in enumerate(("user", "input"))]
    assert list(SummariseHistory().edits(view(*texts, candidate(2, 1_000_000)))) == []


@pytest.mark.parametrize(("written", "seconds"), [('"1.5m"', 90.0), ('"250ms"', 0.25), ("0", 0.0)])
def test_the_wait_is_a_duration(written: str, seconds: float, tmp_path: Path) -> None:
    """The file may name it with a unit; the rest of what the preset extends stays."""
    file = tmp_path / "ullage.toml"
    head = '[upstream]\nbase_url = "http://localhost:1/v1"\n[presets.mine]\nextends = "astreus"\n'
    file.write_text(f"{head}[presets.mine.summarise_history]\nwait_seconds = {written}\n", "utf-8")
    policy = load(file).settings.presets["mine"].policies[-1]
    assert policy == msgspec.structs.replace(found("astreus"), wait_seconds=seconds)


@pytest.mark.parametrize("strategy", ["summarise", "selective", "hybrid", "mechanical"])
def test_strategies(strategy: str) -> None:
    """Each can be written."""
    assert msgspec.convert({"strategy": strategy}, SummariseHistory).strategy == strategy


@pytest.mark.parametrize(
    "knobs",
    [
        {"strategy": "forget"},
        {"keep_steps": -1},
        {"keep_messages": -1},
        {"ratio": 0},
        {"ratio": 1.1},
        {"model": ""},
        {"prompt": ""},
        {"wait_seconds": -1},
        {"wait": 1},
    ],
)
def test_wrong_knobs_are_refused(knobs: dict[str, Any]) -> None:
    """Nothing negative, empty or unknown."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(knobs, SummariseHistory)
