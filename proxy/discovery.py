"""Asks upstreams how large the windows of their models are: in the background, seldom, and never for money.

Nothing waits for it. It uses the credential of the request that gave rise to it, for nothing but lists and properties,
which no provider charges for. What it learns is one number for an upstream and model, the same for everybody; no other
part of an answer is kept. OpenAI and Azure tell no windows, so they are not asked.

`{base}/models` is asked first. Local servers that it gives away, by owner or port, are asked in their own ways: what
they serve a model with differs from what the model could have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from proxy.core.listing import Listing, read_listing, read_loaded, read_props, read_running, read_shown
from proxy.core.memo import Memo
from proxy.core.window import Window
from proxy.errors import UpstreamError
from proxy.headers import Headers
from proxy.providers import Address, address_of, provider_of_host
from proxy.target import UpstreamTarget
from proxy.upstream import Transport, UpstreamRequest
from proxy.windows import Windows

log = structlog.get_logger()

LIFE_SECONDS: Final = 6 * 3600.0
"""What was found holds so long; then it is asked for again."""
FIRST_PAUSE_SECONDS: Final = 60.0
LONGEST_PAUSE_SECONDS: Final = 3600.0
PATIENCE_SECONDS: Final = 15.0

_MOST_BYTES: Final = 8 * 1024 * 1024
_KEPT: Final = 4_096
_NEVER_ASKED: Final = frozenset({"openai", "azure"})
_PASSED_ON: Final = frozenset({b"authorization", b"x-api-key", b"api-key", b"anthropic-version"})
_OWN_FIELDS: Final = ((b"accept", b"application/json"), (b"accept-encoding", b"identity"))
_LM_STUDIO_PORT: Final = 1234


class Silent(Exception):
    """The upstream tells nothing of this kind."""


class _Pace(Struct):
    """When something may be asked for again."""

    due: float = 0.0
    failures: int = 0

    def succeed(self, now: float) -> None:
        self.due, self.failures = now + LIFE_SECONDS, 0

    def fail(self, now: float) -> None:
        self.due = now + min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self.failures, 16))
        self.failures += 1


class _Base(Struct):
    """What is known of one upstream."""

    pace: _Pace
    owners: frozenset[str] = frozenset()
    task: asyncio.Task[None] | None = None


class Discovery:
    """Fills `windows` with what upstreams tell."""

    def __init__(self, transport: Transport, windows: Windows, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport = transport
        self._windows = windows
        self._clock = clock
        self._bases: Memo[tuple[str, str], _Base] = Memo(_KEPT)
        self._models: Memo[tuple[str, str, str], _Pace] = Memo(_KEPT)
        self._tasks: set[asyncio.Task[None]] = set()

    def notice(self, target: UpstreamTarget, headers: Headers, model: str) -> None:
        """Ask about a model in the background if that is due; `headers` are those that went upstream.

        To be called when the upstream has answered with success, so that the credential is known to be good.
        """
        base = self._base_of(target)
        if base is None or base.task is not None or not model:
            return
        pace = self._pace_of(target, model)
        if self._clock() < pace.due:
            return
        kept = [pair for pair in headers if pair[0] in _PASSED_ON]
        query = _Query(self._transport, _patient(target), [*kept, *_OWN_FIELDS], model)
        base.task = asyncio.create_task(self._ask(query, base, pace))
        self._tasks.add(base.task)
        base.task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop asking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _base_of(self, target: UpstreamTarget) -> _Base | None:
        """Return what is known of an upstream; None for one that tells nothing."""
        key = target.origin, target.prefix
        base = self._bases.get(key)
        if base is None and provider_of_host(address_of(target.origin).host) not in _NEVER_ASKED:
            base = _Base(_Pace())
            self._bases.put(key, base)
        return base

    def _pace_of(self, target: UpstreamTarget, model: str) -> _Pace:
        key = target.origin, target.prefix, model
        pace = self._models.get(key)
        if pace is None:
            pace = _Pace()
            self._models.put(key, pace)
        return pace

    async def _ask(self, query: _Query, base: _Base, pace: _Pace) -> None:
        """Ask everything that can tell the window of one model; never raises."""
        origin, model = query.target.origin, query.model
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                found = await self._find(query, base)
        except (UpstreamError, TimeoutError, Silent) as error:
            log.debug("window_not_discovered", upstream=origin, model=model, reason=str(error))
            found = None
        except Exception:
            log.exception("discovery_failed", upstream=origin, model=model)
            found = None
        finally:
            base.task = None
        if found is None:
            pace.fail(self._clock())
            return
        self._windows.put(origin, model, found)
        pace.succeed(self._clock())
        log.info("window_discovered", upstream=origin, model=model, window_tokens=found.tokens)

    async def _find(self, query: _Query, base: _Base) -> Window | None:
        if self._clock() >= base.pace.due:
            await self._list(query, base)
        address = address_of(query.target.origin)
        for ask in _ways(address, base.owners):
            try:
                window = await ask(query)
            except (UpstreamError, Silent):
                continue
            if window is not None:
                return window
        return None if address.is_ollama else self._windows.discovered(query.target.origin, query.model)

    async def _list(self, query: _Query, base: _Base) -> None:
        """Read the list of models; one that cannot be had is asked for again later."""
        try:
            listing = read_listing(await query.get(query.target, "/models"))
        except (UpstreamError, Silent):
            base.pace.fail(self._clock())
            return
        self._keep(query.target.origin, listing)
        base.owners = listing.owners
        base.pace.succeed(self._clock())

    def _keep(self, origin: str, listing: Listing) -> None:
        for model, window in listing.windows.items():
            self._windows.put(origin, model, window)


class _Query:
    """One round of questions to an upstream about one model."""

    def __init__(self, transport: Transport, target: UpstreamTarget, headers: Headers, model: str) -> None:
        self._transport = transport
        self._headers = headers
        self.target = target
        self.root = msgspec.structs.replace(target, prefix=target.prefix.removesuffix("/v1"), query="")
        self.model = model

    async def get(self, target: UpstreamTarget, path: str, body: bytes = b"") -> bytes:
        """Return the body of an answer; raises UpstreamError and Silent."""
        headers = [*self._headers, (b"content-type", b"application/json")] if body else self._headers
        request = UpstreamRequest(target, "POST" if body else "GET", path, headers, body=body)
        response = await self._transport.open(request)
        try:
            if response.status != 200:
                raise Silent(f"{path}: status {response.status}")
            parts, size = [], 0
            async for data in response:
                parts.append(data)
                size += len(data)
                if size > _MOST_BYTES:
                    raise Silent(f"{path}: more than {_MOST_BYTES} bytes")
        finally:
            await response.close()
        return b"".join(parts)

    async def running(self) -> Window | None:
        """Ask Ollama with what it runs the model."""
        return read_running(await self.get(self.root, "/api/ps"), self.model)

    async def shown(self) -> Window | None:
        """Ask Ollama what the model is set to."""
        body = msgspec.json.encode({"model": self.model.encode("utf-8", "replace").decode()})
        return read_shown(await self.get(self.root, "/api/show", body))

    async def props(self) -> Window | None:
        """Ask llama.cpp for the size of its slots."""
        return read_props(await self.get(self.root, "/props"))

    async def loaded(self) -> Window | None:
        """Ask LM Studio with what it has loaded the model."""
        return read_loaded(await self.get(self.root, "/api/v0/models"), self.model)


def _ways(address: Address, owners: frozenset[str]) -> Iterable[Callable[[_Query], Awaitable[Window | None]]]:
    if address.is_ollama or "library" in owners:
        return (_Query.running, _Query.shown)
    if "llamacpp" in owners:
        return (_Query.props,)
    if address.port == _LM_STUDIO_PORT or "organization_owner" in owners:
        return (_Query.loaded,)
    return ()


def _patient(target: UpstreamTarget) -> UpstreamTarget:
    """Return the target with the time-outs of a question that nobody waits for."""
    return msgspec.structs.replace(target, read_seconds=min(target.read_seconds, PATIENCE_SECONDS))
