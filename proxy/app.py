"""The composition root: one ASGI application out of the parts that somebody else made.

`/v1` is dispatched here, in front of Litestar: a Litestar mount costs 20 µs of CPU per request, a quarter of
what the server itself needs for 2 KB, and offers nothing that a relay wants. Litestar serves all the rest:
health, and whatever handlers are passed in (the control API, metrics, the dashboard).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, TypeAlias

from litestar import Litestar, Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.types import ASGIApp, ControllerRouterHandler, Receive, Scope, Send
from msgspec import Struct

from proxy.access import Access
from proxy.errors import HeadTooLarge, Loop, NotFound, ProxyError, error_body
from proxy.exchange import Gateway
from proxy.headers import Headers, size_of
from proxy.relay import RelayGateway
from proxy.routes.chat import ChatRoute
from proxy.routes.conversation import Conversation
from proxy.routes.health import Monitored, Pinged, health_routes
from proxy.routes.relay import RelayRoute
from proxy.upstream import Transport
from proxy.vitals import Vitals

log = logging.getLogger(__name__)

Lifespan: TypeAlias = Callable[[Litestar], AbstractAsyncContextManager[None]]

CHAT_PATH: Final = b"/v1/chat/completions"
OTHER_FORMATS: Final = (b"/v1/responses", b"/v1/messages")
_BYPASSED: Final[Headers] = [(b"x-ullage-compaction", b"bypassed; reason=format")]
_PREFIX: Final = b"/v1/"
_OWN: Final = "/ullage/"
_MAX_HEAD_BYTES: Final = 256 * 1024  # of all header fields; as much as an answer's may have
_CODES: Final = {400: "bad_request", 401: "unauthenticated", 403: "forbidden", 404: "not_found"}
_TOO_LARGE: Final = f"The header fields are larger than {_MAX_HEAD_BYTES} bytes together; send fewer or shorter ones."
_LOOP: Final = (
    "The upstream of this gateway is the gateway itself, so this request came back to it. Name the provider in "
    "upstream.base_url or with --upstream, and keep OPENAI_BASE_URL, which is for clients, out of its environment."
)


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


def create_app(parts: Parts) -> ASGIApp:
    """Return the application that serves everything."""
    limit = parts.max_body_bytes
    relay = RelayRoute(RelayGateway(parts.transport, parts.access), limit)
    other_format = RelayRoute(RelayGateway(parts.transport, parts.access, _BYPASSED), limit)
    routes: dict[tuple[bytes, str], Route] = {(CHAT_PATH, "POST"): ChatRoute(parts.gateway, limit)}
    routes |= {(path, "POST"): other_format for path in OTHER_FORMATS}
    litestar = _create_litestar(parts)
    brought = parts.transport.links.brought

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        fields: Any = scope
        if fields["type"] != "http":
            await litestar(scope, receive, send)
            return
        path: bytes = fields["raw_path"]
        is_too_large = size_of(fields["headers"]) > _MAX_HEAD_BYTES
        if not path.startswith(_PREFIX) and not is_too_large:
            await litestar(scope, receive, send)
            return
        conversation = Conversation(scope, receive, send, parts.vitals)
        if is_too_large:
            work = _refuse(HeadTooLarge(_TOO_LARGE))
        elif brought(fields["client"], fields["server"]):
            work = _refuse(Loop(_LOOP))
        else:
            work = routes.get((path, fields["method"]), relay).serve(conversation)
        await conversation.run(work)

    return app


async def _refuse(error: ProxyError) -> None:
    raise error


def _create_litestar(parts: Parts) -> Litestar:
    @asynccontextmanager
    async def connected(_: Litestar) -> AsyncIterator[None]:
        yield
        await parts.transport.close()

    return Litestar(
        route_handlers=[health_routes(Monitored(parts.vitals, parts.store, parts.transport)), *parts.handlers],
        openapi_config=parts.openapi,
        logging_config=None,  # whoever starts the process decides about logs
        lifespan=[*parts.lifespan, connected],
        exception_handlers={ProxyError: _answer_own, HTTPException: _answer_http, Exception: _answer_bug},
        request_max_body_size=parts.max_body_bytes,
    )


def _answer_own(_: Request[Any, Any, Any], error: ProxyError) -> Response[bytes]:
    return _response(error_body(error), error.status)


def _answer_http(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Answer what Litestar itself refuses: unknown paths, wrong methods, wrong parameters."""
    if error.status_code == NotFound.status and error.detail in {"", "Not Found"}:
        path = request.url.path
        hint = "" if path.startswith(_OWN) else "; the OpenAI base URL ends in /v1"
        return _answer_own(request, NotFound(f"No such path: {path}{hint}."))
    code = _CODES.get(error.status_code, "internal" if error.status_code >= 500 else "bad_request")
    return _response(error_body(ProxyError(error.detail), code), error.status_code, error.headers)


def _answer_bug(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    log.error("internal error: %s %s", request.method, request.url.path, exc_info=error)
    return _answer_own(request, ProxyError("The gateway failed; its log says why."))


def _response(data: bytes, status: int, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(data, status_code=status, media_type="application/json", headers=headers)
