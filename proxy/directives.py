"""What a client asks of the gateway itself: a preset and a session, by headers or the body's metadata."""

from __future__ import annotations

from proxy.core.envelope import Envelope
from proxy.errors import BadRequest
from proxy.exchange import Exchange
from proxy.presets import Preset
from proxy.settings import Settings

_LONGEST_KEY = 512


def choose_preset(exchange: Exchange, settings: Settings) -> Preset:
    """Return the preset that the header names, else the default one."""
    wanted = exchange.header(b"x-ullage-policy")
    name = settings.defaults.preset if wanted is None else wanted.decode("latin-1").strip()
    preset = settings.presets.get(name)
    if preset is None:
        known = ", ".join(sorted(settings.presets))
        raise BadRequest(f"x-ullage-policy: there is no preset {name!r}; known are {known}", param="x-ullage-policy")
    return preset


def session_key(exchange: Exchange, envelope: Envelope) -> str | None:
    """Return the explicit session key: `x-ullage-session`, `x-session-id`, or `metadata.session_id` of the body."""
    for name in (b"x-ullage-session", b"x-session-id"):
        value = exchange.header(name)
        if value is not None and value.strip():
            return _storable(value.strip().decode("utf-8", "surrogateescape"))
    metadata = envelope.value("metadata") if envelope.is_set("metadata") else None
    value = metadata.get("session_id") if isinstance(metadata, dict) else None
    return _storable(value) if isinstance(value, str) and value else None


def _storable(key: str) -> str:
    """Return the key without lone surrogates, which no store takes."""
    return key[:_LONGEST_KEY].encode("utf-8", "backslashreplace").decode()
