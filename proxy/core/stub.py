"""Stubs: the text left in place of an original.

    [offloaded off_… · result · 12,345 tokens · 400 lines]
    first lines of the original
    … 390 lines not shown …
    last lines of the original
    [to read it: read_offloaded(ref="off_…", offset=6)]

A stub is a pure function of the original and its spec: no time, no counter, nothing random. So every replica
writes the same bytes and the provider's prompt cache holds. Shown lines are the original's own, cut at 300
characters with " …" behind the cut, 400 tokens in all, and no line is shown twice.

Text that imitates a stub is only ever data. `find_markers` looks for stubs that a model copied into a new
call. It judges the form: head, number of lines and last line must agree. That the lines between are the
original's is known only by rendering the stub again and comparing.
"""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import zip_longest
from typing import Final

from msgspec import Struct

from proxy.core.rows import count_lines, to_bytes

CUT_CHARS: Final = 300
PREVIEW_TOKENS: Final = 400
REF_PATTERN: Final = "off_[a-z2-7]{26,}"
STUB_START: Final = "[offloaded off_"  # how every stub begins, for streams that must look out for one
_REF_CHARS: Final = 26
_CUT_MARK: Final = " …"
_PREVIEW_CHARS: Final = 131_072  # longer than any preview: a token is at most 128 characters
_NUMBER: Final = "[0-9][0-9,]{0,17}"
_HEAD: Final = re.compile(
    rf"\[offloaded (?P<ref>{REF_PATTERN}) · [^·\[\]\n]+ · {_NUMBER} tokens? · (?P<lines>{_NUMBER}) lines?\]",
)
_END: Final = re.compile(
    rf'\n\[(?:to read it: [\w-]+\(ref="(?P<ref>{REF_PATTERN})"(?:, offset=[0-9]+)?\)'
    rf"|(?P<closed>{REF_PATTERN}) cannot be read in this request)\]",
)
_GAP: Final = re.compile(rf"… (?P<lines>{_NUMBER}) lines? not shown …")
_ANY: Final = re.compile(rf"{_HEAD.pattern}|(?P<bare>{REF_PATTERN})")

Count = Callable[[str], int]


class StubSpec(Struct, frozen=True):
    """What a stub says about its original, and how much of it is shown."""

    ref: str
    tool: str | None
    """Name of the reading tool; None: the original cannot be read in this request."""
    kind: str
    tokens: int
    lines: int
    """As `count_lines` counts them."""
    head_lines: int
    tail_lines: int


class Marker(Struct, frozen=True):
    """A whole stub (`complete`), the head of a damaged one, or a bare ref, at `text[start:end]`."""

    ref: str
    start: int
    end: int
    complete: bool


class _Line(Struct, frozen=True):
    """A line to be shown: as much of it as is, and whether that is all."""

    text: str
    whole: bool

    @property
    def shown(self) -> str:
        return self.text if self.whole else self.text + _CUT_MARK


def make_ref(secret: bytes, root: bytes, original: bytes) -> str:
    """Return the ref of an original under a root: 130 bits of a keyed hash."""
    key = secret if len(secret) <= blake2b.MAX_KEY_SIZE else blake2b(secret).digest()
    digest = blake2b(len(root).to_bytes(8, "big"), key=key, digest_size=20, person=b"ullage ref")
    digest.update(root)
    digest.update(original)
    return "off_" + b32encode(digest.digest()).decode("ascii").lower()[:_REF_CHARS]


def render_stub(text: str, spec: StubSpec, count: Count) -> str:
    """Return the stub for an original; `count` gives the tokens of a text."""
    head, tail = _preview(text, spec, count)
    shown = len(head) + len(tail)
    hidden = spec.lines - shown
    gap = [f"… {amount(hidden, 'line')} not shown …"] if shown and hidden else []
    size = f"{amount(spec.tokens, 'token')} · {amount(spec.lines, 'line')}"
    return "\n".join(
        [
            f"[offloaded {spec.ref} · {spec.kind} · {size}]",
            *(line.shown for line in head),
            *gap,
            *(line.shown for line in tail),
            _last_line(spec, head if hidden else head + tail),
        ],
    )


def is_worthwhile(stub: str, text: str, tokens: int, count: Count) -> bool:
    """Tell whether a stub is at most half of its original, of `tokens` tokens, by tokens and by bytes."""
    return 2 * len(to_bytes(stub)) <= len(to_bytes(text)) and 2 * count(stub) <= tokens


