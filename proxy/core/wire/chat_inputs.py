"""Inputs of tool calls: where the texts in their arguments lie, and how one is replaced without touching the rest.

Arguments are JSON in a string. A text is a string value anywhere in them (a leaf), counted in order of appearance; all
bytes in front of and behind a replaced leaf stay, so the arguments stay the JSON that they were. What is no JSON has no
leaves. The free text of a custom tool call is one leaf.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from proxy.core.envelope import decode, split_list
from proxy.core.wire.raw_fields import encode_text, join_fields, split_fields

INPUTS = 1_000_000  # numbers of slots from here on are leaves of calls
_PER_CALL = 1_000
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_COLON = re.compile(r"\s*:")


def input_slots(calls: object) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of all leaves of the calls of a decoded message."""
    for call, item in enumerate(calls if isinstance(calls, list) else ()):
        arguments = _arguments(item)
        if arguments is not None:
            for leaf, text in enumerate(_texts(arguments, is_custom="custom" in item)):
                if leaf < _PER_CALL:
                    yield INPUTS + call * _PER_CALL + leaf, text


def input_text(calls: list[Any], at: int) -> str:
    """Return the text of a leaf."""
    call, leaf = divmod(at - INPUTS, _PER_CALL)
    item = calls[call]
    return list(_texts(_arguments(item) or "", is_custom="custom" in item))[leaf]


def replace_inputs(calls: bytes, texts: dict[int, str]) -> bytes:
    """Return the raw list of calls with these leaves replaced."""
    items = split_list(calls)
    by_call: dict[int, dict[int, str]] = {}
    for at, text in texts.items():
        call, leaf = divmod(at - INPUTS, _PER_CALL)
        by_call.setdefault(call, {})[leaf] = text
    for call, leaves in by_call.items():
        items[call] = _replace_in_call(items[call], leaves)
    return b"[" + b",".join(items) + b"]"


def _replace_in_call(raw: bytes, leaves: dict[int, str]) -> bytes:
    fields = split_fields(raw)
    key, field = ("custom", "input") if "custom" in fields else ("function", "arguments")
    inner = split_fields(fields[key])
    arguments = decode(inner[field])
    if isinstance(arguments, str):
        new = leaves[0] if key == "custom" else _replace_leaves(arguments, leaves)
        inner[field] = encode_text(new)
    fields[key] = join_fields(inner)
    return join_fields(fields)


def _replace_leaves(arguments: str, leaves: dict[int, str]) -> str:
    pieces: list[str] = []
    at = 0
    for number, (start, stop) in enumerate(_spans(arguments)):
        if number in leaves:
            pieces += (arguments[at:start], encode_text(leaves[number]).decode("utf-8"))
            at = stop
    return "".join([*pieces, arguments[at:]])


def _arguments(call: object) -> str | None:
    if not isinstance(call, dict):
        return None
    for key, field in (("function", "arguments"), ("custom", "input")):
        inner = call.get(key)
        if isinstance(inner, dict):
            value = inner.get(field)
            return value if isinstance(value, str) else None
    return None


def _texts(arguments: str, *, is_custom: bool) -> Iterator[str]:
    if is_custom:
        yield arguments
        return
    for start, stop in _spans(arguments):
        value = decode(arguments[start:stop].encode("utf-8", "surrogatepass"))
        yield value if isinstance(value, str) else ""


def _spans(arguments: str) -> Iterator[tuple[int, int]]:
    """Yield where the string values lie, quotes included; nothing where the arguments are no JSON."""
    if decode(arguments.encode("utf-8", "surrogatepass")) is None:
        return
    for found in _STRING.finditer(arguments):
        if not _COLON.match(arguments, found.end()):  # a key is followed by a colon, a value never
            yield found.span()
