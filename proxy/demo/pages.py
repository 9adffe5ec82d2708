"""Answers of the reading tool, put together again: a reader of what the gateway writes, and not made of its code.

@@ rows 1-3 of 5 · next offset=4 · row 2 continues in the next @@
first row
…
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

_HEAD = re.compile(r"@@ rows (?P<first>\d+)-(?P<last>\d+) of (?P<total>\d+) · (?P<notes>.*) @@")
_NEXT = re.compile(r"next offset=(\d+)")
_CONTINUED = re.compile(r"rows? ([\d, -]+) continues? in the next")


class NotAPage(ValueError):
    """An answer is no page of rows; the text is the answer."""


class Page(Struct, frozen=True):
    """One answer: its rows by number, which of them go on in the next, and where the next page begins."""

    rows: dict[int, str]
    continued: frozenset[int]
    following: int | None
    total: int


def parse_page(answer: str) -> Page:
    """Understand an answer; raises NotAPage for a refusal."""
    head, _, body = answer.partition("\n")
    found = _HEAD.fullmatch(head)
    if found is None:
        raise NotAPage(answer)
    first, last = int(found["first"]), int(found["last"])
    rows = dict(zip(range(first, last + 1), body.split("\n"), strict=True))
    following, continued = _NEXT.search(found["notes"]), _CONTINUED.search(found["notes"])
    return Page(
        rows=rows,
        continued=frozenset(_numbers(continued[1])) if continued else frozenset(),
        following=int(following[1]) if following else None,
        total=int(found["total"]),
    )


def join_pages(pages: Iterable[Page]) -> str:
    """Return the text that pages in sequence make up: lines end at rows that do not go on."""
    lines = "".join(
        text if number in page.continued else f"{text}\n" for page in pages for number, text in page.rows.items()
    )
    return lines.removesuffix("\n")


def _numbers(runs: str) -> Iterator[int]:
    """Yield the numbers of `2-5, 9`."""
    for run in runs.split(", "):
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)
