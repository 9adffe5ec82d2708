r"""Stubs that a model copies into a new call: found while the call streams, and never handed on as if they were text.

    write_file(content="Notes:\n[offloaded off_… · result · 12,345 tokens · 400 lines]\n…")

To the model a stub is the text that it stands for, and so it passes the stub on. The client's tool would write the
stub itself into a file.

What holds:

- Only stubs of the present request count. What gives one away is its head, "[offloaded " and the ref; refs alone, refs
  of other requests and texts that look similar are text like any other.
- No encoder of JSON escapes a letter or a bracket. So a head reads the same in the raw arguments, however deep it is
  nested, and can be looked for while they stream. Calls flow until their end may be the beginning of a head.
- A copy is exact when it spells the stub that was sent, character for character and in whatever escapes. It is replaced
  by the original in the raw arguments; every byte around it stays. So what has left already is the beginning of the
  restored arguments, and all else in them is what the model wrote.
- Any other copy is a bad one: nobody knows what was meant. The model is told, and calls again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final, Protocol

from msgspec import Struct

from proxy.core.stub import STUB_START
from proxy.core.wire.raw import write

COPIED: Final = (  # told to the client, where it is too late to tell the model
    "The model put a stub of this gateway into a tool call in the place of the text that it stands for. "
    "The call must not be carried out; send the request again."
)
NOT_EXECUTED: Final = (
    "Not executed, because another call of the same message held a stub instead of a text. Call again if it is needed."
)

_BEFORE_REF: Final = STUB_START.removesuffix("off_")
_HEAD: Final = re.compile(re.escape(STUB_START) + "[a-z2-7]+")
_FRAME_BRACKET: Final = re.compile(rb'"(?:choices|tool_calls)"\s*:\s*\[')
# One character as it can be spelled in a JSON string; raw line ends are none, but models write them.
_JSON_UNIT: Final = re.compile(r'\\u([0-9a-fA-F]{4})|\\(["\\/bfnrt])|([^"\\])', re.DOTALL)
_PLAIN_UNIT: Final = re.compile(r"()()(.)", re.DOTALL)
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Guard(Protocol):
    """The stubs of one request, and the texts that they stand for."""

    @property
    def refs(self) -> Collection[str]:
        """The refs of these stubs."""
        ...

    def stubs(self, ref: str) -> Sequence[str]:
        """Return the stubs with this ref exactly as they were sent: one text may be moved out under two policies."""
        ...

    def original(self, ref: str) -> str | None:
        """Return the text that they stand for; None when it is not at hand."""
        ...


class BadCopies(Struct, frozen=True):
    """Arguments hold copies of stubs with these refs that cannot be replaced by what they stand for."""

    refs: tuple[str, ...]


class Watch:
    """Looks out for copies in calls that stream; one for each upstream round."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._tails: dict[int, str] = {}  # by position of the call: an end that may be the beginning of a head
        self.has_found = False

    @property
    def must_wait(self) -> bool:
        """Whether what comes next has to wait: a stub is copied, or may be."""
        return self.has_found or bool(self._tails)

    def can_skip(self, data: bytes) -> bool:
        """Say whether frames of calls need not be read: there is no bracket in them but for those of a chunk."""
        return not self.must_wait and data.count(b"[") == len(_FRAME_BRACKET.findall(data))

    def follow(self, position: int, piece: str) -> None:
        """Look at what a call's arguments have gained; what was skipped need not be told."""
        text = self._tails.pop(position, "") + piece
        if "[" not in text:
            return
        refs = self._guard.refs
        self.has_found = self.has_found or next(_heads(text, refs), None) is not None
        tail = text[text.rindex("[") :]
        if any((_BEFORE_REF + ref).startswith(tail) for ref in refs):
            self._tails[position] = tail

    def settle(self) -> None:
        """Take all arguments as complete: what only may have been a beginning was none."""
        self._tails.clear()

    def rest(self) -> None:
        """Let everything go on: the copies have been dealt with."""
        self._tails.clear()
        self.has_found = False


def restore(arguments: str, guard: Guard, *, is_json: bool) -> str | BadCopies:
    """Return arguments, JSON or free text, with the original in the place of each copied stub."""
    pieces: list[str] = []
    bad: list[str] = []
    done = 0
    for start, ref in _heads(arguments, guard.refs):
        if start < done:  # a stub within a stub that was copied as a whole
            continue
        end, original = _end(arguments, start, guard.stubs(ref), is_json=is_json), guard.original(ref)
        if end is None or original is None:
            bad.append(ref)
        else:
            pieces += [arguments[done:start], _spelled(original) if is_json else original]
            done = end
    if not bad and pieces and is_json and not _is_json(arguments):
        bad = [ref for _, ref in _heads(arguments, guard.refs)]
    return BadCopies(tuple(dict.fromkeys(bad))) if bad else "".join([*pieces, arguments[done:]])


def explain(copies: BadCopies, tool: str | None) -> str:
    """Return what the model is told of a call with bad copies; `tool` is the name of the reading tool, if there is."""
    reads = ", ".join(f'{tool}(ref="{ref}")' for ref in copies.refs)
    advice = f"Read it with {reads}, then call again with the text itself." if tool else "It cannot be read here."
    return (
        'Not executed: the arguments hold a part of a stub ("[offloaded off_…"). A stub is no content: this gateway '
        f"put it in the place of a text to keep the conversation short. {advice}"
    )


def _heads(text: str, refs: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield where the heads of known stubs begin, with their refs."""
    for found in _HEAD.finditer(text):
        shown = found[0].removeprefix(_BEFORE_REF)
        ref = next((ref for ref in refs if shown.startswith(ref)), None)
        if ref is not None:
            yield found.start(), ref


def _end(arguments: str, start: int, stubs: Sequence[str], *, is_json: bool) -> int | None:
    """Return where a copy of one of these stubs ends that begins here; None when there is no exact one."""
    ends = (_spelling_end(arguments, start, stub, _JSON_UNIT if is_json else _PLAIN_UNIT) for stub in stubs)
    return next((end for end in ends if end is not None), None)


def _spelling_end(raw: str, at: int, text: str, unit: re.Pattern[str]) -> int | None:
    """Return where the spelling of a text ends that begins here; compared are halves of surrogate pairs."""
    wanted, done = _halves(text), 0
    while done < len(wanted):
        found = unit.match(raw, at)
        if found is None:
            return None
        code, escape, plain = found.groups()
        halves = _halves(plain or (chr(int(code, 16)) if code else _ESCAPES.get(escape, escape)))
        if not wanted.startswith(halves, done):
            return None
        done += len(halves)
        at = found.end()
    return at


def _halves(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")


def _spelled(text: str) -> str:
    """Return a text as it stands in a JSON string."""
    return bytes(write(text)).decode()[1:-1]


def _is_json(arguments: str) -> bool:
    try:
        json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return False
    return True
