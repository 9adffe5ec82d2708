"""The text of a request that a tokenizer sees: what messages and tools say, without pictures, files, ids and syntax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proxy.core.wire.raw import read_any, write

_NO_TEXT: Final = frozenset({"file", "id", "image_url", "input_audio", "role", "source", "tool_call_id", "type"})
_MOST_DEPTH: Final = 12


def prompt_texts(body: bytes) -> list[str]:
    """Return the texts of a request body; [] of one that cannot be read."""
    request = read_any(body)
    if not isinstance(request, dict):
        return []
    texts = list(_strings(request.get("messages"), 0))
    tools = request.get("tools")
    if isinstance(tools, list) and tools:
        texts.append(bytes(write(tools)).decode("utf-8", "replace"))
    return texts


def _strings(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < _MOST_DEPTH and isinstance(value, list):
        for item in value:
            yield from _strings(item, depth + 1)
    elif depth < _MOST_DEPTH and isinstance(value, dict):
        for key, item in value.items():
            if key not in _NO_TEXT:
                yield from _strings(item, depth + 1)
