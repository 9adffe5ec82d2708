"""/ullage/v1: looking at sessions and originals, and deleting them.

Every route, whatever the method, is behind one guard, which finds out who asks (see `administration`); the
store answers for that tenant alone. What is not there and what belongs to somebody else is therefore the same
404, word for word. Texts of histories leave through `GET originals/{ref}` and nowhere else; the log gets ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, Final, TypeAlias

from litestar import Litestar, Request, Response, Router, delete, get, post, route
from litestar.connection import ASGIConnection
from litestar.datastructures import CacheControlHeader, State
from litestar.exceptions import ValidationException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import PathParameter, QueryParameter
from litestar.serialization import encode_json
from litestar.types import ControllerRouterHandler

from proxy import __version__
from proxy.administration import Viewer, admit
from proxy.errors import BadRequest, NotFound, error_body
from proxy.routes import shapes
from proxy.sessions import Sessions
from proxy.settings import Settings
from proxy.store.base import PAGE_LIMIT, Original, PageRequest, Store
from proxy.wish import wish

log = logging.getLogger(__name__)

PREFIX: Final = "/ullage/v1"
_BYTES: Final = "application/octet-stream"

Asked: TypeAlias = Request[None, Viewer, State]
SessionId: TypeAlias = Annotated[str, PathParameter(name="id", description="The id of a session.")]
Ref: TypeAlias = Annotated[str, PathParameter(description="The ref of an original: off_…")]
Limit: TypeAlias = Annotated[
    int, QueryParameter(ge=1, description=f"How many items at most; more than {PAGE_LIMIT} counts as that.")
]
Cursor: TypeAlias = Annotated[
    str | None, QueryParameter(description="Go on after an earlier list: the `next` that it gave.")
]
SessionFilter: TypeAlias = Annotated[
    str | None, QueryParameter(name="session", description="Only what this session holds.")
]

_FAILURES: Final = {
    400: "A parameter is wrong.",
    401: "No credential.",
    404: "No such thing, or not visible with this credential.",
    409: "The session's preset makes no compactions.",
    503: "The store cannot be used now.",
}
_SCHEMES: Final = {
    "bearer": SecurityScheme(type="http", scheme="bearer", description="A client's key, or the admin key."),
    "key": SecurityScheme(type="apiKey", name="x-api-key", security_scheme_in="header"),
}


def control_handlers(store: Store, secret: bytes, settings: Callable[[], Settings]) -> list[ControllerRouterHandler]:
    """Return the routes under /ullage/v1; `secret` names the tenants, `settings` gives what is in force now."""
    control = Control(store, secret, settings)
    shown = [
        get("/sessions", summary="List sessions", responses=_failures())(control.list_sessions),
        get("/sessions/{id:str}", summary="Show a session", responses=_failures(404))(control.show_session),
        delete("/sessions/{id:str}", summary="Delete a session", responses=_failures(404))(control.delete_session),
        post(
            "/sessions/{id:str}/compact",
            summary="Compact a session",
            status_code=202,
            response_description="The session's next request is compacted.",
            responses=_failures(404, 409),
        )(control.compact_session),
        get("/originals", summary="List originals", responses=_failures())(control.list_originals),
        get(
            "/originals/{ref:str}",
            summary="Download an original",
            media_type=_BYTES,
            content_media_type=_BYTES,
            response_description="The exact bytes.",
            responses=_failures(404),
        )(control.show_original),
        delete("/originals/{ref:str}", summary="Erase an original", responses=_failures(404))(control.erase_original),
    ]
    schema = cache(partial(_schema, shown))  # takes 30 ms, which few processes have to spend

    @get("/openapi.json", include_in_schema=False, media_type="application/json")
    async def openapi() -> bytes:
        return schema()

    routes = [*shown, openapi]
    router = Router(
        PREFIX,
        route_handlers=[*_companions(routes), *routes],
        guards=[control.guard],
        exception_handlers={ValidationException: _answer_wrong_parameter},
        cache_control=CacheControlHeader(no_store=True),
    )
    return [router]


class Control:
    """The routes; which tenant asks is in `request.auth` when they are called."""

    def __init__(self, store: Store, secret: bytes, settings: Callable[[], Settings]) -> None:
        self._store = store
        self._secret = secret
        self._settings = settings

    def __deepcopy__(self, memo: object) -> Control:
        # Litestar copies a router with everything in it, but there is one store.
        return self

    async def guard(self, connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        """Find out who asks, or raise Unauthenticated."""
        peer = connection.client.host if connection.client else ""
        headers = list(connection.scope["headers"])
        connection.scope["auth"] = admit(peer, headers, self._secret, self._settings().server.admin_key)

    async def list_sessions(self, request: Asked, limit: Limit = 100, cursor: Cursor = None) -> shapes.SessionList:
        """List sessions, last created first."""
        page = PageRequest(limit, cursor or None)
        return shapes.list_sessions(await self._store.list_sessions(request.auth.tenant, page))

    async def show_session(self, request: Asked, session: SessionId) -> shapes.Session:
        """Show one session."""
        found = await self._store.get_session(request.auth.tenant, session)
        if found is None:
            raise _no_session()
        return shapes.show_session(found)

    async def delete_session(self, request: Asked, session: SessionId) -> None:
        """Forget a session: what was decided, its record, and the originals that it alone holds."""
        if not await self._store.delete_session(request.auth.tenant, session):
            raise _no_session()
        log.info("session %s was deleted by %s", session, request.auth.tenant or "the administrator")

    async def compact_session(self, request: Asked, session: SessionId) -> shapes.Compaction:
        """Have a session compacted by its next request, however small it is, unless nothing is to be gained."""
        found = await self._store.get_session(request.auth.tenant, session)
        if found is None:
            raise _no_session()
        strategy = await wish(Sessions(self._store, self._secret), found, self._settings().presets)
        log.info("session %s is to be compacted for %s", session, request.auth.tenant or "the administrator")
        return shapes.pending_compaction(strategy)

    async def list_originals(
        self, request: Asked, session: SessionFilter = None, limit: Limit = 100, cursor: Cursor = None
    ) -> shapes.OriginalList:
        """List originals without their texts, last stored first."""
        page = PageRequest(limit, cursor or None)
        return shapes.list_originals(await self._store.list_originals(request.auth.tenant, session, page))

    async def show_original(self, request: Asked, ref: Ref) -> Response[bytes]:
        """Download the exact bytes of an original."""
        found = await self._store.get_original(request.auth.tenant, ref)
        if not isinstance(found, Original):
            raise _no_original()
        # The text is somebody's, and nobody's page may be made of it: neither shown nor guessed at nor kept.
        headers = {
            "content-disposition": f'attachment; filename="{found.ref}.txt"',
            "x-content-type-options": "nosniff",
        }
        return Response(found.data, media_type=_BYTES, headers=headers)

    async def erase_original(self, request: Asked, ref: Ref) -> None:
        """Erase an original for good: it does not come back with the client's next request."""
        if not await self._store.erase_original(request.auth.tenant, ref):
            raise _no_original()
        log.info("original %s was erased by %s", ref, request.auth.tenant or "the administrator")


