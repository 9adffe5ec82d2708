"""How the store in memory finds things by name and shows them page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from proxy.store.base import PageRequest, encode_cursor

T = TypeVar("T")


class Numbered(Protocol):
    """What lists go through: numbers grow with every new thing and are never used twice."""

    number: int


N = TypeVar("N", bound=Numbered)


def things_of(things: Mapping[tuple[str, str], T], tenant: str | None, name: str) -> list[T]:
    """Return the thing of that name, of one tenant or of all that have one."""
    if tenant is not None:
        return [things[tenant, name]] if (tenant, name) in things else []
    return [thing for (_, other), thing in things.items() if other == name]


def page_of(things: Sequence[N], page: PageRequest) -> tuple[list[N], str | None]:
    """Return a part of the things, last created first, and the cursor of what follows."""
    before = page.position
    ordered = sorted(things, key=lambda thing: -thing.number)
    rest = [thing for thing in ordered if before is None or thing.number < before]
    chosen = rest[: page.size]
    return chosen, encode_cursor(chosen[-1].number) if len(rest) > page.size else None
