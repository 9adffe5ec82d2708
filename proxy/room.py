"""How much of a window a prompt may fill: what the request asks for as its answer is kept free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from proxy.core.window import Window
from proxy.units import Size

REASONING_RESERVE_TOKENS: Final = 25_000
"""Kept free for thoughts and answer of a request that wants reasoning and sets no limit; at most a quarter."""
_SHARE: Final = 4

_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_NO_EFFORT: Final = frozenset({"none", "minimal", "off", ""})


class Output(Struct, frozen=True):
    """The answer that a request asks for: its limit in tokens (None: it sets none), and whether it wants reasoning."""

    tokens: int | None = None
    reasons: bool = False


def asked_output(field: Callable[[str], object]) -> Output:
    """Return what a request says about its answer; `field` gives the decoded value of a top-level field."""
    limits = [limit for name in _LIMITS if (limit := _count(field(name))) is not None]
    budgets, reasons = _reasoning(field)
    return Output(max(limits or budgets, default=None), reasons)


def kept_free(window: Window, output: Output) -> int:
    """Return how many tokens of the window stay free for the answer.

    What is asked for counts in full, up to the model's longest answer. A limit as large as the window cannot be meant:
    then, as for reasoning without a limit, a share of the window is kept.
    """
    share = window.tokens // _SHARE
    if output.tokens is None:
        return min(REASONING_RESERVE_TOKENS, share, window.max_output_tokens or share) if output.reasons else 0
    asked = min(output.tokens, window.max_output_tokens or output.tokens)
    return asked if asked < window.tokens else share


def room(window: Window, output: Output, limit: Size | None) -> int:
    """Return how many tokens a prompt may have; `limit` is the preset's, of what the answer leaves."""
    most = window.tokens - kept_free(window, output)
    if window.max_input_tokens is not None:
        most = min(most, window.max_input_tokens)
    within = limit.within(most) if limit is not None else None
    return most if within is None else min(most, within)


def _reasoning(field: Callable[[str], object]) -> tuple[list[int], bool]:
    """Return the token budgets that are set for reasoning, and whether the model is asked to reason."""
    effort = field("reasoning_effort")
    reasons = isinstance(effort, str) and effort not in _NO_EFFORT
    budgets = []
    for name, budget in (("reasoning", "max_tokens"), ("thinking", "budget_tokens")):
        wish = field(name)
        if isinstance(wish, dict):
            count = _count(wish.get(budget))
            budgets += [] if count is None else [count]
            reasons |= _is_on(wish)
    return budgets, reasons


def _is_on(wish: dict[str, object]) -> bool:
    return wish.get("type") != "disabled" and wish.get("enabled") is not False and wish.get("effort") not in _NO_EFFORT


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40 else None
