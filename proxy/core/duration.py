"""Durations as people write them in a configuration, and the types of fields that hold one."""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import Meta

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|)")


def parse_seconds(value: object) -> object:
    """Return a duration such as "30d", "12h" or "90s" in seconds; what is no string comes back as it is."""
    if not isinstance(value, str):
        return value
    found = _DURATION.fullmatch(value.strip())
    if found is None:
        raise ValueError(f'{value!r} is no duration; write seconds, or for example "90s", "12h" or "30d"')
    return float(found[1]) * _UNITS[found[2]]


DURATION_SCHEMA: dict[str, Any] = {"examples": [30, "90s", "12h", "30d"]}

Seconds = Annotated[float, Meta(ge=0, extra={"parse": parse_seconds}, extra_json_schema=DURATION_SCHEMA)]
PositiveSeconds = Annotated[float, Meta(gt=0, extra={"parse": parse_seconds}, extra_json_schema=DURATION_SCHEMA)]
