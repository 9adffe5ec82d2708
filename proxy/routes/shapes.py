"""What the control interface answers: field by field the JSON that clients rely on."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct, field

from proxy.store import base


class Tokens(Struct, frozen=True):
    """What a session's requests had in tokens as they came, and as they went upstream, all added up."""

    received: int
    sent: int


class Session(Struct, frozen=True):
    """A conversation as the gateway knows it."""

    id: str
    tenant: str
    key: str | None
    created: datetime
    last_used: datetime
    model: str
    format: str
    preset: str
    calls: int
    messages: int
    tokens: Tokens
    edits: int
    compactions: int
    reads: int
    originals: int
    stored_bytes: int


class Original(Struct, frozen=True):
    """A text that was moved out of a history; `session` is null when no session holds it any more."""

    ref: str
    session: str | None
    kind: str
    tool: str | None
    tokens: int
    lines: int
    size_bytes: int = field(name="bytes")
    created: datetime


class SessionList(Struct, frozen=True):
    """A part of the sessions, last created first, and the cursor of what follows (null: nothing)."""

    data: list[Session]
    next: str | None


class OriginalList(Struct, frozen=True):
    """A part of the originals, last stored first, and the cursor of what follows (null: nothing)."""

    data: list[Original]
    next: str | None


class Compaction(Struct, frozen=True, rename="camel"):
    """What was done about a session's history; `pending`: its next request does it, and the other numbers are 0."""

    success: bool
    strategy: str
    tokens_reduced: int
    compression_ratio: float
    compressed_messages: int
    pending: bool


class Fault(Struct, frozen=True):
    """What went wrong; `param` is the parameter that is to blame, if one is."""

    message: str
    type: str
    param: str | None
    code: str


class Failure(Struct, frozen=True):
    """An error in OpenAI's shape."""

    error: Fault


def pending_compaction(strategy: str) -> Compaction:
    """Return the answer to a wish."""
    return Compaction(
        success=True,
        strategy=strategy,
        tokens_reduced=0,
        compression_ratio=0.0,
        compressed_messages=0,
        pending=True,
    )


def list_sessions(page: base.Page[base.Session]) -> SessionList:
    """Return a page of sessions as it is answered."""
    return SessionList([show_session(session) for session in page.data], page.next)


def list_originals(page: base.Page[base.Original]) -> OriginalList:
    """Return a page of originals as it is answered."""
    return OriginalList([show_original(original) for original in page.data], page.next)


def show_session(session: base.Session) -> Session:
    """Return a session as it is answered."""
    return Session(
        id=session.id,
        tenant=session.tenant,
        key=session.key,
        created=_moment(session.created),
        last_used=_moment(session.last_used),
        model=session.model,
        format=session.format,
        preset=session.preset,
        calls=session.calls,
        messages=session.messages,
        tokens=Tokens(session.received_tokens, session.sent_tokens),
        edits=session.edits,
        compactions=session.compactions,
        reads=session.reads,
        originals=session.originals,
        stored_bytes=session.stored_bytes,
    )


def show_original(original: base.Original) -> Original:
    """Return an original as it is answered, without its text."""
    return Original(
        ref=original.ref,
        session=original.ledger or None,
        kind=original.kind,
        tool=original.tool,
        tokens=original.tokens,
        lines=original.lines,
        size_bytes=original.size_bytes,
        created=_moment(original.created),
    )


def _moment(seconds: float) -> datetime:
    """Return a point in time, to the millisecond; as JSON it is RFC 3339 in UTC."""
    return datetime.fromtimestamp(round(seconds, 3), UTC)
