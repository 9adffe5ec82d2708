"""Chat Completions messages: what they say, and how to change one text without touching its neighbours.

Field reference: OpenAI's `POST /v1/chat/completions`; extensions of other providers are kept as they come. A slot's
number is -1 for content that is a string, else the index of the part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from proxy.core.envelope import decode, split_list
from proxy.core.history import CallFact, Facts, Kind, Role, Slot, digest, text_bytes
from proxy.core.media import media_tokens
from proxy.core.reading import HistoryCall, HistoryEntry
from proxy.core.wire.chat_inputs import INPUTS, input_slots, input_text, replace_inputs
from proxy.core.wire.chat_reasoning import reasoning_size, reasoning_text, without_reasoning
from proxy.core.wire.raw_fields import encode_lenient, encode_text, join_fields, split_fields

WHOLE = -1
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_KINDS: dict[Role, Kind] = {"tool": "result", "user": "user"}
_MESSAGE_OVERHEAD_TOKENS = 4
_BYTES_PER_TOKEN = 4
_LEAST_INPUT_CHARACTERS = 200  # shorter inputs are never worth a stub
# Markers that steer a provider's cache and say nothing about the conversation.
_CACHE_MARKERS = ("cache_control", "prompt_cache_breakpoint")


class ChatAdapter:
    """The wire format of Chat Completions."""

    format = "chat"

    def facts(self, raw: bytes, key: bytes) -> Facts:
        """Return what is known of a raw message with this hash."""
        message = decode(raw)
        if not isinstance(message, dict):
            return Facts(key, "other", digest(b"odd", raw), estimated_tokens=len(raw) // _BYTES_PER_TOKEN)
        name = message.get("role")
        role = _ROLES.get(name, "other") if isinstance(name, str) else "other"
        call_id = message.get("tool_call_id")
        call_id = call_id if isinstance(call_id, str) else None
        return Facts(
            key=key,
            role=role,
            match=_match(message, name if role == "other" else role),
            slots=(*_slots(message, _KINDS.get(role), call_id), *_input_slots(message)),
            calls=tuple(CallFact(c.get("id"), _call_name(c)) for c in _calls(message)),
            call_id=call_id,
            estimated_tokens=_estimate(message, raw),
            reasoning_bytes=reasoning_size(message, raw),
        )

    def text(self, raw: bytes, at: int) -> str:
        """Return the text of a slot."""
        message: Any = decode(raw)
        if at >= INPUTS:
            return input_text(message["tool_calls"], at)
        content = message["content"]
        return str(content if at == WHOLE else content[at]["text"])

    def replace_texts(self, raw: bytes, texts: dict[int, str]) -> bytes:
        """Return the message with these texts in the place of the old; all else keeps its bytes."""
        fields = split_fields(raw)
        inputs = {at: text for at, text in texts.items() if at >= INPUTS}
        if inputs:
            fields["tool_calls"] = replace_inputs(fields["tool_calls"], inputs)
        if WHOLE in texts:
            fields["content"] = encode_text(texts[WHOLE])
        elif len(texts) > len(inputs):
            parts = split_list(fields["content"])
            for at, text in texts.items():
                if at < INPUTS:
                    part = split_fields(parts[at])
                    part["text"] = encode_text(text)
                    parts[at] = join_fields(part)
            fields["content"] = b"[" + b",".join(parts) + b"]"
        return join_fields(fields)

    def countable(self, raw: bytes) -> tuple[list[str], int]:
        """Return all that a tokenizer has to count of a message, and the tokens of what it must not see."""
        decoded = decode(raw)
        message: dict[str, Any] = decoded if isinstance(decoded, dict) else {}
        texts, media = [], _MESSAGE_OVERHEAD_TOKENS
        for part in _parts(message):
            text = _part_text(part)
            if text is not None:
                texts.append(text)
            elif isinstance(part, dict):
                media += media_tokens(part)
        for call in _calls(message):
            texts += (_call_name(call), _written_arguments(call))
        return [*texts, *filter(None, [reasoning_text(message)])], media

    def reasoning(self, raw: bytes) -> str:
        """Return the reasoning that an assistant message tells in fields of its own."""
        message = decode(raw)
        return reasoning_text(message) if isinstance(message, dict) else ""

    def without_reasoning(self, raw: bytes) -> bytes:
        """Return an assistant message without its reasoning; all else keeps its bytes."""
        return without_reasoning(raw)

    def describe(self, raw: bytes, number: int, tool: str | None) -> HistoryEntry:
        """Return the message as the record shows it; `tool` names the tool that a result comes from."""
        decoded = decode(raw)
        message: dict[str, Any] = decoded if isinstance(decoded, dict) else {}
        call_id = message.get("tool_call_id")
        name = tool or message.get("name")
        return HistoryEntry(
            index=number,
            role=str(message.get("role", "?")),
            call_id=call_id if isinstance(call_id, str) else None,
            name=name if isinstance(name, str) else None,
            text="\n".join(_shown(part) for part in _parts(message)),
            calls=tuple(
                HistoryCall(str(c.get("id", "")), _call_name(c), _written_arguments(c)) for c in _calls(message)
            ),
        )


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    found = [c for c in calls if isinstance(c, dict)] if isinstance(calls, list) else []
    legacy = message.get("function_call")
    return [*found, {"function": legacy}] if isinstance(legacy, dict) else found


def _call_name(call: dict[str, Any]) -> str:
    for key in ("function", "custom"):
        inner = call.get(key)
        if isinstance(inner, dict):
            return str(inner.get("name") or "")
    return ""


def _call_arguments(call: dict[str, Any]) -> bytes:
    """Return the arguments in one canonical spelling, so that re-serialised ones are equal."""
    function, custom = call.get("function"), call.get("custom")
    if isinstance(function, dict):
        arguments = function.get("arguments")
        value = decode(text_bytes(arguments)) if isinstance(arguments, str) else arguments
        if value is None:
            return text_bytes(str(arguments or ""))
        return _canonical(value)
    return text_bytes(str(custom.get("input") or "")) if isinstance(custom, dict) else b""


def _written_arguments(call: dict[str, Any]) -> str:
    """Return the arguments as the model wrote them."""
    for key, field in (("function", "arguments"), ("custom", "input")):
        inner = call.get(key)
        if isinstance(inner, dict):
            value = inner.get(field)
            return value if isinstance(value, str) else encode_lenient(value).decode("utf-8", "replace")
    return ""


def _shown(part: object) -> str:
    """Return the text of a part; what is no text is named by its type, a file by its name as well."""
    text = _part_text(part)
    if text is not None:
        return text
    if not isinstance(part, dict):
        return str(part)
    file = part.get("file")
    name = file.get("filename") if isinstance(file, dict) else None
    kind = part.get("type", "part")
    return f"[{kind} {name}]" if isinstance(name, str) else f"[{kind}]"


def _canonical(value: object) -> bytes:
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":")).encode()
    except (RecursionError, TypeError):
        return repr(value).encode("utf-8", "surrogatepass")


def _plain(value: object) -> object:
    """Return the value with whole floats as integers, since JavaScript writes 1.0 as 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _parts(message: dict[str, Any]) -> list[Any]:
    content = message.get("content")
    if isinstance(content, list):
        return content
    return [] if content is None else [content]