def _no_session() -> NotFound:
    return NotFound("no such session", param="id")


def _no_original() -> NotFound:
    return NotFound("no such original", param="ref")


def _answer_wrong_parameter(_: Request[Any, Any, Any], error: ValidationException) -> Response[bytes]:
    """Name the first parameter that is wrong, and how."""
    extra = error.extra
    first: Mapping[str, Any] = extra[0] if isinstance(extra, list) and extra else {}
    param = first.get("key")
    body = error_body(BadRequest(f"{param or 'request'}: {first.get('message', 'wrong')}", param=param))
    return Response(body, status_code=BadRequest.status, media_type="application/json")


def _companions(routes: Sequence[HTTPRouteHandler]) -> Iterator[HTTPRouteHandler]:
    """Yield what HTTP wants beside the documented methods: OPTIONS for each path, and HEAD for each GET.

    OPTIONS comes first: with the first other method of a path Litestar adds one that knows of no further ones.
    """
    methods: dict[str, set[str]] = {}
    for known in routes:
        for path in known.paths:
            implied = {"HEAD"} if "GET" in known.http_methods else set()
            methods.setdefault(path, {"OPTIONS"}).update(known.http_methods, implied)
    for path, allowed in methods.items():
        yield route(path, http_method="OPTIONS", include_in_schema=False)(_permission(", ".join(sorted(allowed))))
    for known in routes:
        if "GET" in known.http_methods:
            hidden = route(list(known.paths), http_method="HEAD", media_type=known.media_type, include_in_schema=False)
            yield hidden(known.fn)


def _permission(allowed: str) -> Callable[[], Any]:
    async def tell_methods() -> Response[None]:
        return Response(None, status_code=204, headers={"allow": allowed})

    return tell_methods


def _failures(*own: int) -> dict[int, ResponseSpec]:
    """Describe the errors of a route: its own, and those that every route has."""
    return {
        status: ResponseSpec(shapes.Failure, generate_examples=False, description=_FAILURES[status])
        for status in sorted({400, 401, 503, *own})
    }


def _schema(shown: Sequence[HTTPRouteHandler]) -> bytes:
    """Return the OpenAPI document of these routes and no others."""
    config = OpenAPIConfig(
        title="ullage",
        version=__version__,
        summary="Inspection and control of the gateway.",
        use_handler_docstrings=True,
        operation_id_creator=lambda handler, _, __: handler.handler_name,
        components=Components(security_schemes=dict(_SCHEMES)),
        security=[{"bearer": []}, {"key": []}, {}],
    )
    app = Litestar([Router(PREFIX, route_handlers=shown)], openapi_config=config, logging_config=None)
    return encode_json(app.openapi_schema.to_schema())
