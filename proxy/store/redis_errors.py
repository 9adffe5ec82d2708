"""What the errors of a Redis server mean for callers, and what the person who runs it can do about them."""

from __future__ import annotations

import re

from redis.exceptions import ResponseError

from proxy.errors import ConfigError, Full, StoreError, Unavailable


class Refused(Unavailable):
    """The server refused one command for what it is; it would refuse it again."""


# Servers of several ages and scripts put the code in different places, so the whole text is searched.
_FULL = re.compile(r"\bOOM\b")
_PASSING = (
    ("MISCONF", "Redis cannot write to its disk and so takes no changes; its log says why"),
    ("READONLY|is now a slave", "the server is a replica and takes no writes; store.url must lead to the master"),
    ("LOADING", "Redis is still loading its data"),
    ("MASTERDOWN", "the replica has lost its master"),
    ("CLUSTERDOWN", "the cluster is down, or has nobody for a part of the keys"),
    ("NOREPLICAS", "Redis has fewer replicas than it wants to have for a write"),
    ("TRYAGAIN|BUSY", "Redis is busy"),
    ("non local key", "the keys of this tenant are being moved to another node"),
    ("max number of clients", "Redis has as many clients as it takes (maxclients)"),
    ("No master found", "the Sentinels know no master of the service in store.url"),
)
_LASTING = (
    ("NOAUTH", "Redis wants a password; write it into the URL: redis://user:password@host"),
    ("WRONGPASS|invalid (username-)?password", "Redis refuses user or password of the URL"),
    ("without any password", "the URL has a password, but Redis has none; leave it out"),
    ("NOPERM", "the user of the URL may not do what a store does; allow it: ~PREFIX:* +@all -@dangerous +info"),
    ("MOVED|CROSSSLOT", 'the server is a node of a cluster; write "redis+cluster://"'),
    ("cluster support disabled", 'the server is no cluster; write "redis://"'),
    ("DB index is out of range", "Redis does not have that database"),
    ("unknown command", "the server does not know a command that is needed; Redis 6.2 or newer is"),
    ("CERTIFICATE_VERIFY_FAILED", 'the certificate of Redis is not to be trusted; name its authority: "?ca_file=…"'),
)


def explain(error: BaseException) -> StoreError:
    """Return what an error of the client or the server means for callers."""
    if isinstance(error, StoreError):
        return error
    text = _text_of(error)
    if _FULL.search(text):
        return Full("Redis has used up its memory (maxmemory)")
    for pattern, meaning in (*_PASSING, *_LASTING):
        if re.search(pattern, text):
            return Unavailable(f"{meaning} ({error})")
    if isinstance(error, ResponseError):
        return Refused(f"Redis refuses this: {error}")
    return Unavailable(f"Redis cannot be reached: {str(error) or type(error).__name__}")


def lasting(error: BaseException) -> ConfigError | None:
    """Return the ConfigError for an error that no waiting mends, None for any other."""
    text = _text_of(error)
    for pattern, meaning in _LASTING:
        if re.search(pattern, text):
            return ConfigError(f"store.url: {meaning} ({error})", param="store.url")
    return None


def _text_of(error: BaseException) -> str:
    """Return code and text of an error, with those of what caused it."""
    cause = error.__cause__
    text = f"{getattr(error, 'status_code', None) or ''} {error}"
    return text if cause is None else f"{text} {_text_of(cause)}"
