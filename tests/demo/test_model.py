"""The scripted model."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.demo.model import PREAMBLE, READING_TOOL, Call, Reply, ScriptedModel

TOOLS = [{"type": "function", "function": {"name": READING_TOOL}}]
RECORDED = {"role": "assistant", "content": "done"}


def body(*messages: dict[str, Any], tools: list[dict[str, Any]] | None = None) -> bytes:
    """Return a request."""
    return msgspec.json.encode({"model": "m", "messages": messages} | ({"tools": tools} if tools else {}))


def told(model: ScriptedModel, call: Call, text: str) -> Reply:
    """Answer a call of the model with a text."""
    return model.answer(body({"role": "tool", "tool_call_id": call.id, "content": text}, tools=TOOLS))


def test_it_says_what_was_recorded() -> None:
    """Text and calls, and nothing is read unless it was told to."""
    model = ScriptedModel()
    function = {"name": "bash", "arguments": "{}"}
    model.prepare({"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function}]})
    request = body({"role": "user", "content": "go"}, tools=TOOLS)
    assert model.answer(request) == Reply("", (Call("c1", "bash", "{}"),))
    assert model.requests == [request]


def test_it_reads_to_the_end_before_it_answers() -> None:
    """A word first, then one call for each page, then the recorded answer."""
    model = ScriptedModel()
    model.prepare(RECORDED, read="off_x")
    begun = model.answer(body({"role": "user", "content": "go"}, tools=TOOLS))
    assert begun.text == PREAMBLE
    assert msgspec.json.decode(begun.calls[0].arguments) == {"ref": "off_x", "offset": 1}
    further = told(model, begun.calls[0], "@@ rows 1-1 of 2 · next offset=2 @@\na")
    assert msgspec.json.decode(further.calls[0].arguments) == {"ref": "off_x", "offset": 2}
    assert further.calls[0].id != begun.calls[0].id
    assert told(model, further.calls[0], "@@ rows 2-2 of 2 · end @@\nb") == Reply("done")
    assert [page.rows for page in model.pages] == [{1: "a"}, {2: "b"}]


def test_it_goes_on_without_what_it_cannot_read() -> None:
    """Where the tool is not offered, or refuses, it answers at once."""
    model = ScriptedModel()
    model.prepare(RECORDED, read="off_x")
    assert model.answer(body({"role": "user", "content": "go"})) == Reply("done")
    begun = model.answer(body({"role": "user", "content": "go"}, tools=TOOLS))
    assert told(model, begun.calls[0], "Nothing is stored under this ref.") == Reply("done")
    assert model.pages == []
