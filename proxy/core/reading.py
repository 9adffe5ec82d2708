"""Reading back: the tool's declaration, its arguments, and its answers.

Everything the tool shows is one text (an original, the history, the index) given in pages of rows. An answer
starts with one line `@@ rows A-B of T …@@` and then holds the rows, verbatim. It never exceeds its token
budget, unless one row alone does: then it holds that row, so that paging always gets on.

What cannot be answered is refused in plain words that say whether that is final and what to do instead. A ref
of somebody else, one of another history and one that never existed are refused in the same words.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, islice
from typing import Final

import msgspec
from msgspec import Struct

from proxy.core.rows import ROW_BYTES, Matcher, PatternError, Rows, find_rows
from proxy.core.stub import REF_PATTERN, amount

HISTORY: Final = "history"
INDEX: Final = "index"
HITS_MOST: Final = 100_000
_HEAD_TOKENS: Final = 60  # enough for the head of a page with one row
_CONTINUES_TOKENS: Final = 6  # what naming one more row in the head costs
_FIRST_LINE_CHARS: Final = 80
_REF: Final = re.compile(REF_PATTERN)
_QUOTES: Final = " \t\r\n\"'`<>()[]{}"


class ReadRequest(Struct, frozen=True):
    """What the model wants to see: `offset` counts rows from 1, `limit` rows (None: as many as fit)."""

    ref: str
    offset: int = 1
    limit: int | None = None
    pattern: str | None = None


class Refusal(Struct, frozen=True):
    """An answer that holds no rows; `final` says that asking again cannot help."""

    text: str
    final: bool


class ReadOptions(Struct, frozen=True):
    """How an answer is made. Row numbers depend on `row_bytes`, so it must not change within a session."""

    budget_tokens: int
    count: Callable[[str], int]
    compile: Callable[[str], Matcher]
    row_bytes: int = ROW_BYTES


class HistoryCall(Struct, frozen=True):
    """A tool call inside a message of the history."""

    id: str
    name: str
    arguments: str


class HistoryEntry(Struct, frozen=True):
    """One message of the history, as `history` shows it."""

    index: int
    role: str
    call_id: str | None
    name: str | None
    text: str
    calls: tuple[HistoryCall, ...] = ()


class IndexItem(Struct, frozen=True):
    """One original, as `index` lists it."""

    ref: str
    kind: str
    tool: str | None
    tokens: int
    lines: int
    first_line: str


class _Unclear(ValueError):
    """An argument whose meaning is not clear."""


# ---- arguments


def row_bytes(read_tokens: int) -> int:
    """Return the size of rows of which each fits an answer of `read_tokens`, head included."""
    return max(64, min(ROW_BYTES, read_tokens - _HEAD_TOKENS))


def parse_request(arguments: str) -> ReadRequest | Refusal:
    """Understand the arguments of a call: forgiving where the meaning is clear, else a refusal."""
    try:
        fields = _fields(arguments)
        name = _name(fields.get("ref"))
        if name is None:
            return unknown_ref()
        return ReadRequest(
            ref=name,
            offset=_offset(fields.get("offset")),
            limit=_limit(fields.get("limit")),
            pattern=_pattern(fields.get("pattern")),
        )
    except _Unclear as unclear:
        return bad_arguments(str(unclear))


def _fields(arguments: str) -> dict[str, object]:
    if _REF.fullmatch(arguments.strip(_QUOTES)):
        return {"ref": arguments}
    value: object = arguments
    for _ in range(2):  # some models encode the object twice
        if isinstance(value, str):
            value = _decode(value)
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise _Unclear("its arguments are not a JSON object")


def _decode(text: str) -> object:
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _Unclear("its arguments are not valid JSON") from None


def _name(value: object) -> str | None:
    """Return the ref, `history` or `index` that is meant; None for what names nothing."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise _Unclear("it has no ref" if value is None else "its ref is not a string")
    word = value.strip(_QUOTES)
    if word.casefold() in (HISTORY, INDEX):
        return word.casefold()
    found = set(_REF.findall(word))
    return found.pop() if len(found) == 1 else None


