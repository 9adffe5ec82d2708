"""The room that an answer leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.window import Window
from proxy.room import REASONING_RESERVE_TOKENS, Output, asked_output, kept_free, room
from proxy.units import Size

BIG = Window(400_000, 128_000, "table", 272_000)
SMALL = Window(8_000)


def asked(**fields: object) -> Output:
    """Return what a request with these fields asks for."""
    return asked_output(fields.get)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Output()),
        ({"max_tokens": 300}, Output(300)),
        ({"max_completion_tokens": 300}, Output(300)),
        ({"max_output_tokens": 300}, Output(300)),
        ({"max_tokens": 300, "max_completion_tokens": 500}, Output(500)),
        ({"max_tokens": None}, Output()),
        ({"max_tokens": True}, Output()),
        ({"max_tokens": -1}, Output()),
        ({"max_tokens": "300"}, Output()),
        ({"max_tokens": 10**30}, Output()),
        ({"reasoning_effort": "high"}, Output(reasons=True)),
        ({"reasoning_effort": "none"}, Output()),
        ({"reasoning_effort": None}, Output()),
        ({"reasoning": {"effort": "low"}}, Output(reasons=True)),
        ({"reasoning": {"effort": "none"}}, Output()),
        ({"reasoning": {"enabled": False}}, Output()),
        ({"reasoning": {"max_tokens": 2_000}}, Output(2_000, reasons=True)),
        ({"thinking": {"type": "enabled", "budget_tokens": 4_000}}, Output(4_000, reasons=True)),
        ({"thinking": {"type": "disabled"}}, Output()),
        ({"thinking": "yes", "reasoning": []}, Output()),
        ({"max_tokens": 900, "thinking": {"budget_tokens": 800}}, Output(900, reasons=True)),
    ],
)
def test_what_a_request_asks_for(fields: dict[str, object], expected: Output) -> None:
    """A limit counts thoughts as well; without one the budget for them does; odd values ask for nothing."""
    assert asked(**fields) == expected


def test_a_limit_is_kept_free_in_full() -> None:
    """Prompt and answer together fit the window."""
    assert room(SMALL, Output(4_000), None) == 4_000
    assert room(SMALL, Output(4_000), Size(share=0.85)) == 3_400
    assert room(SMALL, Output(7_900), None) == 100
    assert room(SMALL, Output(), Size(tokens=1_000)) == 1_000


def test_more_than_the_model_can_answer_is_not_kept() -> None:
    """A limit above the longest answer is the upstream's to refuse."""
    assert kept_free(Window(128_000, 16_384), Output(100_000)) == 16_384


def test_a_limit_as_large_as_the_window_is_not_meant() -> None:
    """Clients that send one number to every model still get an answer from small ones."""
    assert kept_free(SMALL, Output(32_000)) == kept_free(SMALL, Output(8_000)) == 2_000


def test_reasoning_without_a_limit_needs_room() -> None:
    """A reserve, at most a quarter, at most what the model can answer."""
    wish = Output(reasons=True)
    assert kept_free(BIG, wish) == REASONING_RESERVE_TOKENS
    assert kept_free(SMALL, wish) == 2_000
    assert kept_free(Window(128_000, 4_096), wish) == 4_096


def test_the_longest_prompt_bounds_it() -> None:
    """However little the answer takes."""
    assert room(BIG, Output(), None) == 272_000
    assert room(BIG, Output(128_000), None) == 272_000
    assert room(Window(400_000, None, "table", 272_000), Output(200_000), None) == 200_000


@given(
    window=st.integers(256, 1 << 21),
    output=st.none() | st.integers(1, 1 << 22),
    reasons=st.booleans(),
    share=st.none() | st.floats(0.01, 1.0),
)
def test_prompt_and_answer_always_fit(window: int, output: int | None, reasons: bool, share: float | None) -> None:
    """The room is never negative, never over the limit, and leaves what is kept free."""
    wish, size = Output(output, reasons), Window(window)
    tokens = room(size, wish, None if share is None else Size(share=share))
    assert 0 <= tokens <= (share or 1.0) * (window - kept_free(size, wish))
    assert room(size, Output(None), None) >= tokens
