"""Sizes as people write them in a configuration, and the types that fields of these kinds have.

A type carries the function that reads what the file says (`parse` in its `extra`), which raises ValueError
with the mend.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from proxy.tables import Wrong

_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


Count = Annotated[int, Meta(ge=1)]
Text = Annotated[str, Meta(min_length=1)]


class Size(msgspec.Struct, frozen=True):
    """A number of tokens, a share of the window, or the smaller of both."""

    share: float | None = None
    tokens: int | None = None

    def within(self, window_tokens: int | None) -> int | None:
        """Return the size in tokens for a window; None when it is a share of a window that nobody knows."""
        if self.share is None or window_tokens is None:
            return self.tokens
        part = int(self.share * window_tokens)
        return part if self.tokens is None else min(part, self.tokens)


def parse_share(text: str) -> float:
    """Return "50%" as 0.5."""
    found = _SHARE.fullmatch(text.strip())
    if found is None or not 0 < float(found[1]) <= 100:
        raise ValueError(f'{text!r} is no share; write for example "50%", at most "100%"')
    return float(found[1]) / 100


def parse_size(value: object) -> Size:
    """Return what a file says of a size: "50%", a number of tokens, or a table with `share` and `tokens`."""
    if isinstance(value, dict):
        share = value.get("share")
        return Size(share if share is None else parse_share(share), value.get("tokens"))
    if isinstance(value, str) and not value.isdigit():
        return Size(share=parse_share(value))
    if isinstance(value, bool) or not isinstance(value, (str, int)) or int(value) < 1:
        raise ValueError(
            f'{value!r} is no size; write a number of tokens, "50%" or {{ share = "50%", tokens = 100_000 }}'
        )
    return Size(tokens=int(value))


def _checked_share(value: object) -> object:
    if isinstance(value, str):
        parse_share(value)
    return value


def _checked_size(value: object) -> object:
    parse_size(value)
    return value


class SizeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The long form of a size: the smaller of both."""

    share: Annotated[
        str | None,
        Meta(description='Share of the window, for example "50%".', extra={"parse": _checked_share}),
    ] = None
    tokens: Annotated[Count | None, Meta(description="Number of tokens.")] = None

    def __post_init__(self) -> None:
        if self.share is None and self.tokens is None:
            raise Wrong((), "neither share nor tokens is given; write one of them or both")


Amount = Annotated[str | int | SizeTable | None, Meta(extra={"parse": _checked_size})]
