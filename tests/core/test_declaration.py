"""The tools that are added to requests are small, and plain enough for every upstream."""

from __future__ import annotations

import json

import pytest

from proxy.core.declaration import TOOL_TOKENS, tool_declaration
from proxy.counting import Counter

COUNTER = Counter()


@pytest.mark.parametrize("name", ["read_offloaded", "read_offloaded_2"])
def test_the_declaration_is_small_and_plain(name: str) -> None:
    """As many tokens as are counted for it at most, only fields that every upstream knows, and compact JSON."""
    raw = tool_declaration(name)
    assert COUNTER.count(raw.decode()) <= TOOL_TOKENS
    tool = json.loads(raw)
    assert raw.decode() == json.dumps(tool, ensure_ascii=False, separators=(",", ":"))
    assert set(tool) == {"type", "function"}
    function = tool["function"]
    assert set(function) == {"name", "description", "parameters"}
    assert function["name"] == name
    parameters = function["parameters"]
    assert set(parameters) == {"type", "properties", "required"}
    assert parameters["required"] == ["ref"]
    types = {key: value.pop("type") for key, value in parameters["properties"].items()}
    assert types == {"ref": "string", "offset": "integer", "limit": "integer", "pattern": "string"}
    assert all(set(value) <= {"description"} for value in parameters["properties"].values())
    assert "history" in raw.decode()
    assert "index" in raw.decode()
