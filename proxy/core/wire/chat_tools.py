"""The reading tool in Chat Completions: when it can be declared, how it is declared, how hidden turns are put back."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from proxy.core.declaration import TOOL_NAME, offer_declaration, tool_declaration
from proxy.core.envelope import Envelope, Patch, decode, split_list
from proxy.core.ledger import HiddenTurn
from proxy.core.wire.raw_fields import encode_lenient, encode_text, join_fields, split_fields

_MOST_TOOLS = 128
# Models with built-in search take no function tools.
_SEARCH_MODEL = re.compile(r"search-(preview|api)")
# These refuse function tools with reasoning on this route, and reason by default.
_REASONING_WITHOUT_TOOLS = re.compile(r"(^|/)gpt-(5\.[6-9]|[6-9])")


class Situation(msgspec.Struct, frozen=True):
    """What the body says about tools."""

    has_tools: bool
    names: frozenset[str]
    obstacle: str | None  # why the reading tool cannot be declared
    is_json: bool  # the answer has to be JSON
    can_be_called: bool  # the model is free to call it in this turn
    model: str


def look_at(envelope: Envelope, *, takes_tools_with_json: bool) -> Situation:
    """Return what a body says about tools; `takes_tools_with_json`: the upstream is known to take both together."""
    tools = envelope.value("tools")
    listed = [t for t in tools if isinstance(t, dict)] if isinstance(tools, list) else []
    model = envelope.value("model")
    model = model if isinstance(model, str) else ""
    is_json = _is_json(envelope.value("response_format"))
    obstacle = _obstacle(envelope, tools, model)
    if obstacle is None and is_json and not listed and not takes_tools_with_json:
        obstacle = "json_mode"
    return Situation(
        has_tools=bool(listed),
        names=frozenset(filter(None, map(_tool_name, listed))),
        obstacle=obstacle,
        is_json=is_json,
        can_be_called=_can_be_called(envelope.value("tool_choice")),
        model=model,
    )


def choose_name(taken: frozenset[str], kept: str | None) -> str:
    """Return the name for the reading tool: the one it had, unless the client has a tool of that name."""
    return kept if kept is not None and kept not in taken else free_name(TOOL_NAME, taken)


def free_name(wanted: str, taken: frozenset[str]) -> str:
    """Return a name that the client has no tool of: the wanted one, else with a number."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


def can_offer(situation: Situation) -> bool:
    """Say whether a second tool can be declared, too."""
    return situation.has_tools and len(situation.names) < _MOST_TOOLS - 1


def _obstacle(envelope: Envelope, tools: object, model: str) -> str | None:
    """Return why the reading tool would break this request, None where it can be declared."""
    for name in ("functions", "function_call", "prediction", "audio", "web_search_options"):
        if envelope.is_set(name):
            return name
    modalities = envelope.value("modalities")
    reasons = {
        "tools": tools is not None and not isinstance(tools, list),
        "tool_limit": isinstance(tools, list) and len(tools) >= _MOST_TOOLS,
        "choices": envelope.value("n") not in (None, 1),
        "audio": isinstance(modalities, list) and "audio" in modalities,
        "search_model": _SEARCH_MODEL.search(model) is not None,
        "reasoning_model": not tools
        and _REASONING_WITHOUT_TOOLS.search(model) is not None
        and envelope.value("reasoning_effort") != "none",
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _is_json(response_format: object) -> bool:
    return isinstance(response_format, dict) and str(response_format.get("type", "")).startswith("json")


def _can_be_called(choice: object) -> bool:
    return choice in (None, "auto", "required") or _allowed(choice) is not None


def _allowed(choice: object) -> list[Any] | None:
    """Return the list of an `allowed_tools` choice."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools")
        tools = inner.get("tools") if isinstance(inner, dict) else None
        return tools if isinstance(tools, list) else None
    return None


def _tool_name(tool: dict[str, Any]) -> str | None:
    inner = tool.get("function") or tool.get("custom") or tool
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else None


class ChatTools:
    """Writes the tool and hidden turns into Chat Completions bodies."""

    def declare(self, patch: Patch, name: str, offer: str | None = None) -> None:
        """Append the declaration, last in `tools`, and add the tool to an `allowed_tools` choice.

        `offer` is the name of the tool that asks for a compaction, declared in front of it.
        """
        offered = [] if offer is None else [offer_declaration(offer)]
        patch.append_element("tools", b",".join([*offered, tool_declaration(name)]))
        choice = patch.envelope.value("tool_choice")
        tools = _allowed(choice)
        if isinstance(choice, dict) and tools is not None:
            mine = [{"type": "function", "function": {"name": own}} for own in (offer, name) if own is not None]
            allowed = {**choice["allowed_tools"], "tools": [*tools, *mine]}
            patch.set_field("tool_choice", encode_lenient({**choice, "allowed_tools": allowed}))

    def graft(self, visible: bytes, turn: HiddenTurn) -> list[bytes]:
        """Return the hidden rounds, then the visible message without what they had shown, then its hidden answers."""
        fields = split_fields(visible)
        has_calls = bool(turn.calls) or decode(fields.get("tool_calls", b"null")) not in (None, [])
        for name, beginning in turn.shown.items():
            if name in fields:
                fields[name] = _without(fields[name], beginning, has_calls=has_calls)
        if turn.calls:
            calls = split_list(fields["tool_calls"]) if fields.get("tool_calls", b"null") != b"null" else []
            for position, call in turn.calls:
                calls.insert(position, call)
            fields["tool_calls"] = b"[" + b",".join(calls) + b"]"
        return [*turn.rounds, join_fields(fields), *turn.answers]

    def merge(self, goal: bytes | None, block: str) -> bytes:
        """Return the first user message with a block behind its own text, in one more part or behind its string."""
        if goal is None:
            return join_fields({"role": b'"user"', "content": encode_text(block)})
        fields = split_fields(goal)
        content = decode(fields.get("content", b"null"))
        if isinstance(content, list):
            part = join_fields({"type": b'"text"', "text": encode_text(block)})
            fields["content"] = b"[" + b",".join([*split_list(fields["content"]), part]) + b"]"
        else:
            own = content if isinstance(content, str) else ""
            fields["content"] = encode_text(f"{own}\n\n{block}" if own else block)
        return join_fields(fields)


def _without(raw: bytes, beginning: str, *, has_calls: bool) -> bytes:
    """Return a string field, or content in parts, without its beginning; unchanged when it begins otherwise."""
    value = decode(raw)
    if isinstance(value, str) and value.startswith(beginning):
        rest = value[len(beginning) :]
        return encode_text(rest) if rest or not has_calls else b"null"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        text = value[0].get("text")
        if isinstance(text, str) and text.startswith(beginning) and text != beginning:
            first = {**value[0], "text": text[len(beginning) :]}
            return encode_lenient([first, *value[1:]])
    return raw