def _offset(value: object) -> int:
    number = _whole("offset", value)
    if number is not None and number < 0:
        raise _Unclear("its offset is negative; rows count from 1")
    return number or 1


def _limit(value: object) -> int | None:
    number = _whole("limit", value)
    return number if number is not None and number > 0 else None


def _whole(name: str, value: object) -> int | None:
    """Return a whole number however it is spelled, None for what means nothing."""
    if isinstance(value, str):
        word = value.strip(_QUOTES).replace(",", "").replace("_", "")
        if word.casefold() in ("", "null", "none"):
            return None
        value = _number(word)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    message = f"its {name} is not a whole number"
    raise _Unclear(message)


def _number(word: str) -> object:
    if re.fullmatch(r"[+-]?[0-9]{1,18}(\.0*)?", word):
        return int(word.partition(".")[0])
    return word


def _pattern(value: object) -> str | None:
    if value in (None, ""):
        return None
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    raise _Unclear("its pattern is not a string")


# ---- refusals


def unknown_ref() -> Refusal:
    """Refuse a ref that this history does not hold, whoever else may."""
    return Refusal(
        "Nothing is stored under this ref for this conversation. This is final: do not try it again. "
        'To see which refs exist, call with ref="index"; to get the text anew, run its tool again.',
        final=True,
    )


def erased_ref() -> Refusal:
    """Refuse a ref whose original was erased by the administration."""
    return Refusal(
        "The text under this ref was erased on purpose. This is final: do not try it again. "
        "If it is needed, run its tool again or ask the user.",
        final=True,
    )


def expired_ref() -> Refusal:
    """Refuse a ref whose original was not used for too long."""
    return Refusal(
        "The text under this ref was unused for too long and has expired. This is final: do not try again. "
        'To get the text anew, run its tool again; ref="index" lists what can still be read.',
        final=True,
    )


def store_unavailable() -> Refusal:
    """Refuse while the store cannot be reached."""
    return Refusal(
        "The store cannot be reached at the moment. This is not final: make the same call once more later, "
        "or go on without this text and say so.",
        final=False,
    )


def bad_pattern(reason: str) -> Refusal:
    """Refuse a pattern that cannot be used."""
    return Refusal(
        f"This pattern cannot be used: {reason}. That is final for this pattern: do not send it again. "
        "Call with a corrected one (RE2 syntax), or without pattern and with offset.",
        final=True,
    )


def bad_arguments(reason: str) -> Refusal:
    """Refuse a call that cannot be understood."""
    return Refusal(
        f"This call cannot be answered: {reason}. That is final for these arguments: do not send them again. "
        'Call with {"ref": "off_…"}, where ref is a ref from a stub, "index" or "history", '
        "and, if wanted, offset and limit as whole numbers and pattern as a string.",
        final=True,
    )


def offset_beyond(offset: int, rows: int) -> Refusal:
    """Refuse an offset behind the last row."""
    reach = "only row 1" if rows == 1 else f"rows 1 to {rows}"
    return Refusal(
        f"There is no row {offset}: this text has {reach}. That is final for this offset: "
        f"call with an offset from 1 to {rows}.",
        final=True,
    )


# ---- pages


class _Page(Struct, frozen=True):
    """The rows that one answer may show, by number from zero, and what its head says of the rest."""

    rows: Rows
    numbers: Sequence[int]
    hits: str | None

    def line(self, number: int) -> str:
        text = self.rows[number].text
        return text if self.hits is None else f"{number + 1}: {text}"


def render_page(text: str, request: ReadRequest, options: ReadOptions) -> str:
    """Return the answer to a request for rows of a text; a refusal where there are none to show."""
    rows = Rows(text, options.row_bytes)
    start = request.offset - 1
    if request.pattern is not None:
        return _render_hits(rows, request, options)
    if start >= len(rows):
        return offset_beyond(request.offset, len(rows)).text
    return _fill(_Page(rows, range(start, len(rows)), None), request.limit, options)


