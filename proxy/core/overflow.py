"""Recognises that a prompt did not fit, in the words of every provider, and reads the numbers in them.

There is no agreed form: status 400, 413, 422 or 500, or 200 with the error inside; an object, a list, an error on the
top level, in another error's text, or in an event of a stream. So the strings that speak to people and the codes are
gathered from wherever they may be, and these decide. What speaks of rates, of the length of the answer alone, of
pictures or of single fields is no overflow, however long it says things are. Nothing that echoes a request is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from proxy.core.sse import Splitter, read_frame
from proxy.core.window import is_plausible
from proxy.core.wire.raw import read_any, read_array, read_object

_STATUSES: Final = frozenset({400, 413, 422, 500})
_MOST_BYTES: Final = 65_536  # of an answer that is no success; a longer one is a page for people
_MOST_CHARS: Final = 2_000  # of one text; what follows is an echo
_MOST_TEXTS: Final = 16
_MOST_DEPTH: Final = 6

_TEXTS: Final = frozenset({"message", "msg", "detail", "error", "raw", "error_message"})
_CODES: Final = frozenset({"code", "type", "status", "error_type", "param", "error_code"})
_INSIDE: Final = frozenset({"error", "errors", "detail", "response", "metadata", "innererror"})

_OVERFLOW_CODES: Final = frozenset(
    {
        "1261",  # Z.ai
        "context_length_exceeded",
        "context_window_exceeded",
        "contextwindowexceedederror",
        "exceed_context_size_error",
        "input_too_long",
        "model_context_window_exceeded",
        "model_max_prompt_tokens_exceeded",
        "prompt_too_long",
        "request_too_large",
        "tokens_limit_reached",
    }
)

_RATE: Final = re.compile(
    r"per[ -]?(?:minute|min|hour|day|second|week|month)\b|\b[tr]p[mdhs]\b|rate.?limit|quota|throttl"
    r"|too many requests|number of requests|concurren",
    re.IGNORECASE,
)
_ELSE: Final = re.compile(  # other things that are too long, and too long answers
    r"(?:string|array) too long|(?:string|array)_above_max_length|number of tools"
    r"|\b(?:image|audio|video|pixel|resolution|attachment|file)s?\b",
    re.IGNORECASE,
)
_ANSWER: Final = re.compile(
    r"max_(?:completion_|output_)?tokens\b.{0,80}(?:too large|too high|must be|exceed|at most|>|less than|greater)",
    re.IGNORECASE,
)
_CONTEXT: Final = re.compile(r"context[ _-]?(?:length|window|size|limit)", re.IGNORECASE)
_PASSED: Final = re.compile(
    r"exceed|maximum|\bmax\b|too (?:long|large|big|small|many)|long(?:er)?\b|larg(?:er)?\b|greater|reduce|only|overflow"
    r"|reached|\bover\b|less than|\bfull\b|not enough|>",
    re.IGNORECASE,
)
_PHRASES: Final = re.compile(
    r"\b(?:prompts?|inputs?|requests?|request body|conversation|messages?)\b.{0,40}\btoo (?:long|large)\b"
    r"|\b(?:prompts?|inputs?|messages?)\b.{0,60}\bexceed\w*\b.{0,60}\b(?:max\w*|limit|allowed|length|size)\b"
    r"|\brequest\b.{0,40}\bexceed\w*\b.{0,40}\b(?:tokens?|length|maximum size)\b"
    r"|maximum (?:prompt|input|allowed input|sequence|model) length"
    r"|reduce the (?:length|size) of (?:the |your )?(?:messages|prompt|input|conversation)"
    r"|\btoo many (?:input |prompt |total )?tokens"
    r"|\d (?:input|prompt) tokens\b.{0,40}\b(?:limit|maximum|max)\b"
    r"|range of input length|`?inputs`? tokens \+|`?inputs`? must have less"
    r"|no user query found|context shift is disabled",
    re.IGNORECASE | re.DOTALL,
)

# What the numbers in a text are, the surest form first; # stands for a number. Lower bounds ("at least") are not read.
_FORMS: Final = (
    ("prompt output window", r"# \+ # > #"),
    ("output window prompt", r"\(# > # - #\)"),
    ("prompt window", r"# tokens? > # maximum"),
    (
        "prompt",
        r"(?:resulted in|prompt contains|request contains|request has|you passed|uses) # (?:input |prompt )?tokens",
    ),
    ("prompt", r"(?:input|prompt) token count (?:is |of )?\(?#"),
    ("prompt", r"(?:input length|prompt is too long:|current length is|requested:|received|given:) \(?#"),
    ("prompt", r"(?:prompt|input|request) \(# tokens"),
    ("prompt", r"# (?:tokens )?(?:in|from) (?:the |your )?(?:input )?(?:messages|prompt)"),
    ("total", r"requested (?:about |a total of )?# tokens"),
    ("output", r"requested # output tokens"),
    ("output", r"# (?:tokens )?(?:in|for|of) the (?:completion|output)"),
    ("output", r"# `?max_new_tokens"),
    ("window", r"context (?:length|window|size|limit)(?::| is| of| ?\()[^\d.;]{0,20}#"),
    ("window", r"# maximum context"),
    ("window", r"maximum (?:prompt|input|allowed input|sequence|model) length (?:is |of )?\(?#"),
    ("window", r"maximum number of tokens allowed \(?#"),
    ("window", r"(?:\blimit(?: is| of|:)?|max size:|must be <=|less than|cannot exceed|\[1,) #"),
)
_NUMBERS: Final = tuple(
    (names.split(), re.compile(form.replace("#", r"(\d{1,3}(?:[,_]\d{3})+|\d+)"), re.IGNORECASE))
    for names, form in _FORMS
)


class Overflow(Struct, frozen=True):
    """A prompt that did not fit; numbers of tokens as far as they were told and make sense together."""

    window_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class _Said(Struct):
    """What an answer says about an error."""

    texts: list[str]
    codes: list[str]
    numbers: dict[str, int]


def recognise(status: int, body: bytes) -> Overflow | None:
    """Return what an answer says about the window, or None when it is no overflow; a 200 may hold an error, too."""
    if status == 200:
        return _judge(read_any(body)) if _is_error(body) else None
    if status not in _STATUSES or len(body) > _MOST_BYTES:
        return None
    value = read_any(body)
    return _judge({"message": body.decode("utf-8", "replace")} if value is None else value)


def recognise_event(data: bytes) -> Overflow | None:
    """Return the same of one event of a stream that began with success."""
    return _judge(read_any(data)) if len(data) <= _MOST_BYTES and _is_error(data) else None


def recognise_stream(head: bytes) -> Overflow | None:
    """Return the same of the beginning of a stream: only an error that comes before anything else counts."""
    splitter = Splitter()
    frames = [*splitter.feed(head), splitter.close()]
    first = next((data for frame in frames if (data := read_frame(frame).data)), None)
    return None if first is None else recognise_event(first)


def is_truncated(counted_tokens: int, reported_tokens: int) -> bool:
    """Tell whether an upstream cut a prompt silently: of what was counted it saw less than half.

    Tokenizers differ by less than that, other than estimates by size. Small prompts and odd reports tell nothing.
    """
    return counted_tokens > 1_000 and 0 < reported_tokens < counted_tokens / 2


def _is_error(body: bytes) -> bool:
    """Say whether a success holds an error on its top level, or as the first of a list."""
    if b"error" not in body and b"response.failed" not in body:
        return False
    listed = read_array(body)
    fields = read_object(listed[0] if listed else body)
    if fields is None:
        return False
    kinds = (bytes(fields[name]) for name in ("type", "object") if name in fields)
    is_told = bytes(fields.get("error", b"null")) not in (b"null", b"false", b'""', b"{}")
    return is_told or any(kind in (b'"error"', b'"response.failed"') for kind in kinds)


def _judge(value: object) -> Overflow | None:
    said = _Said([], [], {})
    _gather(value, said, 0)
    codes = " ".join(said.codes)
    texts = [text for text in said.texts if not _is_else(text)]
    if _RATE.search(codes) or any(_RATE.search(text) for text in said.texts):
        return None
    if _OVERFLOW_CODES.isdisjoint(said.codes) and (_ELSE.search(codes) or not any(map(_speaks_of_it, texts))):
        return None
    return _read(texts, said.numbers)


def _is_else(text: str) -> bool:
    if _CONTEXT.search(text):
        return False
    return _ELSE.search(text) is not None or _ANSWER.search(text) is not None


def _speaks_of_it(text: str) -> bool:
    return bool(_PHRASES.search(text) or (_CONTEXT.search(text) and _PASSED.search(text)))


def _gather(value: object, said: _Said, depth: int) -> None:
    """Collect texts, codes and numbers from the places where errors keep them."""
    if depth > _MOST_DEPTH or len(said.texts) > _MOST_TEXTS:
        return
    if isinstance(value, list):
        for item in value[:8]:
            _gather(item, said, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            _take(key, item, said)
            if key in _INSIDE and isinstance(item, dict | list):
                _gather(item, said, depth + 1)
            elif key in _TEXTS and isinstance(item, str) and (inner := _inner(item)) is not None:
                _gather(inner, said, depth + 1)


def _take(key: str, item: object, said: _Said) -> None:
    if key in _TEXTS and isinstance(item, str):
        said.texts.append(item[:_MOST_CHARS])
    if key in _CODES and isinstance(item, str | int):
        said.codes.append(str(item).lower())
    if key in ("n_ctx", "n_prompt_tokens") and isinstance(item, int):
        said.numbers["window" if key == "n_ctx" else "prompt"] = item


def _inner(text: str) -> object | None:
    """Return the error that a router passes on as text inside its own, or None."""
    start = text.find("{")
    return read_any(text[start:].encode("utf-8", "replace")) if 0 <= start < _MOST_CHARS else None


def _read(texts: list[str], numbers: dict[str, int]) -> Overflow:
    """Return the numbers of the first text that has them; fields win over words."""
    found = dict(_numbers(texts)) | numbers
    window, prompt, output = found.get("window"), found.get("prompt"), found.get("output")
    if "total" in found and output is not None:
        prompt = found["total"] - output
    if not is_plausible(window):
        window = None
    if prompt is not None and (prompt <= 0 or (window is not None and prompt + (output or 0) <= window)):
        prompt = None
    return Overflow(window, prompt, output)


def _numbers(texts: list[str]) -> Iterator[tuple[str, int]]:
    """Yield named numbers; where one is told twice, the surest form of the first text comes last."""
    for text in reversed(texts):
        for names, pattern in reversed(_NUMBERS):
            found = pattern.search(text)
            if found is not None:
                yield from ((name, _number(value)) for name, value in zip(names, found.groups(), strict=True))


def _number(digits: str) -> int:
    return int(re.sub(r"[,_]", "", digits)[:12])
