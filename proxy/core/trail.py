"""The trail: what was done in a span, read off its calls and their answers by code.

Models lose file names and exit codes when they summarise, so nobody is asked: files by what tools did with them, the
last commands with how they ended, the latest to-do list, the last errors. Bounded, oldest left out first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from proxy.core.deeds import deeds

_EXIT = re.compile(
    r"(?:exit(?:ed)?(?: with)?(?:[ _]code| status)?|returncode|return code)\D{0,3}?(-?\d+)", re.IGNORECASE
)
_ERROR = re.compile(r"^.*(?:error\b|exception|traceback|failed|fatal).*$", re.IGNORECASE | re.MULTILINE)
_MOST_FILES, _MOST_COMMANDS, _MOST_ERRORS = 30, 8, 3
_LINE_CHARACTERS, _TODO_CHARACTERS = 160, 1200


class Act(msgspec.Struct, frozen=True):
    """One call with its answer."""

    tool: str
    arguments: str
    answer: str


def render_trail(acts: Iterable[Act]) -> str:
    """Return the trail of these calls, oldest first; empty when there is nothing to say."""
    read: dict[str, None] = {}
    changed: dict[str, None] = {}
    commands: list[str] = []
    errors: list[str] = []
    todo = ""
    for act in acts:
        done = deeds(act.tool, act.arguments)
        for deed in done:
            for paths, files in ((deed.read, read), (deed.changed, changed)):
                for path in map(_line, paths):
                    files.pop(path, None)  # to the end: it is in use again
                    files[path] = None
            # One answer to several calls in one does not say which of them ended how.
            commands += [_command(command, act.answer if len(done) == 1 else "") for command in deed.commands]
            todo = _cut(deed.todo, _TODO_CHARACTERS) if deed.todo else todo
        errors += error_lines(act.answer)
    read = {path: None for path in read if path not in changed}
    lines = [
        _listed("files changed", list(changed)[-_MOST_FILES:]),
        _listed("files read", list(read)[-_MOST_FILES:]),
        _listed("commands, newest last", commands[-_MOST_COMMANDS:], "\n  "),
        _listed("latest to-do list", [todo] if todo else []),
        _listed("last errors reported by tools", errors[-_MOST_ERRORS:], "\n  "),
    ]
    return "\n".join(filter(None, lines)).encode("utf-8", "replace").decode()  # ledgers hold no lone surrogates


def error_lines(answer: str) -> list[str]:
    """Return the line that names the error: the first, but the last of a traceback, which ends with it."""
    found = [match[0] for match in _ERROR.finditer(answer[-4000:])]
    return [_line(found[-1 if "traceback" in found[0].lower() else 0])] if found else []


def failed(answer: str) -> bool:
    """Say whether a tool's answer reports a failure: an exit code that is not 0, or without one a line of an error."""
    found = _exit(answer)
    return found[1] != "0" if found else bool(error_lines(answer))


def _command(command: str, answer: str) -> str:
    found = _exit(answer)
    return _line(command) + (f" -> exit {found[1]}" if found else "")


def _exit(answer: str) -> re.Match[str] | None:
    return _EXIT.search(answer[-400:]) or _EXIT.search(answer[:200])


def _listed(title: str, items: list[str], separator: str = ", ") -> str:
    return f"- {title}: {separator if separator[0] == chr(10) else ''}{separator.join(items)}" if items else ""


def _line(text: str) -> str:
    return _cut(" ".join(text.split()), _LINE_CHARACTERS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"
