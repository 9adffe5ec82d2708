"""Every other route of /v1: any method, streamed both ways, byte for byte.

A path with a dot segment is refused, whatever it is encoded in: it could mean another path to the upstream
than to us.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from proxy.errors import BadRequest, Unsupported
from proxy.exchange import Gateway
from proxy.headers import Headers
from proxy.routes.conversation import Conversation

_DOTS: Final = frozenset({".", ".."})
_SEPARATORS: Final = re.compile(r"[/\\]")
_MAX_ENCODINGS: Final = 5


class RelayRoute:
    """A route that is relayed verbatim."""

    def __init__(self, gateway: Gateway, max_body_bytes: int) -> None:
        self._gateway = gateway
        self._max_body_bytes = max_body_bytes

    async def serve(self, conversation: Conversation) -> None:
        """Relay a request and its answer."""
        if has_dot_segment(conversation.scope["raw_path"].decode("latin-1")):
            raise BadRequest("The path must not have '.' or '..' segments.")
        if wants_websocket(conversation.scope["headers"]):
            raise Unsupported("WebSockets are not relayed; use the HTTP form of this API, or the provider directly.")
        body, upload = await conversation.read_or_stream(self._max_body_bytes)
        await self._gateway.handle(conversation.exchange(body, upload), conversation)


def wants_websocket(headers: Headers) -> bool:
    """Tell whether the client asks to leave HTTP for WebSocket."""
    return any(name == b"upgrade" and b"websocket" in value.lower() for name, value in headers)


def has_dot_segment(path: str) -> bool:
    """Tell whether a segment of the path is '.' or '..', percent-encoded in part, in whole or repeatedly."""
    if "." not in path and "%" not in path:
        return False
    for _ in range(_MAX_ENCODINGS):
        if any(segment.partition(";")[0] in _DOTS for segment in _SEPARATORS.split(path)):
            return True
        decoded = unquote(path, "latin-1")
        if decoded == path:
            return False
        path = decoded
    return True  # encoded so often only to hide something
