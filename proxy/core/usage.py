"""Usage over the rounds of one turn.

The client uses prompt tokens as the meter of its context, so it gets those of the last round; what it has to pay for
beyond that are completion tokens, so these are summed. Providers send usage in any shape, also none: what is no number
is passed on as it came and never counted, and nothing here raises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw

from proxy.core.wire.raw import Fields, read_any, read_object, write

_COMPLETION: Final = "completion_tokens"
_COMPLETION_DETAILS: Final = "completion_tokens_details"


def merge_usage(rounds: Sequence[Raw | None]) -> Raw | None:
    """Return what the client is told: the last round's usage, with completion tokens and their details summed."""
    if not rounds or rounds[-1] is None:
        return None
    last = read_object(rounds[-1])
    earlier = [usage for raw in rounds[:-1] if raw is not None and (usage := read_object(raw)) is not None]
    if last is None or not earlier:
        return rounds[-1]
    merged = dict(last)
    completion = _total([usage.get(_COMPLETION) for usage in (*earlier, last)])
    if _number(last.get(_COMPLETION)) is not None and completion is not None:
        merged[_COMPLETION] = write(completion)
        prompt = _number(last.get("prompt_tokens"))
        if prompt is not None:
            merged["total_tokens"] = write(prompt + completion)
    details = _sum_details([usage.get(_COMPLETION_DETAILS) for usage in (*earlier, last)])
    if details is not None:
        merged[_COMPLETION_DETAILS] = details
    return write(merged)


def sum_usage(rounds: Sequence[Raw | None]) -> dict[str, Any] | None:
    """Return all numbers of all rounds added up, nested ones too; None when no round reported any."""
    total: dict[str, Any] = {}
    for raw in rounds:
        if raw is not None:
            _add(total, read_any(raw))
    return total or None


def _sum_details(rounds: list[Raw | None]) -> Raw | None:
    """Return summed details; None where the last round has details of a shape that cannot be summed."""
    objects = [read_object(raw) for raw in rounds if raw is not None]
    details = [found for found in objects if found is not None]
    is_odd = rounds[-1] is not None and objects[-1] is None and bytes(rounds[-1]) != b"null"
    if is_odd or not details:
        return None
    summed: Fields = {}
    for name in dict.fromkeys(name for found in details for name in found):
        values = [found.get(name) for found in details]
        total = _total(values)
        summed[name] = next(value for value in reversed(values) if value is not None)
        if total is not None:
            summed[name] = write(total)
    return write(summed)


def _total(values: list[Raw | None]) -> int | float | None:
    numbers = [number for value in values if (number := _number(value)) is not None]
    return sum(numbers) if numbers else None


def _number(raw: Raw | None) -> int | float | None:
    return None if raw is None else _countable(read_any(raw))


def _countable(value: object) -> int | float | None:
    """Return a number that can be a count; None for negative and endless ones."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if value >= 0 and math.isfinite(value) else None


def _add(total: dict[str, Any], usage: object) -> None:
    if not isinstance(usage, dict):
        return
    for name, value in usage.items():
        number = _countable(value)
        if number is not None:
            before = total.get(name, 0)
            total[name] = number + before if not isinstance(before, dict) else number
        elif isinstance(value, dict):
            inner = total.get(name)
            inner = dict(inner) if isinstance(inner, dict) else {}
            _add(inner, value)
            if inner:
                total[name] = inner
