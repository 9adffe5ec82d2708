"""Which numbers can be windows."""

from __future__ import annotations

import pytest

from proxy.core.window import is_plausible


@pytest.mark.parametrize(
    ("value", "expected"),
    [(256, True), (8_192, True), (1 << 31, True), (255, False), (0, False), (-1, False), ((1 << 31) + 1, False)]
    + [(odd, False) for odd in (True, None, "8192", 8192.0, [8192])],
)
def test_only_plain_numbers_of_a_sensible_size_are_windows(value: object, expected: bool) -> None:
    """Neither flags nor texts nor counts of something else."""
    assert is_plausible(value) is expected
