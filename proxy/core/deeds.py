"""What a call does, read off its name and arguments: files read and changed, commands, the to-do list.

Agents name the same thing in many ways: a path is `file_path`, `filePath` or `absolute_path`, a command is a string or
a list of words, a patch names its files inside, an editor says in `command` what it does, and some call a tool through
another one. Nothing here depends on a certain agent; what is not understood says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from proxy.core.envelope import decode

# Keys are compared without underscores, dashes and case.
_PATH_KEYS = re.compile(
    r"(?:abs|absolute|relative(?:workspace)?|full|notebook|target|source|destination|old|new|file)?(?:path|file(?:name)?)s?"
)
_COMMAND_KEYS = re.compile("command|cmd|commands|cmds|commandline")
_CODE_KEYS = re.compile("script|code")  # to be run, or to be written into a file
_TODO_KEYS = re.compile("todos|todolist|plan|tasklist")
_PROGRESS_KEYS = re.compile("taskprogress")  # the list, told with every call
_PATCH_KEYS = re.compile("input|patch|patchtext|diff")
_CHANGES = re.compile(
    r"write|edit|create|patch|replace|insert|delete|remove|move|rename|update|append|save|apply_?diff", re.IGNORECASE
)
_TODO = re.compile(r"to_?do|update_?plan|task_?tracker", re.IGNORECASE)
_VERB = re.compile(r"[a-z_]+")
_PATCHED = re.compile(
    r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$|^\+\+\+ (?:b/)?(\S.*?)(?:\t.*)?$", re.MULTILINE
)
_SHELL = re.compile(r"(?:.*[/\\])?(?:ba|z|da|k)?sh|(?:.*[/\\])?(?:pwsh|powershell|cmd)(?:\.exe)?", re.IGNORECASE)
_SHELL_OPTION = re.compile(r"-\w*c|-command|/c", re.IGNORECASE)
_WRAPPED_NAMES = ("tool_name", "toolName", "recipient_name", "tool", "name")
_WRAPPED_ARGUMENTS = ("arguments", "args", "parameters", "input", "tool_input")
_MOST_WRAPPINGS = 3


class Deed(msgspec.Struct, frozen=True):
    """What one call does."""

    read: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    todo: str = ""  # as it was written


def deeds(tool: str, arguments: str) -> list[Deed]:
    """Return what a call does: one deed, more where it makes several calls in one."""
    return [_deed(name, fields, text) for name, fields, text in _unwrap(tool, arguments, _MOST_WRAPPINGS)]


def _deed(tool: str, fields: dict[str, Any], arguments: str) -> Deed:
    action = re.split(r"__|[./:]", tool)[-1]  # behind the name of its server
    if _TODO.search(action) or any(isinstance(fields[key], list) for key in _named(fields, _TODO_KEYS)):
        is_told = arguments.strip(" {}\n") and (not fields or any(map(_is_list_or_text, fields.values())))
        if is_told and fields.get("command") != "view":  # what only reads the list has nothing to tell
            return Deed(todo=arguments)
    paths = [path for key in _named(fields, _PATH_KEYS) for path in _paths(fields[key])]
    told = [command for key in _named(fields, _COMMAND_KEYS) for command in _commands(fields[key])]
    verb = next(filter(_VERB.fullmatch, told), None) if paths else None  # of an editor
    is_change = bool(_CHANGES.search(verb or action))
    if not paths and not is_change:
        told += [text for key in _named(fields, _CODE_KEYS) if isinstance(text := fields[key], str) and text.strip()]
    patches = [text for key in _named(fields, _PATCH_KEYS) if isinstance(text := fields[key], str)]
    patches += [command for command in told if "*** Begin Patch" in command]
    if not fields:
        patches.append(arguments)
    patched = [path for patch in patches for path in _patched(patch)]
    commands = tuple(c for c in told if c != verb and "*** Begin Patch" not in c)
    changed = tuple(dict.fromkeys([*(paths if is_change else ()), *patched]))
    progress = [text for key in _named(fields, _PROGRESS_KEYS) if isinstance(text := fields[key], str)]
    return Deed(() if is_change else tuple(paths), changed, commands, todo="\n".join(progress))


def _unwrap(tool: str, arguments: str, most: int) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield (tool, arguments, these as text) of the calls that a call stands for, itself where it is no wrapping."""
    value = decode(arguments.encode("utf-8", "surrogatepass"))
    fields: dict[str, Any] = value if isinstance(value, dict) else {}
    several = fields.get("tool_uses")
    inner = [_wrapped(item) for item in several] if isinstance(several, list) else [_wrapped(fields)]
    if most == 0 or not inner or None in inner:
        yield tool, fields, arguments
        return
    for call in inner:
        if call is not None:
            yield from _unwrap(*call, most - 1)


def _wrapped(fields: object) -> tuple[str, str] | None:
    if not isinstance(fields, dict):
        return None
    name = next((fields[key] for key in _WRAPPED_NAMES if isinstance(fields.get(key), str)), None)
    for key in _WRAPPED_ARGUMENTS if name else ():
        given = fields.get(key)
        if isinstance(given, dict):
            return str(name), msgspec.json.encode(_spellable(given)).decode()
        if isinstance(given, str) and isinstance(decode(given.encode("utf-8", "surrogatepass")), dict):
            return str(name), given
    return None


def _spellable(value: object) -> object:
    """Return the value with nothing in it that has no UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_spellable(key): _spellable(item) for key, item in value.items()}
    return [_spellable(item) for item in value] if isinstance(value, list) else value


def _named(fields: dict[str, Any], names: re.Pattern[str]) -> list[str]:
    """Return the keys that are one of these names, however they are spelled."""
    return [key for key in fields if names.fullmatch(key.replace("_", "").replace("-", "").lower())]


def _paths(value: object) -> list[str]:
    """Return the paths in a value: a text, or a list of texts and of objects that name one."""
    if isinstance(value, str):
        return [value] if value.strip() else []
    out: list[str] = []
    for item in value if isinstance(value, list) else ():
        inner = [item[key] for key in _named(item, _PATH_KEYS)] if isinstance(item, dict) else [item]
        out += [path for path in inner if isinstance(path, str) and path.strip()]
    return out


def _commands(value: object) -> list[str]:
    """Return the commands in a value: a text, or the words of one, of which a shell that runs it says nothing."""
    if isinstance(value, str):
        return [value] if value.strip() else []
    words = value if isinstance(value, list) else []
    if not words or not all(isinstance(word, str) for word in words):
        return []
    if len(words) > 2 and _SHELL.fullmatch(words[0]) and _SHELL_OPTION.fullmatch(words[1]):
        words = words[2:]
    line = " ".join(words)
    return [line] if line.strip() else []


def _patched(patch: str) -> list[str]:
    return [path for found in _PATCHED.finditer(patch) if (path := (found[1] or found[2]).strip()) != "/dev/null"]


def _is_list_or_text(value: object) -> bool:
    return isinstance(value, list | str) and bool(value)
