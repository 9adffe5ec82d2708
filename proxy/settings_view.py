"""What `ullage config` prints: every value with its source, and the JSON Schema of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from policies import discover
from proxy.core.duration import DURATION_SCHEMA
from proxy.presets import BUILT_IN_TABLES, Preset
from proxy.settings import masked
from proxy.settings_loader import DEFAULT, Loaded, file_type, source_of
from proxy.tables import Path, dotted
from proxy.units import Size


class Line(msgspec.Struct, frozen=True):
    """One key: its effective value, credentials hidden, and where it came from."""

    key: str
    value: object
    origin: str


def effective(loaded: Loaded) -> list[Line]:
    """Return all values in force; of the presets those of the file."""
    return [
        Line(dotted(path), masked(path[-1], value), _origin(loaded, path))
        for path, value in _leaves(loaded.settings, ())
    ]


def to_toml(line: Line, *, with_origin: bool) -> str:
    """Return a line as it could stand in a file; an unset value as a comment."""
    text = f"# {line.key} is unset" if line.value is None else f"{line.key} = {_toml(line.value)}"
    return f"{text}  # {line.origin}" if with_origin else text


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file."""
    made: dict[str, Any] = msgspec.json.schema(file_type())
    for policy in discover().values():
        definition = made["$defs"][policy.__name__]  # its tag is the name of its table and never written
        definition["properties"].pop(policy.__struct_config__.tag_field, None)
        definition.pop("required", None)
    for definition in made["$defs"].values():
        for field in definition["properties"].values():
            if field.get("examples") == DURATION_SCHEMA["examples"]:
                field["type"] = ["number", "string"]  # the type knows the number alone
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ullage.toml", **made}


def _leaves(value: object, path: Path) -> Iterator[tuple[Path, object]]:
    if isinstance(value, Preset):
        if value.name not in BUILT_IN_TABLES:
            yield from _preset_leaves(value, path)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _leaves(getattr(value, name), (*path, name))
    else:
        yield path, value


def _preset_leaves(preset: Preset, path: Path) -> Iterator[tuple[Path, object]]:
    for name in ("extends", "trigger", "limit", "target", "read_tokens", "rounds"):
        value = getattr(preset, name)
        yield (*path, name), _plain(value) if isinstance(value, Size) else value
    for policy in preset.policies:
        for knob in policy.__struct_fields__:
            yield (*path, policy.name(), knob), getattr(policy, knob)


def _plain(size: Size) -> object:
    share = None if size.share is None else f"{size.share * 100:g}%"
    if share is None or size.tokens is None:
        return share or size.tokens
    return {"share": share, "tokens": size.tokens}


def _origin(loaded: Loaded, path: Path) -> str:
    """Return the source of a value; a preset has it from itself or the nearest one below that says it."""
    if path[0] != "presets":
        return source_of(path, loaded.origins) or DEFAULT
    name: str | None = path[1]
    while name is not None:
        source = source_of(("presets", name, *path[2:]), loaded.origins)
        if source is not None:
            return source if name == path[1] else f"{source} (preset {name})"
        table: Any = BUILT_IN_TABLES.get(name, {})
        for key in path[2:]:
            table = table.get(key) if isinstance(table, dict) else None
        if table is not None:
            return f"preset {name}"
        name = loaded.settings.presets[name].extends
    return DEFAULT


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{dotted((k,))} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return msgspec.json.encode(value).decode()
