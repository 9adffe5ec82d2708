"""The composition root: one ASGI application out of the parts that somebody else made.

`/v1` is dispatched here, in front of Litestar: a Litestar mount costs 20 µs of CPU per request, a quarter of what the
server itself needs for 2 KB, and offers nothing that a relay wants. Litestar serves all the rest: health, and whatever
handlers are passed in (the control API, metrics, the dashboard).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, TypeAlias

from litestar import Litestar, Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.types import ASGIApp, ControllerRouterHandler, Receive, Scope, Send
from msgspec import Struct

from proxy.access import Access
from proxy.errors import NotFound, ProxyError, StoreError, error_body
from proxy.exchange import Gateway
from proxy.headers import Headers
from proxy.relay import RelayGateway
from proxy.routes.chat import ChatRoute
from proxy.routes.conversation import Conversation
from proxy.routes.health import Monitored, Pinged, health_routes
from proxy.routes.relay import RelayRoute
from proxy.upstream import Transport
from proxy.vitals import Vitals

Lifespan: TypeAlias = Callable[[Litestar], AbstractAsyncContextManager[None]]

CHAT_PATH: Final = b"/v1/chat/completions"
OTHER_FORMATS: Final = (b"/v1/responses", b"/v1/messages")
_BYPASSED: Final[Headers] = [(b"x-ullage-compaction", b"bypassed; reason=format")]
_RELAYED: Final = (b"/v1", b"/v1/")


class Parts(Struct, frozen=True, kw_only=True):
    """What the application is made of."""

    gateway: Gateway  # answers chat requests
    access: Access  # admits relayed ones
    transport: Transport
    store: Pinged
    vitals: Vitals
    max_body_bytes: int = 67_108_864
    handlers: Sequence[ControllerRouterHandler] = ()  # further routes outside of /v1: the control API and so on
    openapi: OpenAPIConfig | None = None
    lifespan: Sequence[Lifespan] = ()  # what must run while the application does, in the order of its start


class Route(Protocol):
    """A handler of requests under /v1."""

    async def serve(self, conversation: Conversation) -> None:
        """Answer one request."""
        ...