def _render_hits(rows: Rows, request: ReadRequest, options: ReadOptions) -> str:
    try:
        hits = find_rows(rows, options.compile(request.pattern or ""), HITS_MOST)
    except PatternError as error:
        return bad_pattern(str(error)).text
    found = f"{len(hits)}{' or more' if len(hits) == HITS_MOST else ''} hit{'' if len(hits) == 1 else 's'}"
    if not hits:
        return f"@@ rows 0-0 of {len(rows)} · {found} · try a shorter pattern, or (?i) to ignore case @@"
    wanted = hits[bisect_left(hits, request.offset - 1) :]
    if not wanted:
        where = f"none from row {request.offset} on · the first with offset={hits[0] + 1}"
        return f"@@ rows 0-0 of {len(rows)} · {found}, {where} @@"
    return _fill(_Page(rows, wanted, found), request.limit, options)


def _fill(page: _Page, limit: int | None, options: ReadOptions) -> str:
    """Return the page with as many rows as limit and budget allow, at least one."""
    size = _estimate(page, limit, options)
    while True:
        answer = _compose(page, size)
        if size == 1 or (cost := options.count(answer)) <= options.budget_tokens:
            return answer
        size = max(1, min(size - 1, size * options.budget_tokens // cost))


def _estimate(page: _Page, limit: int | None, options: ReadOptions) -> int:
    """Return how many rows fit if each is counted alone."""
    left = options.budget_tokens - _HEAD_TOKENS
    size = 0
    for number in islice(page.numbers, limit):
        left -= options.count(page.line(number) + "\n")
        left -= _CONTINUES_TOKENS if page.rows[number].continues else 0
        if left < 0:
            break
        size += 1
    return max(1, size)


def _compose(page: _Page, size: int) -> str:
    shown = page.numbers[:size]
    return "\n".join([_head(page, shown), *(page.line(number) for number in shown)])


def _head(page: _Page, shown: Sequence[int]) -> str:
    notes = [f"rows {shown[0] + 1}-{shown[-1] + 1} of {len(page.rows)}"]
    is_last = len(shown) == len(page.numbers)
    if page.hits is not None:
        notes.append(page.hits if is_last else f"{page.hits}, {len(shown)} shown")
    notes.append("end" if is_last else f"next offset={shown[-1] + 2}")
    if runs := _runs([number + 1 for number in shown if page.rows[number].continues]):
        many = "," in runs or "-" in runs
        notes.append(f"row{'s' if many else ''} {runs} continue{'' if many else 's'} in the next")
    return f"@@ {' · '.join(notes)} @@"


def _runs(numbers: Sequence[int]) -> str:
    """Return numbers as text, runs of them folded: 2-5, 9."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


# ---- what is read besides originals


def render_history(entries: Iterable[HistoryEntry]) -> str:
    """Return the history as one text: a header line for each message, its text unescaped, its calls."""
    return "\n".join(line for entry in entries for line in _history_lines(entry))


def _history_lines(entry: HistoryEntry) -> list[str]:
    parts = [f"message {entry.index}", entry.role, entry.call_id, entry.name]
    header = f"--- {' · '.join(_one_line(part) for part in parts if part)} ---"
    calls = [f"{_one_line(call.id)} {_one_line(call.name)} {call.arguments}" for call in entry.calls]
    return [header, *([entry.text] if entry.text else []), *calls]


def render_index(items: Iterable[IndexItem]) -> str:
    """Return the list of what is stored, one line for each ref."""
    lines = [
        f"{item.ref} · {item.kind} · {item.tool or '-'} · {amount(item.tokens, 'token')} · "
        f"{amount(item.lines, 'line')} · {_one_line(item.first_line)[:_FIRST_LINE_CHARS]}"
        for item in items
    ]
    return "\n".join(lines) or "Nothing is stored for this conversation."


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
