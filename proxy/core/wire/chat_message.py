"""The assistant message that deltas add up to, and the one message that several rounds make for the client.

A message built here goes back upstream, where providers check it: reasoning that was bound to a call must return whole,
signatures unchanged, null as null. So nothing is interpreted: text is appended, lists are continued, objects are
merged, and unknown keys are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Raw

from proxy.core.calls import Call
from proxy.core.wire.raw import NULL, Fields, is_empty, read_any, read_text, write

TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal")
_JOINED: Final = (*TEXTS, "reasoning_details", "thinking_blocks")

_SAID_ONCE: Final = frozenset(("role", "name", "id", "type", "format", "signature", "index"))
_JOINED_AFTER: Final = 1000  # deltas
_SEALS: Final = ("signature", "data", "encrypted_content")


class Draft:
    """Collects the deltas of one streamed message."""

    def __init__(self) -> None:
        self._values: dict[str, list[Raw]] = {}
        self._added = 0

    def add(self, delta: Fields) -> None:
        """Add a delta; tool calls are collected elsewhere."""
        for key, value in delta.items():
            if key != "tool_calls":
                self._values.setdefault(key, []).append(value)
        self._added += 1
        if self._added % _JOINED_AFTER == 0:  # an undecoded value keeps the whole of its chunk in memory
            self._values = {key: [_join(key, values).copy()] for key, values in self._values.items()}

    def has_content(self) -> bool:
        """Say whether there is any text for the reader."""
        return any(not is_empty(value) for value in self._values.get("content", ()))

    def message(self, *, beside_calls: bool) -> Fields:
        """Return the message so far, without its calls; empty text beside calls becomes null.

        A stream says "" where a whole answer says null, and some providers refuse empty text.
        """
        message = {"role": write("assistant")}
        message.update((key, _join(key, values)) for key, values in self._values.items())
        if beside_calls and bytes(message.get("content", NULL)) == b'""':
            message["content"] = NULL
        return message


def with_calls(message: Fields, calls: Iterable[Call]) -> Fields:
    """Return the message with these calls, or without any."""
    encoded = [call.encode() for call in calls]
    if encoded:
        return {**message, "tool_calls": write(encoded)}
    return {key: value for key, value in message.items() if key != "tool_calls"}


def texts_of(message: Fields) -> dict[str, str]:
    """Return the text fields that are not empty."""
    texts = {key: read_text(message.get(key)) for key in TEXTS}
    return {key: text for key, text in texts.items() if text}


def join_messages(earlier: Iterable[Fields], last: Fields) -> Fields:
    """Return the last message with text, reasoning and content parts of the earlier ones put in front."""
    rounds = [*earlier, last]
    joined = dict(last)
    for key in _JOINED:
        values = [message[key] for message in rounds if not is_empty(message.get(key))]
        if len(values) > 1 or (values and is_empty(last.get(key))):
            joined[key] = _join(key, values)
    return joined


def _join(key: str, values: list[Raw]) -> Raw:
    values = [value for value in values if value != NULL] or [NULL]
    if len(values) == 1:
        return values[0]
    texts = [read_text(value) for value in values]
    if all(text is not None for text in texts):
        return values[0] if key in _SAID_ONCE else write("".join(text or "" for text in texts))
    try:
        return write(_join_any(key, [read_any(value) for value in values]))
    except RecursionError:
        return values[-1]


def _join_any(key: str, values: list[object]) -> object:
    if any(isinstance(value, list) for value in values):
        return _join_items(item for value in values for item in _items_of(value))
    merged = values[0]
    for value in values[1:]:
        merged = _merge(key, merged, value)
    return merged


def _items_of(value: object) -> list[object]:
    """Return the parts of list content; some providers send a plain string after parts."""
    if isinstance(value, list):
        return value
    return [{"type": "text", "text": value}] if value else []


def _join_items(items: Iterable[object]) -> list[object]:
    joined: list[object] = []
    for item in items:
        if joined and _continues(joined[-1], item):
            joined[-1] = _merge("", joined[-1], item)
        else:
            joined.append(item)
    return joined


def _continues(last: object, item: object) -> bool:
    """Say whether a part goes on with the one before: same kind and place, not yet sealed by a signature."""
    if not (isinstance(last, dict) and isinstance(item, dict)):
        return False
    if last.get("type") != item.get("type") or last.get("index") != item.get("index"):
        return False
    if last.get("id") and item.get("id") and last["id"] != item["id"]:
        return False
    return not any(last.get(seal) for seal in _SEALS)


def _merge(key: str, old: object, new: object) -> object:
    if new is None:
        return old
    if isinstance(old, str) and isinstance(new, str):
        return new or old if key in _SAID_ONCE else old + new
    if isinstance(old, list) and isinstance(new, list):
        return _join_items([*old, *new])
    if isinstance(old, dict) and isinstance(new, dict):
        merged = dict(old)
        for name, value in new.items():
            merged[name] = _merge(name, merged.get(name), value)
        return merged
    return new
