"""Which header fields pass the gateway, in both directions: pure functions over raw pairs.

Fields about one connection (RFC 9110, 7.6.1), the fields that `Connection` names, `host` and the framing
stay on their side: the transport writes its own. Our own `x-ullage-*` request fields never go up. Everything
else passes as it is. A body that was changed loses the fields that described the old one: its length,
coding, digests and entity tag.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]
"""Fields in order, duplicates kept; names of client requests in lower case, of answers as sent."""

PRIVATE_PREFIX: Final = b"x-ullage-"

_CONNECTION: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    },
)
# `expect` was already honoured by our own server when it asked for the body.
_NOT_UP: Final = _CONNECTION | {b"host", b"content-length", b"expect"}
_OF_THE_BODY: Final = frozenset(
    {
        b"content-length",
        b"content-encoding",
        b"content-md5",
        b"digest",
        b"content-digest",
        b"repr-digest",
        b"etag",
    },
)
_CODING: Final = frozenset({b"accept-encoding"})
_NOT_DOWN_CHANGED: Final = _CONNECTION | _OF_THE_BODY | {b"accept-ranges"}
_BODILESS: Final = frozenset({204, 304})
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_NOT_A_TOKEN: Final = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")


def request_headers(headers: Headers, *, changed: bool = False, readable: bool = False) -> Headers:
    """Return what goes upstream of a client's fields (names in lower case).

    `changed`: another body than the client's is sent. `readable`: the answer must come without a coding, because it
    will be read here; a changed body asks for that as well.
    """
    dropped = _NOT_UP | _named(headers)
    if changed:
        dropped |= _OF_THE_BODY
    if changed or readable:
        dropped |= _CODING
    kept = [pair for pair in headers if pair[0] not in dropped and not pair[0].startswith(PRIVATE_PREFIX)]
    if changed or readable:
        kept.append((b"accept-encoding", b"identity"))
    return kept


def response_headers(headers: Headers, status: int, *, changed: bool = False) -> Headers:
    """Return what reaches the client of an upstream's fields; `changed`: the body is not the upstream's."""
    dropped = _NOT_DOWN_CHANGED if changed else _CONNECTION
    lowered = [name.lower() for name, _ in headers]
    if b"connection" in lowered:
        dropped |= _named(headers)
    # A length beside a transfer coding is void; one without a body would contradict what is sent.
    if status in _BODILESS or b"transfer-encoding" in lowered:
        dropped |= {b"content-length"}
    kept = [pair for pair, name in zip(headers, lowered, strict=True) if name not in dropped]
    return kept if _is_clean(kept) else _cleaned(kept)


def size_of(headers: Headers) -> int:
    """Return how many bytes names and values have together."""
    return sum([len(name) + len(value) for name, value in headers])


def as_text(raw: bytes) -> str:
    """Decode what will be encoded as UTF-8 again; what is no UTF-8 is taken for Latin-1."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _named(headers: Headers) -> frozenset[bytes]:
    """Return the field names that `Connection` declares to be of this connection alone."""
    values = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


def _is_clean(headers: Headers) -> bool:
    return not (
        _CONTROL.search(b"".join([value for _, value in headers]))
        or _NOT_A_TOKEN.search(b"".join([name for name, _ in headers]))
    )


def _cleaned(headers: Headers) -> Headers:
    """Return the fields without control characters: a lenient parser let them pass, our server would not."""
    return [(name, _CONTROL.sub(b"", value)) for name, value in headers if name and not _NOT_A_TOKEN.search(name)]
