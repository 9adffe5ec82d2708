"""The tools that the gateway adds to a request: their names, what they cost, and how they are declared.

Every request carries them, so they say no more than a model needs: stubs and answers tell the rest.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

TOOL_NAME: Final = "read_offloaded"
TOOL_TOKENS: Final = 90
"""What the declaration is counted as, whatever number its name ends with."""
OFFER_NAME: Final = "compact_conversation"
OFFER_TOKENS: Final = 50
"""The same of the tool that a model may ask for a compaction with."""


@cache
def tool_declaration(name: str) -> bytes:
    """Return the tool as the JSON bytes that are declared in `tools`."""
    properties = {
        "ref": {"type": "string", "description": "off_…, index or history"},
        "offset": {"type": "integer"},
        "limit": {"type": "integer"},
        "pattern": {"type": "string"},
    }
    function = {
        "name": name,
        "description": "Read offloaded text by rows (the first is 1) or regex pattern",
        "parameters": {"type": "object", "properties": properties, "required": ["ref"]},
    }
    return msgspec.json.encode({"type": "function", "function": function})


@cache
def offer_declaration(name: str) -> bytes:
    """Return the tool with which a model asks for a compaction, as JSON bytes; it takes no arguments."""
    function = {
        "name": name,
        "description": "Shorten the earlier conversation when a part of the work is done. Nothing is lost.",
        "parameters": {"type": "object", "properties": {}},
    }
    return msgspec.json.encode({"type": "function", "function": function})
