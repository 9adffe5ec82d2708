"""How large the context of a model is, and who says so."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

Source = Literal["configured", "learnt", "discovered", "table", "default"]

LEAST_TOKENS: Final = 256
"""No model has a smaller window: such a number means something else."""
MOST_TOKENS: Final = 1 << 31


class Window(Struct, frozen=True):
    """The tokens that prompt and answer have together, and what bounds each alone (None: the window does)."""

    tokens: int
    max_output_tokens: int | None = None
    source: Source = "default"
    max_input_tokens: int | None = None


def is_plausible(value: object) -> bool:
    """Tell whether a value, from anywhere, can be the size of a window."""
    return isinstance(value, int) and not isinstance(value, bool) and LEAST_TOKENS <= value <= MOST_TOKENS
