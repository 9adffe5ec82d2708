"""From settings to a running gateway: the one place that makes every part and hands it to the others."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import blake2b

import msgspec
import structlog
import uvloop

from proxy.access import PassThrough, Provider
from proxy.addresses import mask_url
from proxy.app import Parts as AppParts
from proxy.app import create_app
from proxy.counting import Counter
from proxy.errors import ConfigError, StoreError
from proxy.gateway import CompactingGateway
from proxy.gateway import Parts as GatewayParts
from proxy.routes.control import control_handlers
from proxy.server import ASGIApp, ServerOptions, bind, serve
from proxy.settings import Settings
from proxy.settings_loader import Loaded, source_of
from proxy.store import open_store
from proxy.store.base import Store
from proxy.target import Reach, UpstreamTarget, make_target
from proxy.telemetry.logs import configure_logs
from proxy.upstream import Transport
from proxy.vitals import Vitals

log = structlog.get_logger()

_SECRET_BYTES = 32
_MODELS_KEPT = 1024
_FIXED = ("host", "port", "workers", "max_body_bytes", "drain_seconds", "secret")  # of the server


class InForce:
    """The settings in force now, and what is made from them once."""

    def __init__(self, loaded: Loaded) -> None:
        self._providers: dict[str, Provider] = {}
        self.settings = loaded.settings
        self.take(loaded.settings)

    def take(self, settings: Settings) -> None:
        """Put other settings in force; raises ConfigError and keeps the old ones when an upstream is wrong."""
        names = ["default", *settings.upstreams]
        self._providers = {name: _provider(name, settings) for name in names}
        self._by_model: dict[str, Provider] = {}
        self.settings = settings

    def provider(self, model: str = "") -> Provider:
        """Return the upstream of a model."""
        known = self._by_model.get(model)
        if known is None:
            if len(self._by_model) >= _MODELS_KEPT:  # names are the clients' to invent
                self._by_model.clear()
            known = self._by_model[model] = self._providers[self.settings.upstream_for(model)]
        return known


def _provider(name: str, settings: Settings) -> Provider:
    upstream = settings.upstream_named(name)
    reach = Reach(upstream.timeout.connect, upstream.timeout.read, upstream.ca_file)
    key = "upstream" if name == "default" else f"upstreams.{name}"
    target: UpstreamTarget = make_target(upstream.base_url, reach, os.environ, key=key)
    return Provider(target, upstream.api_key)


class Service(msgspec.Struct, frozen=True):
    """A gateway ready to serve."""

    app: ASGIApp
    vitals: Vitals
    in_force: InForce


@asynccontextmanager
async def open_service(loaded: Loaded) -> AsyncIterator[Service]:
    """Make a service and let go of everything at the end."""
    in_force, vitals = InForce(loaded), Vitals()
    settings = loaded.settings
    options = settings.store.options
    store = open_store(settings.store.url if isinstance(settings.store.url, str) else list(settings.store.url), options)
    try:
        await store.open()
    except StoreError as error:
        log.warning("store_unavailable", error=error.message)
    try:
        secret = await _secret(settings, store)
        parts = _gateway_parts(in_force, store, secret)
        gateway = CompactingGateway(parts)
        app = create_app(
            AppParts(
                gateway=gateway,
                access=PassThrough(in_force.provider),
                transport=parts.transport,
                store=store,
                vitals=vitals,
                max_body_bytes=settings.server.max_body_bytes,
                handlers=control_handlers(store, secret, lambda: in_force.settings),
            )
        )
        try:
            yield Service(app, vitals, in_force)
        finally:
            await gateway.close()
            await parts.questions.close()
    finally:
        await store.close()


def _gateway_parts(in_force: InForce, store: Store, secret: bytes) -> GatewayParts:
    counter = Counter()
    counter.warm()
    return GatewayParts(
        settings=lambda: in_force.settings,
        provider=in_force.provider,
        store=store,
        store_options=in_force.settings.store.options,
        secret=secret,
        transport=Transport(),
        questions=Transport(),  # health is told by what serves clients
        counter=counter,
    )


async def _secret(settings: Settings, store: Store) -> bytes:
    """Return the key of all refs and tenants: the configured one, else the store's."""
    if settings.server.secret is not None:
        # Keys of the hash have at most 64 bytes; a configured secret may be any text.
        return blake2b(settings.server.secret.encode(), digest_size=_SECRET_BYTES).digest()
    return await store.secret(lambda: secrets.token_bytes(_SECRET_BYTES))


class Reload:
    """Reads the configuration again; what is wrong leaves everything as it was."""

    def __init__(self, load: Callable[[], Loaded], loaded: Loaded, in_force: InForce) -> None:
        self._load = load
        self._started = loaded
        self._file = loaded.file
        self._in_force = in_force

    def __call__(self) -> None:
        """Put into force what is written now, or log why not."""
        try:
            loaded = self._read()
            self._in_force.take(loaded.settings)
        except ConfigError as error:
            log.error("reload_refused", error=error.message)  # noqa: TRY400 - the message says it all
            return
        self._file = loaded.file
        _tell_doubts(loaded)
        if changed := fixed_changes(self._started.settings, loaded.settings):
            log.warning("restart_needed", changed=changed, reason="these are read once, when the gateway starts")
        log.info("reloaded", file=str(loaded.file) if loaded.file else None)

    def _read(self) -> Loaded:
        loaded = self._load()
        if self._file is not None and loaded.file is None:
            raise ConfigError(f"{self._file}: is not there any more; put it back, or restart to go on without it")
        return loaded


def fixed_changes(started: Settings, now: Settings) -> list[str]:
    """Return the keys that differ and cannot be changed while the gateway runs."""
    changed = [f"server.{key}" for key in _FIXED if getattr(started.server, key) != getattr(now.server, key)]
    store = started.store.__struct_fields__
    return changed + [f"store.{key}" for key in store if getattr(started.store, key) != getattr(now.store, key)]


def run(load: Callable[[], Loaded]) -> None:
    """Serve until a signal ends it; SIGHUP reads the configuration again."""
    loaded = load()
    configure_logs()
    server = loaded.settings.server
    try:
        listener = bind(server.host, server.port)
    except OSError as error:
        raise ConfigError(error.strerror or str(error)) from error
    _tell_start(loaded)
    uvloop.run(_serve(loaded, load, listener))


def _tell_start(loaded: Loaded) -> None:
    """Log in one line what an operator looks for first, never a key; and what is hardly meant."""
    settings = loaded.settings
    key = source_of(("upstream", "api_key"), loaded.origins) if settings.upstream.api_key else None
    log.info(
        "gateway_starts",
        config=str(loaded.file) if loaded.file else None,
        upstream=settings.upstream.base_url,
        more_upstreams=sorted(settings.upstreams),
        store=[mask_url(url) for url in settings.store.urls],
        preset=settings.defaults.preset,
        key=f"each client's own, else {key}" if key else "each client's own",
    )
    _tell_doubts(loaded)


def _tell_doubts(loaded: Loaded) -> None:
    for doubt in loaded.doubts:
        log.warning("config_doubtful", reason=doubt)


async def _serve(loaded: Loaded, load: Callable[[], Loaded], listener: socket.socket) -> None:
    server = loaded.settings.server
    async with open_service(loaded) as service:
        options = ServerOptions(server.host, server.port, server.drain_seconds)
        reload = Reload(load, loaded, service.in_force)
        await serve(service.app, listener, options, service.vitals, reload)
