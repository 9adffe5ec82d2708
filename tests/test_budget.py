"""How many tokens fit."""

from __future__ import annotations

import pytest

from proxy.budget import DEFAULT_WINDOW_TOKENS, Budget
from proxy.presets import Preset
from proxy.settings import Model, Settings
from proxy.units import Size

SETTINGS = Settings(models={"gpt-x": Model(window=10_000)})


def room(budget: Budget, limit: Size | None, model: str = "gpt-x") -> int:
    """Return the room under a preset with this limit."""
    return budget.room(SETTINGS, Preset(name="p", limit=limit), "http://up", model)


def test_the_limit_is_of_the_window() -> None:
    """A share counts of the model's window; without a limit the window itself does, less a margin for our counts."""
    budget = Budget()
    assert 0.9 * 8_500 < room(budget, Size(share=0.85)) < 8_500
    assert 0.9 * 10_000 < room(budget, None) < 10_000
    assert 0.9 * DEFAULT_WINDOW_TOKENS < room(budget, None, "gpt-unknown") < DEFAULT_WINDOW_TOKENS


def test_reported_usage_corrects_it() -> None:
    """Where a tokenizer counts twice what we do, half as much fits."""
    budget = Budget()
    before = room(budget, None)
    for _ in range(3):
        budget.learn("http://up", "gpt-x", 5_000, {"prompt_tokens": 10_000})
    assert abs(room(budget, None) - before / 2) < 2


@pytest.mark.parametrize("reported", [None, "9", True, -5, 1.5, 10**30, {}])
def test_odd_reports_teach_nothing(reported: object) -> None:
    """Only a plain positive number counts."""
    budget = Budget()
    before = room(budget, None)
    for _ in range(5):
        budget.learn("http://up", "gpt-x", 5_000, {"prompt_tokens": reported})
        budget.learn("http://up", "gpt-x", 5_000, None)
    assert room(budget, None) == before
