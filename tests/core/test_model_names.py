"""Names of models in all their spellings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.model_names import canonical, families, path_of, variants


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("gpt-4o", "gpt-4o"),
        ("GPT-4o", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("azure/gpt-4o", "gpt-4o"),
        ("models/gemini-2.5-pro", "gemini-2-5-pro"),
        ("ft:gpt-4o:org::id", "gpt-4o"),
        ("ft:gpt-4o-2024-08-06:org:name:id", "gpt-4o"),
        ("gpt-4o:ft-org-2024-01-01", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4-0613", "gpt-4"),
        ("claude-3-5-sonnet-20241022", "claude-3-5-sonnet"),
        ("claude-3-5-sonnet@20241022", "claude-3-5-sonnet"),
        ("claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("mistral-large-latest", "mistral-large"),
        ("command-a-03-2025", "command-a"),
        ("deepseek/deepseek-chat:free", "deepseek-chat"),
        ("us.anthropic.claude-3-5-sonnet-20241022-v2:0", "claude-3-5-sonnet"),
        ("accounts/fireworks/models/deepseek-v3", "deepseek-v3"),
        ("qwen3:14b", "qwen3-14b"),
        ("qwen3:14b", "qwen3"),
    ],
)
def test_every_spelling_means_its_model(model: str, meant: str) -> None:
    """Case, folders, dates, tags, tunings, regions and makers make no other model of it."""
    assert meant in list(variants(model))


def test_the_exact_name_comes_first() -> None:
    """What was asked for is looked for before anything simpler."""
    assert next(variants("openai/gpt-4o-2024-08-06")) == canonical("gpt-4o-2024-08-06") == "gpt-4o-2024-08-06"


def test_versions_are_no_dates() -> None:
    """A version with a point stays; another model would come out."""
    assert list(variants("gpt-4.1")) == ["gpt-4-1"]
    assert list(variants("claude-opus-4-5")) == ["claude-opus-4-5"]


def test_families_tell_generations_apart() -> None:
    """A beginning without any digit could be anything."""
    assert list(families("gpt-6.2-astra")) == ["gpt-6-2", "gpt-6"]
    assert list(families("my-deployment")) == []
    assert list(families("claude-unknown-9")) == []


def test_folders_are_told_apart_from_the_name() -> None:
    """They may name the provider."""
    assert path_of("OpenRouter/Google/gemini-x") == ("openrouter", "google")
    assert path_of("gpt-4o") == ()


@given(st.text(max_size=80) | st.from_regex(r"[a-z]{1,4}([-./:@][0-9a-z]{1,8}){0,6}", fullmatch=True))
def test_any_name_can_be_taken_apart(model: str) -> None:
    """Whatever a client calls its model, there are a few distinct clean names or none."""
    names = list(variants(model))
    assert len(set(names)) == len(names) <= 40
    for name in (*names, *families(model)):
        assert name
        assert canonical(name) == name
