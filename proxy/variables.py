"""Which environment variables are settings: some with names of their own, every other scalar key by its path."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from proxy.settings import Settings
from proxy.tables import Path, alternatives, hints_of

# Those with names of their own; every other scalar key is ULLAGE_TABLE__KEY.
VARIABLES = {
    "ULLAGE_HOST": ("server", "host"),
    "ULLAGE_PORT": ("server", "port"),
    "ULLAGE_WORKERS": ("server", "workers"),
    "ULLAGE_ADMIN_KEY": ("server", "admin_key"),
    "ULLAGE_SECRET": ("server", "secret"),
    "ULLAGE_UPSTREAM": ("upstream", "base_url"),
    "ULLAGE_STORE": ("store", "url"),
    "ULLAGE_PRESET": ("defaults", "preset"),
}
OPENAI_VARIABLES = {"OPENAI_BASE_URL": ("upstream", "base_url"), "OPENAI_API_KEY": ("upstream", "api_key")}
CONFIG_VARIABLE = "ULLAGE_CONFIG"
PREFIX = "ULLAGE_"
_TABLES = ("server", "upstream", "store", "defaults")  # those with fixed keys


def settings_in(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the `ULLAGE_*` variables that are keys. A blank one says nothing."""
    for name in _own(environ):
        table, *keys = name.removeprefix(PREFIX).lower().split("__")
        if name in VARIABLES:
            yield name, VARIABLES[name]
        elif keys and table in _TABLES:
            yield name, (table, *keys)


def unknown_in(environ: Mapping[str, str], expected: Container[str]) -> Iterator[str]:
    """Yield a sentence about each `ULLAGE_*` variable that is no setting and is not `expected` either."""
    known = {CONFIG_VARIABLE, *(name for name, _ in settings_in(environ))}
    for name in _own(environ):
        if name not in known and name not in expected:
            near = get_close_matches(name, [CONFIG_VARIABLE, *VARIABLES, *_long_names()], 1)
            mend = f"did you mean {near[0]}?" if near else "`ullage serve --help` tells the names"
            yield f"{name}: this variable is no setting and changes nothing; {mend}"


def _own(environ: Mapping[str, str]) -> list[str]:
    return sorted(name for name, value in environ.items() if name.startswith(PREFIX) and value.strip())


def _long_names() -> Iterator[str]:
    """Yield ULLAGE_TABLE__KEY of every key."""
    tables = hints_of(Settings)
    for table in _TABLES:
        yield from _names_below(f"{PREFIX}{table.upper()}", tables[table])


def _names_below(prefix: str, hint: object) -> Iterator[str]:
    members: list[Any] = alternatives(hint)[0]
    tables = [member for member in members if isinstance(member, type) and issubclass(member, msgspec.Struct)]
    if not tables:
        yield prefix
    for table in tables:
        for key, inner in hints_of(table).items():
            yield from _names_below(f"{prefix}__{key.upper()}", inner)
