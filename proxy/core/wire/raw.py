"""JSON taken apart one level at a time, so that what is not edited keeps its spelling.

An object is read as a dict of undecoded values (`msgspec.Raw`); written again, numbers, escapes and unknown keys are
the bytes that came. msgspec refuses lone surrogate escapes, which some providers send when they cut an emoji in two;
such a document is read by the slower parser of the standard library and spelled anew.
"""

from __future__ import annotations

import json
from typing import Final

import msgspec
from msgspec import Raw

Fields = dict[str, Raw]

NULL: Final = Raw(b"null")

_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_ARRAY: Final = msgspec.json.Decoder(list[Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_ANY: Final = msgspec.json.Decoder()
_EMPTY: Final = frozenset((b"null", b'""', b"[]", b"{}", b"false", b"0"))

_UNREADABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)


def read_object(data: bytes) -> Fields | None:
    """Return the members of a JSON object, undecoded; None for anything else."""
    try:
        return _OBJECT.decode(data)
    except msgspec.ValidationError:
        return None
    except _UNREADABLE:
        value = _read_slowly(data)
        return {key: write(item) for key, item in value.items()} if isinstance(value, dict) else None


def read_array(data: bytes) -> list[Raw] | None:
    """Return the items of a JSON array, undecoded; None for anything else."""
    try:
        return _ARRAY.decode(data)
    except msgspec.ValidationError:
        return None
    except _UNREADABLE:
        value = _read_slowly(data)
        return [write(item) for item in value] if isinstance(value, list) else None


def read_text(data: bytes | None) -> str | None:
    """Return a JSON string, lone surrogates included; None for anything else."""
    if data is None:
        return None
    try:
        return _TEXT.decode(data)
    except msgspec.ValidationError:
        return None
    except _UNREADABLE:
        value = _read_slowly(data)
        return value if isinstance(value, str) else None


def read_any(data: bytes) -> object:
    """Return any JSON value; None for what is no JSON."""
    try:
        return _ANY.decode(data)
    except _UNREADABLE:
        return _read_slowly(data)


def write(value: object) -> Raw:
    """Return a value, undecoded parts in it included, as JSON; lone surrogates are written as escapes."""
    try:
        return Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:
        return Raw(_write_slowly(value))


def is_empty(data: Raw | None) -> bool:
    """Say whether a value says nothing: absent, null, false, zero, or without content."""
    return data is None or bytes(data) in _EMPTY


def _read_slowly(data: bytes) -> object:
    try:
        return json.loads(bytes(data).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _write_slowly(value: object) -> bytes:
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, dict):
        members = (_write_slowly(key) + b":" + _write_slowly(item) for key, item in value.items())
        return b"{" + b",".join(members) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(_write_slowly, value)) + b"]"
    return json.dumps(value).encode()
