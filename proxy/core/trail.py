"""The trail: what was done in a span, read off its calls and their answers by code.

Models lose file names and exit codes when they summarise, so nobody is asked: files by what tools did with them, the
last commands with how they ended, the latest to-do list, the last errors. Bounded, oldest left out first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from proxy.core.envelope import decode

_PATH_KEYS = ("path", "file_path", "filepath", "file", "filename", "target_file", "notebook_path")
_COMMAND_KEYS = ("command", "cmd", "script", "code")
_CHANGES = re.compile(r"write|edit|create|patch|replace|insert|delete|remove|move|rename|update|append", re.IGNORECASE)
_TODO = re.compile(r"to_?do", re.IGNORECASE)
_EXIT = re.compile(r"(?:exit(?:ed)?(?: with)?(?: code| status)?|returncode|return code)\D{0,3}?(-?\d+)", re.IGNORECASE)
_ERROR = re.compile(r"^.*(?:error\b|exception|traceback|failed|fatal).*$", re.IGNORECASE | re.MULTILINE)
_VERB = re.compile(r"[a-z_]+")
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
        fields = _fields(act.arguments)
        paths, told = _values(fields, _PATH_KEYS), _values(fields, _COMMAND_KEYS)
        verb = next(filter(_VERB.fullmatch, _values(fields, ("command",))), None) if paths else None  # of an editor
        files = changed if _CHANGES.search(verb or act.tool) else read
        for path in map(_line, paths):
            files.pop(path, None)  # to the end: it is in use again
            files[path] = None
        commands += [_command(value, act.answer) for value in told if value != verb]
        errors += _error(act.answer[-4000:])
        if _TODO.search(act.tool) and act.arguments.strip(" {}\n"):  # what reads the list has no arguments
            todo = _cut(act.arguments, _TODO_CHARACTERS)
    read = {path: None for path in read if path not in changed}
    lines = [
        _listed("files changed", list(changed)[-_MOST_FILES:]),
        _listed("files read", list(read)[-_MOST_FILES:]),
        _listed("commands, newest last", commands[-_MOST_COMMANDS:], "\n  "),
        _listed("latest to-do list", [todo] if todo else []),
        _listed("last errors reported by tools", errors[-_MOST_ERRORS:], "\n  "),
    ]
    return "\n".join(filter(None, lines)).encode("utf-8", "replace").decode()  # ledgers hold no lone surrogates


def _fields(arguments: str) -> dict[str, Any]:
    value = decode(arguments.encode("utf-8", "surrogatepass"))
    return value if isinstance(value, dict) else {}


def _values(fields: dict[str, Any], keys: tuple[str, ...]) -> list[str]:
    return [value for key in keys if isinstance(value := fields.get(key), str) and value.strip()]


def _command(command: str, answer: str) -> str:
    found = _EXIT.search(answer[-400:]) or _EXIT.search(answer[:200])
    return _line(command) + (f" -> exit {found[1]}" if found else "")


def _error(answer: str) -> list[str]:
    """Return the line that names the error: the first, but the last of a traceback, which ends with it."""
    found = [match[0] for match in _ERROR.finditer(answer)]
    return [_line(found[-1 if "traceback" in found[0].lower() else 0])] if found else []


def _listed(title: str, items: list[str], separator: str = ", ") -> str:
    return f"- {title}: {separator if separator[0] == chr(10) else ''}{separator.join(items)}" if items else ""


def _line(text: str) -> str:
    return _cut(" ".join(text.split()), _LINE_CHARACTERS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"
