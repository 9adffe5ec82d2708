"""Objects as raw values by key, and texts as JSON: for changing one value and keeping the bytes of all others."""

from __future__ import annotations

import json

import msgspec
from msgspec import Raw

from proxy.core.envelope import decode


def split_fields(raw: bytes) -> dict[str, bytes]:
    """Return the raw values of a JSON object, in order."""
    try:
        return {k: bytes(v) for k, v in msgspec.json.decode(raw, type=dict[str, Raw]).items()}
    except msgspec.DecodeError:
        value = decode(raw)
        return {k: encode_lenient(v) for k, v in value.items()} if isinstance(value, dict) else {}


def join_fields(fields: dict[str, bytes]) -> bytes:
    """Write a JSON object from raw values."""
    return b"{" + b",".join(msgspec.json.encode(k) + b":" + v for k, v in fields.items()) + b"}"


def encode_text(text: str) -> bytes:
    """Write a JSON string; lone surrogates are escaped, since they have no UTF-8."""
    try:
        return msgspec.json.encode(text)
    except UnicodeEncodeError:
        return json.dumps(text).encode()


def encode_lenient(value: object) -> bytes:
    """Write any decoded JSON value; lone surrogates are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
