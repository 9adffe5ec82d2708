"""Regular expressions from models, run by RE2: no back-tracking, so no pattern takes more than linear time.

Linear still means the size of the pattern times the size of the text, where a pattern is too large for RE2's
cache of states. So patterns are limited in length and in compiled size, and one search in time; callers hand
over the text in blocks, between which the clock is read. RE2 releases the interpreter lock while it searches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import re2

from proxy.core.rows import Matcher, PatternError

__all__ = ["PATTERN_CHARS", "Matcher", "PatternError", "compile_pattern"]

PATTERN_CHARS: Final = 1_000
_PROGRAM_SIZE: Final = 5_000
_SEARCH_SECONDS: Final = 2.0
_LINE_MODE: Final = b"(?m)"
_TOO_LARGE: Final = "it is too large; use a shorter one, with smaller repetitions"
_TOO_SLOW: Final = "the search took too long; use a simpler one, with smaller repetitions"


def compile_pattern(pattern: str, clock: Callable[[], float] = time.monotonic) -> Matcher:
    """Return a matcher for one search over one text; raises `PatternError` for what RE2 refuses."""
    if len(pattern) > PATTERN_CHARS:
        raise PatternError(f"it has {len(pattern)} characters, at most {PATTERN_CHARS} are allowed")
    try:
        compiled = re2.compile(_LINE_MODE + pattern.encode(), _options())
    except UnicodeEncodeError:
        raise PatternError("it holds half a surrogate pair") from None
    except re2.error as error:
        raise PatternError(_reason(error)) from None
    finally:
        re2.purge()  # the module would keep 128 patterns, each with up to 8 MiB of states
    if compiled.programsize > _PROGRAM_SIZE:
        raise PatternError(_TOO_LARGE)
    return _Search(compiled.search, clock)


class _Search:
    """A compiled pattern with the time that its search may still take."""

    def __init__(self, search: Callable[[bytes, int], re2._Match | None], clock: Callable[[], float]) -> None:
        self._search = search
        self._clock = clock
        self._deadline = clock() + _SEARCH_SECONDS

    def find(self, data: bytes, start: int) -> int:
        """Return where the first match at byte `start` or later begins, or -1."""
        if self._clock() > self._deadline:
            raise PatternError(_TOO_SLOW)
        match = self._search(data, start)
        return -1 if match is None else int(match.start())


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False  # RE2 would write bad patterns to standard error
    options.never_nl = True  # a match stays in one line
    return options


def _reason(error: Exception) -> str:
    """Return RE2's words for what is wrong; they come as bytes."""
    detail = error.args[0] if error.args else b""
    text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
    text = text.replace(_LINE_MODE.decode(), "", 1)  # ours, not the model's
    if "pattern too large" in text:
        return _TOO_LARGE
    if "(?=" in text or "(?!" in text or "(?<" in text or "invalid escape" in text:
        return f"{text} (look-around and back-references are not supported)"
    return text or "RE2 cannot read it"
