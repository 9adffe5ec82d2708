"""Everything that can go wrong, with the HTTP status, code and log level of each.

    ProxyError
    ├── ConfigError            start-up or reload only; exit code 2
    ├── RequestError           the client's fault
    │   ├── BadRequest 400 · Unauthenticated 401 · Forbidden 403 · NotFound 404 · NotAllowed 405 · TooLarge 413
    │   ├── Limited 429 · HeadTooLarge 431 · Unsupported 501
    ├── UpstreamError          the provider's or the network's fault
    │   ├── Unreachable 502 · TimedOut 504 · Garbled 502 · Loop 508
    ├── StoreError             ours to survive: a request goes on without the store
    │   ├── Unavailable · Conflict · Full
    └── CompactionError        a policy or our own code failed: the request goes on uncompacted

The class fixes status, code and level, so handlers hold no conditions; the prose is given where it is raised.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

Level = Literal["debug", "info", "warning", "error"]


class ProxyError(Exception):
    """Base of all errors of the gateway; its text is shown to the person who can mend it."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    level: ClassVar[Level] = "error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ConfigError(ProxyError):
    """The configuration is wrong; the message names file, key and mend."""

    code = "config"


class RequestError(ProxyError):
    """The client sent something that cannot be served."""

    status = 400
    level: ClassVar[Level] = "info"


class BadRequest(RequestError):
    """The request has a wrong form."""

    code = "bad_request"


class Unauthenticated(RequestError):
    """No credential, or one that is unknown, expired or revoked."""

    status = 401
    code = "unauthenticated"


class Forbidden(RequestError):
    """The credential does not allow this."""

    status = 403
    code = "forbidden"


class NotFound(RequestError):
    """No such thing, or not visible with this credential."""

    status = 404
    code = "not_found"


class NotAllowed(RequestError):
    """The method means nothing here."""

    status = 405
    code = "bad_request"


class TooLarge(RequestError):
    """The body is over `server.max_body_bytes`."""

    status = 413
    code = "too_large"


class Limited(RequestError):
    """A limit of the tenant is used up for now."""

    status = 429
    code = "limited"


class HeadTooLarge(RequestError):
    """The header fields are too large together."""

    status = 431
    code = "headers_too_large"


class Unsupported(RequestError):
    """What is asked for does not exist here."""

    status = 501
    code = "unsupported"


class UpstreamError(ProxyError):
    """The upstream did not give a usable answer."""

    status = 502
    level: ClassVar[Level] = "warning"


class Unreachable(UpstreamError):
    """No connection, or one that ended before the response head."""

    code = "upstream_unreachable"


class TimedOut(UpstreamError):
    """The upstream was silent for too long."""

    status = 504
    code = "upstream_timeout"


class Garbled(UpstreamError):
    """The upstream's bytes are no HTTP."""

    code = "upstream_garbled"


class Loop(UpstreamError):
    """The upstream is this gateway itself."""

    status = 508
    code = "loop"
    level: ClassVar[Level] = "error"


class StoreError(ProxyError):
    """The store did not do what was asked; callers go on without it."""

    status = 503
    level: ClassVar[Level] = "warning"


class Unavailable(StoreError):
    """The store cannot be reached or used now."""

    code = "store_unavailable"


class Conflict(StoreError):
    """Somebody else appended first; `version` is how many entries the ledger holds."""

    code = "store_conflict"
    level: ClassVar[Level] = "debug"

    def __init__(self, message: str, *, version: int) -> None:
        super().__init__(message)
        self.version = version


class Full(StoreError):
    """The tenant's quota or the disk is used up."""

    code = "store_full"


class CompactionError(ProxyError):
    """Deciding or rewriting failed; the client's own body is sent instead."""

    code = "compaction"


def error_body(error: ProxyError, code: str | None = None) -> bytes:
    """Return the error in OpenAI's JSON shape."""
    detail = {
        "message": error.message,
        "type": "ullage_error",
        "param": error.param,
        "code": code or error.code,
    }
    return msgspec.json.encode({"error": detail})
