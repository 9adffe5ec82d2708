"""What the tests of both SDKs share: requests as the upstream sees them, refusals, and a history with a moved text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.e2e.chat import TOOLS, assert_grows, result, step, user
from tests.e2e.gateway import Upstream
from tests.e2e.model import TOOL, frames, raw_messages, tool_names, without_tool
from tests.e2e.turns import Turn
from tests.fakes.upstream import CUT, HANG, Received, Reply, answer, chunks, pieces

# Written anew for each connection, or for an answer that must be readable by the gateway.
_ON_THE_WAY = frozenset({"host", "connection", "content-length", "accept-encoding"})

HI: dict[str, Any] = {"model": "m", "messages": [user("hi")]}
HI_WITH_TOOLS: dict[str, Any] = {**HI, "tools": TOOLS}
HISTORY = [user("go"), *step("alpha")]
SPLICED: dict[str, Any] = {"model": "m", "messages": HISTORY, "tools": TOOLS}
WITH_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}

VECTORS = {
    "object": "list",
    "model": "e",
    "data": [{"object": "embedding", "index": at, "embedding": "AACAPwAAAEA="} for at in range(2)],
}
MODEL = {"id": "m", "object": "model", "created": 1, "owned_by": "o"}
MODELS = {"object": "list", "data": [MODEL]}


def seen(received: Received) -> object:
    """Return what an upstream sees of a request, without what belongs to the way and without our tool."""
    body = received.body
    if b'"tools"' in body and TOOL in tool_names(body):
        body = without_tool(body)
    fields = [(name.lower().decode(), value) for name, value in received.headers]
    kept = sorted(field for field in fields if field[0] not in _ON_THE_WAY)
    # The parts of a form are divided by a line that is made anew each time.
    boundary = (received.header("content-type") or "").partition("boundary=")[2].encode() or b"\0"
    plain = [(name, value.replace(boundary, b"")) for name, value in kept]
    return received.method, received.target, plain, body.replace(boundary, b"")


def refusal(status: int, **headers: str) -> Reply:
    """Return an error of the upstream's with a request id."""
    error = {"message": f"no {status}", "type": "t", "param": "messages", "code": "c"}
    return answer({"error": error}, status, {"X-Request-Id": "req_7", **headers})


def broken_stream() -> Reply:
    """Return a stream that is cut after one word."""
    return pieces(*frames(*chunks("two", None)), CUT)


def endless_stream() -> Reply:
    """Return a stream that stays silent after one word."""
    return pieces(*frames(*chunks("one", None)), HANG)


def assert_remembered(
    ask: Callable[[list[dict[str, Any]]], object], upstream: Upstream, message: dict[str, Any], turn: Turn
) -> None:
    """Send an SDK's own copy of a message back, and find the hidden rounds before it."""
    before = upstream.bodies[-1]
    upstream.forget()
    answers = [result("small", ident) for ident, _, _ in turn.calls]
    ask([*HISTORY, message, *answers, user("so?")])
    assert_grows([before, upstream.bodies[0]])
    added = raw_messages(upstream.bodies[0])[len(HISTORY) :]
    assert TOOL in json.dumps([json.loads(raw) for raw in added])
