"""Durations."""

from __future__ import annotations

import pytest

from proxy.core.duration import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30d", 2_592_000),
        ("12h", 43_200),
        ("90s", 90),
        ("1.5m", 90),
        ("250ms", 0.25),
        ("7", 7),
        ("2 w", 1_209_600),
    ],
)
def test_durations_are_read_in_seconds(text: str, seconds: float) -> None:
    """A number with a unit is that many seconds, without one it is seconds."""
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "30 days", "-1s", "1h30m", "s", "1e3"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Anything else is refused with an example of what to write."""
    with pytest.raises(ValueError, match="no duration; write"):
        parse_seconds(text)


def test_numbers_are_seconds_already() -> None:
    """A number passes through, for the type to judge."""
    assert parse_seconds(90) == 90
