"""Windows by table, by discovery, by default."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.window import Window, is_plausible
from proxy.windows import (
    DEFAULT_WINDOW_TOKENS,
    LOOPBACK_WINDOW_TOKENS,
    OLLAMA_WINDOW_TOKENS,
    Row,
    Windows,
    WindowTable,
    shipped_table,
)

SOMEWHERE = "https://gateway.example.org"
OPENAI = "https://api.openai.com"
LOCAL = "http://127.0.0.1:8000"
SHARED: dict[str, dict[str, Row]] = {
    "openai": {"gpt-x": (128_000, 16_000), "gpt-x-2": (400_000, 128_000, 272_000)},
    "groq": {"open-1": (8_000, 0), "gpt-x": (16_000, 0)},
    "a": {"open-1": (131_072, 0), "gpt-x-2024-01-01": (64_000, 0), "neo-3-fast": (50_000, 0)},
    "b": {"open-1": (131_072, 0), "neo-3-slow": (50_000, 0), "tie-1": (9_000, 0)},
    "c": {"open-1": (32_000, 0), "neo-3-big": (90_000, 0), "tie-1": (5_000, 0)},
}
WINDOWS = Windows(WindowTable(SHARED))


def tokens(upstream: str, model: str) -> int:
    """Return the window in the little table."""
    return WINDOWS.find(upstream, model).tokens


def test_the_upstream_decides_where_providers_differ() -> None:
    """Host first, then the folders of the name, then the maker."""
    assert tokens("https://api.groq.com", "gpt-x") == 16_000
    assert tokens(SOMEWHERE, "groq/gpt-x") == 16_000
    assert tokens(SOMEWHERE, "gpt-x") == 128_000
    assert tokens("https://api.groq.com", "open-1") == 8_000


def test_most_others_are_believed_where_nobody_is_closer() -> None:
    """The most frequent window, and of equals the smallest."""
    assert tokens(SOMEWHERE, "open-1") == 131_072
    assert tokens(SOMEWHERE, "tie-1") == 5_000


def test_the_maker_beats_a_strangers_more_exact_name() -> None:
    """A dated name elsewhere says nothing about the maker's own model."""
    assert tokens(OPENAI, "gpt-x-2024-01-01") == 128_000
    assert tokens(SOMEWHERE, "a/gpt-x-2024-01-01") == 64_000


def test_unknown_members_are_taken_for_their_family() -> None:
    """As most of the same generation; nothing is guessed from a name without one."""
    assert tokens(SOMEWHERE, "neo-3-new") == 50_000
    assert tokens(SOMEWHERE, "gpt-x-2-mini") == 400_000
    assert tokens(SOMEWHERE, "neo-unheard") == DEFAULT_WINDOW_TOKENS


def test_what_bounds_prompt_and_answer_comes_along() -> None:
    """The window is not the longest prompt."""
    assert WINDOWS.find(OPENAI, "gpt-x-2") == Window(400_000, 128_000, "table", 272_000)
    assert WINDOWS.find(SOMEWHERE, "open-1").max_output_tokens is None


def test_the_rest_has_defaults() -> None:
    """Elsewhere, on this machine, at Ollama: there the table does not count, since settings decide."""
    assert WINDOWS.find(SOMEWHERE, "nobody") == Window(DEFAULT_WINDOW_TOKENS)
    assert WINDOWS.find(LOCAL, "nobody") == Window(LOOPBACK_WINDOW_TOKENS)
    assert tokens(LOCAL, "gpt-x") == 128_000
    assert tokens("http://gpu:11434", "gpt-x") == OLLAMA_WINDOW_TOKENS


def test_what_the_upstream_told_wins() -> None:
    """For that upstream and model alone, also after the table was asked."""
    windows = Windows(WindowTable(SHARED))
    assert windows.find(SOMEWHERE, "gpt-x").source == "table"
    windows.put(SOMEWHERE, "gpt-x", Window(20_000, 1_000))
    assert windows.find(SOMEWHERE, "gpt-x") == Window(20_000, 1_000, "discovered")
    assert windows.discovered(SOMEWHERE, "gpt-x") is not None
    assert windows.find(LOCAL, "gpt-x").source == "table"
    assert windows.discovered(LOCAL, "gpt-x") is None


@pytest.mark.parametrize(
    ("upstream", "model", "window"),
    [
        (OPENAI, "gpt-4o", (128_000, 16_384, None)),
        (OPENAI, "gpt-4o-2024-08-06", (128_000, 16_384, None)),
        (OPENAI, "ft:gpt-4o:org::id", (128_000, 16_384, None)),
        (OPENAI, "gpt-4", (8_192, 4_096, None)),
        (OPENAI, "gpt-5", (400_000, 128_000, 272_000)),
        (OPENAI, "gpt-6-sol", (1_050_000, 128_000, 922_000)),
        ("https://me.openai.azure.com", "gpt-4o", (128_000, 16_384, None)),
        ("https://api.anthropic.com", "claude-sonnet-4-5-20250929", (200_000, 64_000, None)),
        ("https://openrouter.ai", "anthropic/claude-sonnet-4.5", (200_000, 64_000, None)),
        ("https://api.groq.com", "openai/gpt-oss-120b", (131_072, 65_536, None)),
        (LOCAL, "qwen3:14b", (40_960, 40_960, None)),
    ],
)
def test_the_shipped_table_knows_common_models(upstream: str, model: str, window: tuple[int, int, int | None]) -> None:
    """Input caps are not taken for windows, nor the other way round."""
    found = Windows().find(upstream, model)
    assert (found.tokens, found.max_output_tokens, found.max_input_tokens) == window
    assert found.source == "table"


def test_the_shipped_table_is_sound() -> None:
    """Every row has a window, and nothing in it is larger."""
    rows = [row for models in shipped_table()._rows.values() for row in models.values()]
    assert len(rows) > 2_000
    for window, answer, *prompt in rows:
        assert is_plausible(window)
        assert 0 <= answer <= window
        assert all(0 < n < window for n in prompt)


@given(upstream=st.sampled_from([SOMEWHERE, OPENAI, LOCAL, "", "http://["]), model=st.text(max_size=60))
def test_every_name_has_a_window(upstream: str, model: str) -> None:
    """Whatever the clients call their models, the answer is a number, and always the same."""
    windows = Windows()
    found = windows.find(upstream, model)
    assert is_plausible(found.tokens)
    assert windows.find(upstream, model) == found
