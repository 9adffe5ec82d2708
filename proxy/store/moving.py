"""A whole store as a sequence of pieces, in an order in which another store can take them in.

Taking a piece in twice changes nothing, so a move that was broken off is begun again and goes on; whoever wants to skip
the bytes of originals that are there already says so with `is_wanted`. Ages of sessions are kept, uses of originals
begin anew: they live for one idle life from the move on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct, structs

from proxy.errors import StoreError
from proxy.store.base import (
    PAGE_LIMIT,
    Erased,
    Mark,
    Movable,
    Original,
    PageRequest,
    Recorded,
    Session,
    SessionUse,
    Tip,
)

VERSION = 1
SESSIONS_AT_ONCE = 200
MESSAGES_AT_ONCE = 100
_MOST_MESSAGES = 1 << 24

IsWanted = Callable[[str, str], Awaitable[bool]]
"""Whether the bytes of an original are wanted: (tenant, ref)."""


class MoveFailed(StoreError):
    """What is to be moved does not fit to what is there, or did not arrive as it was."""

    code = "move_failed"


class Piece(Struct, frozen=True, tag=True):
    """Base of all pieces."""


class Header(Piece, frozen=True):
    """Begins every export."""

    ullage_export: int


class Secret(Piece, frozen=True):
    """The secret of the place."""

    value: bytes


class Facts(Piece, frozen=True):
    """What was learnt for a tenant, and which refs it refuses."""

    tenant: str
    facts: dict[str, bytes]
    erased: list[str]


class Row(Piece, frozen=True):
    """A session; comes before all that belongs to it, and again after that, since taking things in is a use."""

    session: Session
    newest: int


class Entries(Piece, frozen=True):
    """The entries of a ledger and the tips that point into it."""

    tenant: str
    ledger: str
    entries: list[bytes]
    marks: list[Mark]


class Messages(Piece, frozen=True):
    """A part of the record of a session."""

    tenant: str
    use: SessionUse
    record: list[Recorded]


class Kept(Piece, frozen=True):
    """An original with its bytes, held by the first of its holders."""

    tenant: str
    original: Original


class Held(Piece, frozen=True):
    """What a session holds, first stored first, without bytes."""

    tenant: str
    originals: list[Original]


class End(Piece, frozen=True):
    """Ends every export; `pieces` is how many came before."""

    pieces: int


AnyPiece = Header | Secret | Facts | Row | Entries | Messages | Kept | Held | End

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyPiece)


def encode_piece(piece: AnyPiece) -> bytes:
    """Return a piece as one line of JSON."""
    return _encoder.encode(piece) + b"\n"


def decode_piece(line: bytes) -> AnyPiece:
    """Return the piece of a line; raises MoveFailed if it is none."""
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise MoveFailed(f"this is no export of ullage, or a damaged one: {error}") from error


async def pieces_of(store: Movable, is_wanted: IsWanted | None = None) -> AsyncIterator[AnyPiece]:
    """Yield all that a store holds."""
    yield Header(VERSION)
    number = 1
    secret = await _secret_of(store)
    if secret is not None:
        number += 1
        yield Secret(secret)
    for tenant in sorted(await store.tenants()):
        async for piece in _pieces_of_tenant(store, tenant, is_wanted):
            number += 1
            yield piece
    yield End(number)


async def _secret_of(store: Movable) -> bytes | None:
    """Return the secret if there is one: none is made."""

    def none() -> bytes:
        raise MoveFailed("there is no secret")

    try:
        return await store.secret(none)
    except MoveFailed:
        return None


async def _pieces_of_tenant(store: Movable, tenant: str, is_wanted: IsWanted | None) -> AsyncIterator[AnyPiece]:
    yield Facts(tenant, await store.facts(tenant), await store.list_erased(tenant))
    sessions = await _sessions_of(store, tenant)
    newest: dict[str, int] = {}
    for start in range(0, len(sessions), SESSIONS_AT_ONCE):
        some = sessions[start : start + SESSIONS_AT_ONCE]
        tips: dict[str, list[Tip]] = {session.id: [] for session in some}
        for tip in await store.list_tips(tenant, list(tips)):
            tips[tip.ledger].append(tip)
            newest[tip.ledger] = tip.newest
        for session in some:
            yield Row(session, newest.get(session.id, 0))
            marks = [Mark(tip.key, tip.length) for tip in tips[session.id]]
            yield Entries(tenant, session.id, await store.load_ledger(tenant, session.id), marks)
            async for piece in _record_of(store, session):
                yield piece
    for described in await _originals_of(store, tenant, None):
        if is_wanted is None or await is_wanted(tenant, described.ref):
            original = await store.get_original(tenant, described.ref)
            if isinstance(original, Original):
                yield Kept(tenant, original)
    for session in sessions:
        yield Held(tenant, await _originals_of(store, tenant, session.id))
    for session in sessions:
        yield Row(session, newest.get(session.id, 0))


async def _record_of(store: Movable, session: Session) -> AsyncIterator[Messages]:
    use = SessionUse(session.id, calls=0)
    record = await store.load_record(session.tenant, session.id, 0, _MOST_MESSAGES)
    for start in range(0, len(record), MESSAGES_AT_ONCE):
        yield Messages(session.tenant, use, record[start : start + MESSAGES_AT_ONCE])


async def _sessions_of(store: Movable, tenant: str) -> list[Session]:
    """Return the sessions of a tenant, first created first."""
    found: list[Session] = []
    page = await store.list_sessions(tenant, PageRequest(PAGE_LIMIT))
    found += page.data
    while page.next is not None:
        page = await store.list_sessions(tenant, PageRequest(PAGE_LIMIT, page.next))
        found += page.data
    return found[::-1]


async def _originals_of(store: Movable, tenant: str, ledger: str | None) -> list[Original]:
    """Return originals without bytes, first stored first."""
    page = await store.list_originals(tenant, ledger, PageRequest(PAGE_LIMIT))
    found = list(page.data)
    while page.next is not None:
        page = await store.list_originals(tenant, ledger, PageRequest(PAGE_LIMIT, page.next))
        found += page.data
    return found[::-1]


class Taker:
    """Takes pieces into a store."""

    def __init__(self, store: Movable) -> None:
        self._store = store
        self.pieces = 0
        self.originals = 0
        self._taking: dict[type, Callable[[Any], Awaitable[None]]] = {
            Header: self._take_header,
            Secret: self._take_secret,
            Facts: self._take_facts,
            Row: self._take_row,
            Entries: self._take_entries,
            Messages: self._take_messages,
            Kept: self._take_original,
            Held: self._hold,
            End: self._take_end,
        }

    async def take(self, piece: AnyPiece) -> None:
        """Take a piece in; raises MoveFailed if it contradicts what is there, or did not arrive as it was."""
        await self._taking[type(piece)](piece)
        self.pieces += 1

    async def _take_header(self, piece: Header) -> None:
        if piece.ullage_export != VERSION:
            raise MoveFailed(f"this is an export of version {piece.ullage_export}; use the ullage that made it")

    async def _take_end(self, piece: End) -> None:
        if piece.pieces != self.pieces:
            raise MoveFailed(f"the export should have {piece.pieces} pieces and has {self.pieces}")

    async def _take_row(self, piece: Row) -> None:
        await self._store.put_session(piece.session, piece.newest)

    async def _take_secret(self, piece: Secret) -> None:
        if await self._store.secret(lambda: piece.value) != piece.value:
            raise MoveFailed("the place to move to is in use already, with a secret of its own; choose an empty one")

    async def _take_facts(self, piece: Facts) -> None:
        for key, value in piece.facts.items():
            await self._store.put_fact(piece.tenant, key, value)
        if piece.erased:
            await self._store.put_erased(piece.tenant, piece.erased)

    async def _take_entries(self, piece: Entries) -> None:
        there = await self._store.load_ledger(piece.tenant, piece.ledger)
        if there != piece.entries[: len(there)]:
            raise MoveFailed(
                f"the session {piece.ledger} is at the place to move to, but differs; delete it there first"
            )
        missing = piece.entries[len(there) :]
        await self._store.append_ledger(piece.tenant, piece.ledger, len(there), missing, piece.marks)

    async def _take_messages(self, piece: Messages) -> None:
        """Record messages, wait until they are written, and look at them."""
        self._store.note(piece.tenant, piece.use, (), piece.record)
        indices = [message.index for message in piece.record]
        found = await self._store.load_record(piece.tenant, piece.use.ledger, min(indices), max(indices) + 1)
        if (
            not {message.index: message.data for message in found}.items()
            >= {m.index: m.data for m in piece.record}.items()
        ):
            raise MoveFailed(f"the record of the session {piece.use.ledger} did not arrive; is there room for it?")

    async def _take_original(self, piece: Kept) -> None:
        tenant, original = piece.tenant, piece.original
        refused = await self._store.put_originals(tenant, [original])
        found = await self._store.get_original(tenant, original.ref)
        if not refused and (isinstance(found, Erased) or found is None or found.data != original.data):
            raise MoveFailed(f"the original {original.ref} did not arrive as it was")
        self.originals += 1

    async def _hold(self, piece: Held) -> None:
        """Add a holder to originals that are there."""
        tenant, originals = piece.tenant, piece.originals
        missing = await self._store.missing_originals(tenant, [original.ref for original in originals])
        there = [structs.replace(original, data=b"") for original in originals if original.ref not in missing]
        if there:
            await self._store.put_originals(tenant, there)
