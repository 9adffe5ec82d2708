"""What an upstream complains of that the gateway can mend: a prompt that is too long, a tool that it does not take.

The answer stays whole for whoever relays it.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from proxy.core.overflow import Overflow, recognise, recognise_stream
from proxy.core.window import LEAST_TOKENS
from proxy.upstream import UpstreamResponse

PATIENCE_SECONDS: Final = 2.0
"""How long a stream may be silent at its beginning before it is relayed unseen."""

_OK: Final = range(200, 300)
_TOOL_STATUSES: Final = frozenset({400, 404, 405, 422, 501})
_OVERFLOW_STATUSES: Final = frozenset({400, 413, 422, 500})
_TOOL_WORDS: Final = re.compile(rb"\btools?\b|function call|extra inputs|response mime type", re.IGNORECASE)
# A history with broken pairs is refused in words about tools, too; sending it without our tool would not help.
_PAIRING_WORDS: Final = re.compile(rb"tool_call_id|tool_calls|role .{0,3}tool\b", re.IGNORECASE)
_EVENT: Final = re.compile(rb"(?:^|[\r\n])data:[^\r\n]*[\r\n]")


class Complaint(msgspec.Struct, frozen=True):
    """What is wrong, as far as it is our affair."""

    overflow: Overflow | None = None
    names_tool: bool = False


NONE: Final = Complaint()


async def hear(response: UpstreamResponse, sent_tokens: int) -> Complaint:
    """Return what an answer complains of; `sent_tokens` is what the prompt was taken for."""
    if response.status not in _OK:
        return await _refusal(response)
    if sent_tokens < LEAST_TOKENS:  # fits every model
        return NONE
    if response.is_event_stream:
        head = await response.peek(lambda data: _EVENT.search(data) is not None, PATIENCE_SECONDS)
        return Complaint(recognise_stream(head))
    body = await response.hold()
    return Complaint(recognise(response.status, body))


async def _refusal(response: UpstreamResponse) -> Complaint:
    if response.status not in _TOOL_STATUSES | _OVERFLOW_STATUSES:
        return NONE
    body = await response.hold()
    overflow = recognise(response.status, body)
    is_about_tools = _TOOL_WORDS.search(body) is not None and _PAIRING_WORDS.search(body) is None
    return Complaint(overflow, overflow is None and response.status in _TOOL_STATUSES and is_about_tools)
