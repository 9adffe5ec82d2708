"""Checks the raw tables of a configuration against the types they will become, key by key.

`msgspec.convert` could do it in one call, but names tables only by position (`$.tenants[...]`), knows neither
`env:NAME` nor durations, and cannot say which key was meant. So the tables are walked beside the types here,
every leaf is converted by itself, and whatever is wrong is raised with its exact path. The result is plain
data that converts.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

Path = tuple[str, ...]

_ENV = "env:"
_UNSET = object()
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Wrong(Exception):
    """A key is wrong; the text says what and how to mend it, without naming file or key.

    A Struct whose `__post_init__` raises it names the key relative to itself.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem


def dotted(path: Path) -> str:
    """Return a path as it is written in a TOML file."""
    return ".".join(part if _is_bare(part) else msgspec.json.encode(part).decode() for part in path)


def _is_bare(key: str) -> bool:
    return key != "" and all(c.isascii() and (c.isalnum() or c in "-_") for c in key)


def suggest(word: str, known: Iterable[str]) -> str:
    """Return the mend for an unknown word: the nearest known one, else all of them."""
    names = sorted(known)
    near = get_close_matches(word, names, 1)
    if near:
        return f"did you mean {near[0]}?"
    return f"known: {', '.join(names)}" if names else "leave it out"


@cache
def hints_of(table: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of a Struct's fields, annotations included."""
    hints = get_type_hints(table, include_extras=True)
    return {name: hints[name] for name in table.__struct_fields__}


def alternatives(hint: object) -> tuple[list[Any], dict[str, Any]]:
    """Return the members of a union (or the type alone) and what their annotations say in `extra`."""
    extra: dict[str, Any] = {}
    if get_origin(hint) is Annotated:
        inner, *metas = get_args(hint)
        for meta in metas:
            extra |= getattr(meta, "extra", None) or {}
        members, more = alternatives(inner)
        return members, more | extra
    if get_origin(hint) in (Union, types.UnionType):
        members = []
        for member in get_args(hint):
            found, more = alternatives(member)
            members += found
            extra |= more
        return members, extra
    return [hint], extra


class Checker:
    """Walks raw tables beside types; `textual` says which paths hold text from the environment."""

    def __init__(self, environ: Mapping[str, str], textual: Callable[[Path], bool]) -> None:
        self._environ = environ
        self._textual = textual
        self.references: dict[Path, str] = {}  # what was taken from a variable, by its path
        self.missing: list[tuple[Path, str]] = []  # what is unset because a variable is not set

    def check(self, hint: object, value: object, path: Path = ()) -> object:
        """Return the value as plain data of that type. Raises Wrong."""
        members, extra = alternatives(hint)
        if isinstance(value, dict):
            for member in members:
                if isinstance(member, type) and issubclass(member, msgspec.Struct):
                    return self._table(member, value, path)
                if get_origin(member) is dict:
                    inner = get_args(member)[1]
                    return {key: self.check(inner, item, (*path, key)) for key, item in value.items()}
        return self._leaf(hint, value, path, extra)

    def _table(self, table: type[msgspec.Struct], value: dict[str, object], path: Path) -> dict[str, Any]:
        hints = hints_of(table)
        checked = {}
        for key, item in value.items():
            if key not in hints:
                raise Wrong((*path, key), f"no such key; {suggest(key, hints)}")
            plain = self.check(hints[key], item, (*path, key))
            if plain is not _UNSET:
                checked[key] = plain
        self._convert(checked, table, path)
        return checked

    def _leaf(self, hint: object, value: object, path: Path, extra: dict[str, Any]) -> object:
        is_secret = extra.get("secret", False)
        plain = self._expanded(value, path, optional_secret=is_secret)
        if plain is _UNSET:
            return plain
        if is_secret and isinstance(plain, str):
            plain = _one_line(plain, path)
        if self._textual(path) and isinstance(plain, str) and _takes_list(hint):
            words = plain.split()
            plain = words if len(words) > 1 or not _takes_text(hint) else plain
        try:
            plain = extra["parse"](plain) if "parse" in extra else plain
        except ValueError as exc:
            raise Wrong(path, str(exc)) from None
        return self._convert(plain, hint, path, strict=not (self._textual(path) or path in self.references))

    def _expanded(self, value: object, path: Path, *, optional_secret: bool) -> object:
        """Replace `env:NAME` in a string or the strings of a list."""
        if isinstance(value, list):
            return [self._expanded(item, path, optional_secret=False) for item in value]
        if not isinstance(value, str) or not value.startswith(_ENV):
            return value
        name = value.removeprefix(_ENV)
        text = self._environ.get(name, "")
        if text.strip():
            self.references[path] = name
            return text
        if optional_secret:
            self.missing.append((path, name))
            return _UNSET
        raise Wrong(path, f"the environment variable {name} is not set; set it, or write the value here")

    def _convert(self, plain: object, hint: object, path: Path, *, strict: bool = True) -> object:
        try:
            return msgspec.convert(plain, hint, strict=strict)
        except msgspec.ValidationError as exc:
            raise Wrong(path, f"{str(exc).partition(' - at `$')[0]}; {_mend(hint)}") from None
        except Wrong as exc:
            raise Wrong((*path, *exc.path), exc.problem) from None


_FORMS = {
    str: "text in quotes",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: 'a list: ["…", "…"]',
}


def _mend(hint: object) -> str:
    """Return in words what may be written for a type."""
    forms = []
    for member in alternatives(hint)[0]:
        if get_origin(member) is Literal:
            forms += [msgspec.json.encode(word).decode() for word in get_args(member)]
        elif member is not type(None):
            forms.append(_FORMS.get(get_origin(member) or member, "a table"))
    return f"write {' or '.join(dict.fromkeys(forms))}"


def _one_line(credential: str, path: Path) -> str:
    """Return a credential without the line break that files end with."""
    stripped = credential.strip()
    if _CONTROL.search(stripped):
        raise Wrong(path, "holds a line break or another control character; write the key alone, on one line")
    return stripped


def _takes_list(hint: object) -> bool:
    return any(get_origin(member) in (tuple, list) for member in alternatives(hint)[0])


def _takes_text(hint: object) -> bool:
    return str in alternatives(hint)[0]
