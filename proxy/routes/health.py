"""Health of this process: alive, ready, and a report. None of it asks an upstream or spends a token."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from litestar import Response, Router, route
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from proxy import __version__
from proxy.errors import StoreError
from proxy.upstream import LastAnswer, Transport
from proxy.vitals import Vitals

PING_SECONDS = 2.0
_METHODS: Final = ("GET", "HEAD")


class Pinged(Protocol):
    """What is asked of a store here."""

    async def ping(self) -> None:
        """Return if it works; raises StoreError."""
        ...


class Monitored(Struct, frozen=True):
    """What the report is about."""

    vitals: Vitals
    store: Pinged
    transport: Transport


def health_routes(monitored: Monitored) -> ControllerRouterHandler:
    """Return the handlers of /livez, /readyz, /health and their aliases."""

    @route(["/livez", "/health/liveliness", "/health/liveness"], http_method=_METHODS)
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @route(["/readyz", "/health/readiness"], http_method=_METHODS)
    async def ready() -> Response[dict[str, Any]]:
        if monitored.vitals.draining:
            return Response({"status": "draining"}, status_code=503)
        problem = await store_problem(monitored.store)
        if problem is not None:
            return Response({"status": "no_store", "store": problem}, status_code=503)
        return Response({"status": "ok"})

    @route("/health", http_method=_METHODS)
    async def health() -> dict[str, Any]:
        problem = await store_problem(monitored.store)
        failing = problem is not None or any(o.code for o in monitored.transport.last_answers.values())
        return {
            "status": "draining" if monitored.vitals.draining else "degraded" if failing else "ok",
            "version": __version__,
            "store": {"status": "ok" if problem is None else "unavailable", "message": problem},
            "upstreams": [_reported(o) | {"origin": origin} for origin, o in monitored.transport.last_answers.items()],
        }

    return Router("/", route_handlers=[live, ready, health], include_in_schema=False)


async def store_problem(store: Pinged, patience_seconds: float = PING_SECONDS) -> str | None:
    """Return what keeps the store from working, or None; never waits for long."""
    try:
        async with asyncio.timeout(patience_seconds):
            await store.ping()
    except StoreError as error:
        return error.message
    except TimeoutError:
        return f"The store does not answer within {patience_seconds:g} s."
    return None


def _reported(answer: LastAnswer) -> dict[str, Any]:
    at = datetime.fromtimestamp(answer.at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"at": at, "status": answer.status, "code": answer.code}
