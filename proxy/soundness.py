"""Whether a store is sound: what the decisions of live sessions refer to is there and is what it was."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from proxy.core.history import digest
from proxy.core.ledger import Ledger, Offloaded, decode_entry
from proxy.errors import StoreError
from proxy.store.base import PAGE_LIMIT, Erased, PageRequest, Session, Store


class Flaw(msgspec.Struct, frozen=True):
    """Something that is not as it should be; `what` is missing, damaged or unreadable."""

    tenant: str
    session: str
    ref: str
    what: str


class Soundness(msgspec.Struct):
    """What was looked at, and what is wrong."""

    sessions: int = 0
    entries: int = 0
    originals: int = 0
    erased: int = 0
    flaws: list[Flaw] = []


async def check_store(store: Store) -> AsyncIterator[Soundness]:
    """Yield what is known so far, after each session; nothing is changed, and looking is no use."""
    result = Soundness()
    page = await store.list_sessions(None, PageRequest(PAGE_LIMIT))
    while True:
        for session in page.data:
            await _check_session(store, session, result)
            yield result
        if page.next is None:
            break
        page = await store.list_sessions(None, PageRequest(PAGE_LIMIT, page.next))
    yield result


async def _check_session(store: Store, session: Session, result: Soundness) -> None:
    result.sessions += 1
    try:
        entries = await store.load_ledger(session.tenant, session.id)
    except StoreError as error:
        result.flaws.append(Flaw(session.tenant, session.id, "", f"unreadable: {error.message}"))
        return
    result.entries += len(entries)
    ledger = Ledger(session.id, [decode_entry(entry) for entry in entries])
    for entry in ledger.refs.values():
        what = await _check_original(store, session.tenant, entry, result)
        if what:
            result.flaws.append(Flaw(session.tenant, session.id, entry.ref, what))


async def _check_original(store: Store, tenant: str, entry: Offloaded, result: Soundness) -> str:
    """Return what is wrong with an original, "" for nothing."""
    result.originals += 1
    if await store.missing_originals(tenant, [entry.ref]):
        return "missing"
    try:
        found = await store.get_original(None, entry.ref)
    except StoreError as error:
        return f"unreadable: {error.message}"
    if isinstance(found, Erased) or found is None:
        result.erased += 1
        return ""
    if len(found.data) != found.size_bytes or digest(found.data) != entry.exact:
        return "damaged"
    return ""
