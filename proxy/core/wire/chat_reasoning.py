"""Reasoning of assistant messages: where providers put it, and the same message without it.

`reasoning_content` is what DeepSeek, Moonshot, Qwen, Z.ai, xAI and llama.cpp send, `reasoning` what vLLM, Ollama, Groq
and OpenRouter do, with `reasoning_details` beside it; `thinking_blocks` come from gateways to Claude, and Mistral makes
`thinking` parts of the content. Signatures of calls (`extra_content`) are no reasoning and stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proxy.core.envelope import decode, split_list
from proxy.core.wire.raw_fields import join_fields, split_fields

_FIELDS = ("reasoning_content", "reasoning", "reasoning_text", "reasoning_details", "thinking_blocks")
# DeepSeek refuses a turn with calls that has no such field at all; empty is enough.
_EMPTIED = "reasoning_content"
_PARTS = ("thinking", "redacted_thinking", "reasoning")
_EMPTY = (b'""', b"null", b"[]", b"{}")


def reasoning_text(message: dict[str, Any]) -> str:
    """Return the reasoning of a decoded message; where several fields tell it, which say the same, the longest."""
    told = ("\n".join(_texts(message.get(name))) for name in _FIELDS)
    return max(told, key=len, default="")


def reasoning_size(message: dict[str, Any], raw: bytes) -> int:
    """Return how many bytes a message loses with its reasoning; 0 where there is none."""
    is_suspect = message.get("role") == "assistant" and (b"reasoning" in raw or b"thinking" in raw)
    return len(raw) - len(without_reasoning(raw)) if is_suspect else 0


def without_reasoning(raw: bytes) -> bytes:
    """Return an assistant message without its reasoning; all other fields keep their bytes."""
    fields = split_fields(raw)
    kept: dict[str, bytes] = {}
    for name, value in fields.items():
        if name not in _FIELDS or value in _EMPTY:
            kept[name] = value
        elif name == _EMPTIED and "tool_calls" in fields:
            kept[name] = _EMPTY[0]
    content = fields.get("content", b"").lstrip()
    if content.startswith(b"["):
        parts = split_list(content)
        spoken = [part for part in parts if not _is_thought(part)]
        if len(spoken) < len(parts) and spoken:  # content without any part is refused
            kept["content"] = b"[" + b",".join(spoken) + b"]"
    return raw if kept == fields else join_fields(kept)


def _is_thought(part: bytes) -> bool:
    value = decode(part)
    return isinstance(value, dict) and value.get("type") in _PARTS


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in a field; signatures and encrypted data are not read by a tokenizer but cost about the same."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in ("type", "id", "format"):
                yield from _texts(inner)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