def _part_text(part: object) -> str | None:
    """Return the text of a part, a plain string included; None for images and all else."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in ("text", "refusal"):
        text = part.get("text", part.get("refusal"))
        return text if isinstance(text, str) else None
    return None


def _match(message: dict[str, Any], role: object) -> bytes:
    texts: list[str] = []
    others: list[bytes] = []
    for part in _parts(message):
        text = _part_text(part)
        if text is not None:
            texts.append(text)
        elif isinstance(part, dict) and part.get("type") not in ("thinking", "redacted_thinking"):
            others.append(_canonical({k: v for k, v in part.items() if k not in _CACHE_MARKERS}))
    text = "".join(texts)
    if role == "assistant":
        text = (text or str(message.get("refusal") or "")).strip()
    calls = [text_bytes(_call_name(c)) + b"\0" + _call_arguments(c) for c in _calls(message)]
    return digest(text_bytes(str(role)), text_bytes(text), *others, b"calls", *calls)


def _slots(message: dict[str, Any], kind: Kind | None, call_id: str | None) -> Iterator[Slot]:
    content = message.get("content")
    if kind is None:
        return
    if isinstance(content, str):
        yield _slot(WHOLE, kind, content, call_id)
    elif isinstance(content, list):
        for at, part in enumerate(content):
            if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
                yield _slot(at, kind, part["text"], call_id)


def _input_slots(message: dict[str, Any]) -> Iterator[Slot]:
    for at, text in input_slots(message.get("tool_calls")):
        if len(text) >= _LEAST_INPUT_CHARACTERS:
            yield _slot(at, "input", text, None)


def _slot(at: int, kind: Kind, text: str, call_id: str | None) -> Slot:
    data = text_bytes(text)
    return Slot(at=at, kind=kind, exact=digest(data), size_bytes=len(data), call_id=call_id)


def _estimate(message: dict[str, Any], raw: bytes) -> int:
    # A model reads text without the escapes of JSON, which make Cyrillic three times as long.
    size = sum(len(text_bytes(leaf)) for leaf in _leaves(message)) if b"\\" in raw else len(raw)
    media = 0
    for part in _parts(message):
        if isinstance(part, dict) and part.get("type") not in ("text", "refusal"):
            media += media_tokens(part)
            size -= min(size, _media_bytes(part))
    return _MESSAGE_OVERHEAD_TOKENS + media + size // _BYTES_PER_TOKEN


def _media_bytes(part: dict[str, Any]) -> int:
    return sum(len(leaf) for leaf in _leaves(part))


def _leaves(value: object) -> Iterator[str]:
    walk: Callable[[object], Iterator[str]] = _leaves
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from walk(inner)