def find_markers(text: str) -> list[Marker]:
    """Return the stubs and refs in a text, in order, without overlap."""
    if "off_" not in text:
        return []
    ends = _ends(text)
    markers: list[Marker] = []
    done = 0
    for found in _ANY.finditer(text):
        if found.start() >= done:
            marker = _marker(text, found, ends)
            markers.append(marker)
            done = marker.end
    return markers


def amount(number: int, unit: str) -> str:
    """Return a number with its unit, in the singular or plural."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def _last_line(spec: StubSpec, front: Sequence[_Line]) -> str:
    if spec.tool is None:
        return f"[{spec.ref} cannot be read in this request]"
    # The first row that is not shown whole; lines shown whole are short, so each of them is one row.
    offset = next((at for at, line in enumerate(front) if not line.whole), len(front)) + 1
    argument = f", offset={offset}" if 1 < offset <= spec.lines else ""
    return f'[to read it: {spec.tool}(ref="{spec.ref}"{argument})]'


def _preview(text: str, spec: StubSpec, count: Count) -> tuple[list[_Line], list[_Line]]:
    """Return the lines to show from the start and from the end."""
    lines = count_lines(text)
    most_tail = min(spec.tail_lines, max(lines - spec.head_lines, lines // 2))
    most_head = min(spec.head_lines, lines - most_tail)
    head = [_cut(line) for line in text.split("\n", most_head)[:most_head]]
    tail = [_cut(line) for line in text.rsplit("\n", most_tail)[-most_tail:]] if most_tail else []
    return _within_budget(head, tail, count)


def _cut(line: str) -> _Line:
    return _Line(line[:CUT_CHARS], whole=len(line) <= CUT_CHARS)


def _within_budget(head: list[_Line], tail: list[_Line], count: Count) -> tuple[list[_Line], list[_Line]]:
    """Keep lines from the outside inwards while they fit; the first and the last are rather shortened."""
    first, last = head[:1], tail[-1:]
    if sum(_cost(line, count) for line in first + last) > PREVIEW_TOKENS:
        share = PREVIEW_TOKENS // len(first + last)
        short = [_shorten(line, share, count) for line in first + last]
        return short[: len(first)], short[len(first) :]
    left = PREVIEW_TOKENS
    kept: tuple[list[_Line], list[_Line]] = ([], [])
    is_full = [False, False]
    for pair in zip_longest(head, reversed(tail)):
        for side, line in enumerate(pair):
            if line is None or is_full[side]:
                continue
            cost = _cost(line, count)
            is_full[side] = cost > left
            if not is_full[side]:
                left -= cost
                kept[side].append(line)
    return kept[0], kept[1][::-1]


def _cost(line: _Line, count: Count) -> int:
    return count(line.shown + "\n")


def _shorten(line: _Line, tokens: int, count: Count) -> _Line:
    while len(line.text) > 1 and (cost := _cost(line, count)) > tokens:
        keep = min(len(line.text) - 1, len(line.text) * tokens // cost)
        line = _Line(line.text[: max(1, keep)], whole=False)
    return line


def _ends(text: str) -> dict[str, list[tuple[int, int]]]:
    """Return where last lines of stubs are, for each ref, the first one at the end of its list."""
    ends: dict[str, list[tuple[int, int]]] = {}
    for found in _END.finditer(text):
        ends.setdefault(found["ref"] or found["closed"], []).append(found.span())
    for spans in ends.values():
        spans.reverse()
    return ends


def _marker(text: str, found: re.Match[str], ends: dict[str, list[tuple[int, int]]]) -> Marker:
    """Return the marker that begins with this head or bare ref."""
    ref = found["ref"]
    if ref is None:
        return Marker(found["bare"], found.start(), found.end(), complete=False)
    mine = ends.get(ref, [])
    while mine and mine[-1][0] < found.end():
        mine.pop()
    if mine and mine[-1][0] - found.end() <= _PREVIEW_CHARS:
        begin, end = mine[-1]
        if _agrees(text[found.end() : begin], _number(found)):
            return Marker(ref, found.start(), end, complete=True)
    return Marker(ref, found.start(), found.end(), complete=False)


def _agrees(body: str, lines: int) -> bool:
    """Tell whether the shown lines and the gap between them make up the lines that the head gives."""
    if not body:
        return True
    rest, *shown = body.split("\n")  # `rest` is what follows the head on its own line
    if rest or any(len(line) > CUT_CHARS + len(_CUT_MARK) for line in shown):
        return False
    gaps = [_number(gap) for line in shown if (gap := _GAP.fullmatch(line))]
    return len(shown) == lines or any(len(shown) - 1 + gap == lines for gap in gaps)


def _number(found: re.Match[str]) -> int:
    return int(found["lines"].replace(",", ""))
