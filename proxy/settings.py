"""The whole configuration as frozen values; every field says what it means, here and in the JSON Schema.

`settings_loader` makes these from flags, environment and file; nothing else in the gateway reads either.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proxy.addresses import MASK, OPENAI_URL, mask_url, normalise_base_url
from proxy.core.duration import PositiveSeconds, Seconds
from proxy.presets import Preset, built_in
from proxy.store.base import StoreOptions
from proxy.units import Count, Text

SECRET_KEYS = frozenset({"admin_key", "secret", "api_key", "upstream_key", "encryption_keys"})
RELAY = ("models", "embeddings", "audio", "images", "moderations", "completions")

Credential = Annotated[str, Meta(min_length=1, extra={"secret": True})]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables; its repr never shows a credential."""

    def __repr__(self) -> str:
        fields = (f"{name}={masked(name, getattr(self, name))!r}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({', '.join(fields)})"


def masked(key: str, value: object) -> object:
    """Return the value of a key as it may be shown: credentials and passwords in URLs are hidden."""
    if isinstance(value, (list, tuple)):
        return [masked(key, item) for item in value]
    if not isinstance(value, str):
        return value
    return MASK if key in SECRET_KEYS else mask_url(value)


class Server(Table, frozen=True):
    """Where the gateway listens and how it behaves as a process."""

    host: Annotated[Text, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0: any free one.")] = 4410
    workers: Annotated[int, Meta(ge=1, le=256, description="Processes that share the port and the store.")] = 1
    max_body_bytes: Annotated[int, Meta(ge=1, description="A larger request body is answered with 413.")] = 67_108_864
    drain_seconds: Annotated[Seconds, Meta(description="After SIGTERM running requests get so long to finish.")] = 30.0
    admin_key: Annotated[
        Credential | None,
        Meta(description="Key of the administrator; unset: administration from loopback only."),
    ] = None
    secret: Annotated[
        Credential | None,
        Meta(description="Keys all refs and tenants; unset: created once in the store. Same on all replicas."),
    ] = None
    cors_origins: Annotated[tuple[str, ...], Meta(description="Web origins that may call /v1.")] = ()
    keepalive_seconds: Annotated[
        Seconds, Meta(description="A compacted stream silent for so long gets an SSE comment; 0: never.")
    ] = 10.0


class Timeout(Table, frozen=True):
    """How long to wait for an upstream."""

    connect: Annotated[PositiveSeconds, Meta(description="To open a connection.")] = 5.0
    read: Annotated[PositiveSeconds, Meta(description="Between two pieces of an answer.")] = 600.0


class Quirks(Table, frozen=True):
    """What is known about an upstream; what is unset is known otherwise or learnt."""

    tools: Annotated[bool | None, Meta(description="Whether it takes tools at all.")] = None
    system_messages: Annotated[
        Literal["one", "many"] | None, Meta(description="How many system messages it takes.")
    ] = None
    roles: Annotated[
        Literal["alternate", "free"] | None, Meta(description="Whether user and assistant must alternate.")
    ] = None
    stream_usage: Annotated[bool | None, Meta(description="Whether it takes stream_options.include_usage.")] = None


class Upstream(Table, frozen=True):
    """A provider: where it is, whose credential it gets, how it behaves."""

    base_url: Annotated[
        str, Meta(description="OpenAI base URL, with or without /v1; kept in the form https://host/v1.")
    ] = OPENAI_URL
    api_key: Annotated[
        Credential | None, Meta(description="Sent when the request brings no credential (loopback only).")
    ] = None
    models: Annotated[tuple[str, ...], Meta(description="Models that go here, as names or patterns (* and ?).")] = ()
    timeout: Timeout = Timeout()
    ca_file: Annotated[str | None, Meta(description="PEM file of further certificate authorities.")] = None
    quirks: Quirks = Quirks()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "base_url", normalise_base_url(self.base_url))


class Store(Table, frozen=True):
    """Where originals, decisions and statistics are kept."""

    url: Annotated[
        str | tuple[str, ...],
        Meta(
            description="sqlite:///PATH, s3://bucket/prefix (gs, az), file:///FOLDER, memory:; or two: quick, durable."
        ),
    ] = "sqlite:///var/ullage.db"
    idle_ttl: Annotated[PositiveSeconds, Meta(description="What nobody used for so long is dropped.")] = 30 * 86_400.0
    record: Annotated[bool, Meta(description="Keep every message of a session; false: only what edits removed.")] = True
    encryption_keys: Annotated[tuple[Credential, ...], Meta(description="The first one encrypts, all decrypt.")] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        """The stores, one or several."""
        return (self.url,) if isinstance(self.url, str) else self.url

    @property
    def options(self) -> StoreOptions:
        """How the stores are to behave."""
        return StoreOptions(idle_ttl=self.idle_ttl, record=self.record, encryption_keys=self.encryption_keys)


class Model(Table, frozen=True):
    """What is known better than the built-in tables about models of one name or pattern."""

    window: Annotated[Count | None, Meta(description="Tokens that fit into the context, the answer included.")] = None


class Defaults(Table, frozen=True):
    """What holds where nothing else is said."""

    preset: Annotated[str, Meta(description="Preset of requests that name none.")] = "balanced"


class Tenant(Table, frozen=True):
    """One customer of the gateway: whose policy, whose upstream, which limits."""

    preset: Annotated[str | None, Meta(description="Preset of this tenant; unset: the default one.")] = None
    allow_policy_header: Annotated[bool, Meta(description="Whether x-ullage-policy may choose another preset.")] = False
    upstream: Annotated[
        str | None, Meta(description="Name of the upstream of all its models; unset: chosen by model.")
    ] = None
    upstream_key: Annotated[
        Credential | None, Meta(description="Sent upstream when the client brings no provider key.")
    ] = None
    requests_per_minute: Annotated[Count | None, Meta(description="More are answered with 429.")] = None
    stored_bytes: Annotated[Count | None, Meta(description="Quota of originals; over it nothing is offloaded.")] = None
    relay: Annotated[tuple[str, ...], Meta(description="What else of /v1 may be used with a key of ours.")] = RELAY


class Settings(Table, frozen=True):
    """Everything that can be configured, checked and resolved."""

    server: Server = Server()
    upstream: Upstream = Upstream()
    upstreams: Annotated[dict[str, Upstream], Meta(description="Further upstreams, chosen by model.")] = {}
    store: Store = Store()
    models: Annotated[dict[str, Model], Meta(description="Overrides by model name or pattern.")] = {}
    defaults: Defaults = Defaults()
    presets: Annotated[dict[str, Preset], Meta(description="Named chains of policies.")] = msgspec.field(
        default_factory=built_in
    )
    tenants: Annotated[dict[str, Tenant], Meta(description="None: clients are told apart by their credential.")] = {}

    def upstream_for(self, model: str) -> str:
        """Return the name of the upstream of a model: exact name, then longest pattern, then `default`."""
        patterns = {"default": self.upstream.models} | {name: up.models for name, up in self.upstreams.items()}
        best = best_pattern(model, (p for models in patterns.values() for p in models))
        return next((name for name, models in patterns.items() if best in models), "default")

    def upstream_named(self, name: str) -> Upstream:
        """Return the upstream of that name; `default` is the one of `[upstream]`."""
        return self.upstream if name == "default" else self.upstreams[name]

    def window_for(self, model: str) -> int | None:
        """Return the configured window of a model in tokens; None: nothing is configured."""
        best = best_pattern(model, (name for name, known in self.models.items() if known.window is not None))
        return None if best is None else self.models[best].window


def best_pattern(name: str, patterns: Iterable[str]) -> str | None:
    """Return the best pattern: the exact name, else the longest that matches, the first of equals."""
    best: str | None = None
    for pattern in patterns:
        if pattern == name:
            return pattern
        if fnmatchcase(name, pattern) and (best is None or len(pattern) > len(best)):
            best = pattern
    return best
