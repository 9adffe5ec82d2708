"""Recognising a session by its history, and writing down what was decided about it.

The longest prefix of the history that an earlier request reached (a tip) tells the ledger. The newest tip of a ledger
continues it; an older one is a branch, which shares the common part. A client that trims its front or rewrites its
early messages has no tip: then anchors, digests of recent assistant blocks, lead to the same ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from proxy.core.history import History, digest
from proxy.core.ledger import (
    AnyEntry,
    Ledger,
    Recognition,
    decode_entry,
    encode_entry,
    make_ledger_id,
    make_root,
)
from proxy.core.memo import Memo
from proxy.errors import Conflict
from proxy.store.base import Mark, Store, Tip

# A request usually adds a few messages, so the tip is among the newest prefixes; the rest is asked for in larger steps.
_LOOK_UP_SIZES = (8, 32, 128)
_MOST_ANCHORS = 8
_LEDGERS_KEPT = 4096
_MOST_RACES = 8


class Identity(msgspec.Struct, frozen=True):
    """Whose history this is: the tenant and the explicit session key, if any."""

    tenant: str
    session_key: str | None


class Known(msgspec.Struct, frozen=True):
    """A recognised history: its ledger, the root for a ledger without entries, and what will recognise it next time."""

    identity: Identity
    root: bytes
    recognition: Recognition
    marks: tuple[Mark, ...]


class _Found(NamedTuple):
    """The longest known prefix of a history; `is_older`: its ledger has gone on, and this history otherwise."""

    recognition: Recognition
    tip: Tip
    is_older: bool


class Sessions:
    """Finds and extends ledgers in the store, with a cache of ledgers that is checked against the store's versions."""

    def __init__(self, store: Store, secret: bytes) -> None:
        self.store = store
        self.secret = secret
        self._ledgers: Memo[tuple[str, str], Ledger] = Memo(_LEDGERS_KEPT)

    async def recognise(self, identity: Identity, history: History, contested: Ledger | None = None) -> Known:
        """Return the ledger of this history, a new one when it is unknown.

        `contested` is a ledger that somebody else began under the id that this history would have given to a new one.
        """
        root = make_root(self.secret, identity.tenant, identity.session_key, history.opening)
        anchors = history.anchors(self._anchor_key(identity), _MOST_ANCHORS)
        recognition = await self._look_up(identity, history, root, anchors)
        if contested is not None and contested.id == recognition.ledger.id:
            recognition = msgspec.structs.replace(recognition, ledger=contested)
        return Known(
            identity=identity,
            root=root,
            recognition=recognition,
            marks=tuple(_marks(history, recognition, root, anchors)),
        )

    async def append(
        self, tenant: str, ledger: Ledger, entries: Sequence[AnyEntry], marks: Sequence[Mark] = ()
    ) -> Ledger:
        """Write further entries of a ledger, with what it is found by; confirmed. A branch is written whole.

        Raises Conflict when somebody else was faster.
        """
        pending = [e for e in (*ledger.entries[ledger.stored :], *entries) if e is not None]
        await self.store.append_ledger(tenant, ledger.id, ledger.stored, [encode_entry(e) for e in pending], marks)
        new = Ledger(ledger.id, (*ledger.entries[: ledger.stored], *pending))
        self._ledgers.put((tenant, ledger.id), new)
        return new

    async def append_later(self, tenant: str, ledger: Ledger, entries: Sequence[AnyEntry]) -> Ledger:
        """Append to whatever the ledger has become meanwhile."""
        for _ in range(_MOST_RACES):
            try:
                return await self.append(tenant, ledger, entries)
            except Conflict:
                ledger = await self.reload(tenant, ledger.id)
        return await self.append(tenant, ledger, entries)

    async def reload(self, tenant: str, ledger_id: str) -> Ledger:
        """Read a ledger as the store has it now."""
        entries = await self.store.load_ledger(tenant, ledger_id)
        ledger = Ledger(ledger_id, [decode_entry(e) for e in entries])
        self._ledgers.put((tenant, ledger_id), ledger)
        return ledger

    async def _look_up(
        self, identity: Identity, history: History, root: bytes, anchors: list[tuple[bytes, int]]
    ) -> Recognition:
        whole = history.prefix(root, history.length)
        found = await self._by_prefix(identity, history, root)
        if found is not None and not found.is_older:
            return found.recognition
        anchored = await self._by_anchor(identity, anchors, history)
        if found is None:
            ledger = Ledger(make_ledger_id(self.secret, whole))
            return anchored or Recognition(ledger, known=history.leading, shift=0)
        known = found.recognition
        if anchored is not None and anchored.ledger.id == known.ledger.id and anchored.known > known.known:
            return anchored  # early text was rewritten in a history that goes on
        branch = known.ledger.branch(make_ledger_id(self.secret, whole), found.tip.length)
        return msgspec.structs.replace(known, ledger=branch)

    async def _by_prefix(self, identity: Identity, history: History, root: bytes) -> _Found | None:
        for batch in _batches(history.length):
            keys = [history.prefix(root, length) for length in batch]
            tips = await self.store.find_tips(identity.tenant, keys)
            if not tips:
                continue
            by_key = {tip.key: tip for tip in tips}
            length, tip = next((n, by_key[key]) for n, key in zip(batch, keys, strict=True) if key in by_key)
            ledger = await self._ledger(identity.tenant, tip)
            recognition = Recognition(ledger, known=history.leading + length, shift=tip.length - length)
            return _Found(recognition, tip, is_older=length < history.length and tip.newest > tip.length)
        return None

    async def _by_anchor(
        self, identity: Identity, anchors: list[tuple[bytes, int]], history: History
    ) -> Recognition | None:
        recent = anchors[::-1]
        if not recent:
            return None
        tips = {t.key: t for t in await self.store.find_tips(identity.tenant, [key for key, _ in recent])}
        for key, stop in recent:
            if key in tips:
                ledger = await self._ledger(identity.tenant, tips[key])
                shift = tips[key].length - (stop - history.leading)
                return Recognition(ledger, known=stop, shift=shift, anchored=True)
        return None

    async def _ledger(self, tenant: str, tip: Tip) -> Ledger:
        cached = self._ledgers.get((tenant, tip.ledger)) or Ledger(tip.ledger)
        if cached.version > tip.version:  # it was deleted meanwhile and begins anew under the same id
            return await self.reload(tenant, tip.ledger)
        if cached.version < tip.version:
            newer = await self.store.load_ledger(tenant, tip.ledger, cached.version)
            cached = cached.extend([decode_entry(e) for e in newer])
            self._ledgers.put((tenant, tip.ledger), cached)
        return cached

    def _anchor_key(self, identity: Identity) -> bytes:
        return digest(
            identity.tenant.encode(),
            (identity.session_key or "").encode("utf-8", "surrogatepass"),
            key=self.secret,
        )


def _batches(newest: int) -> Iterator[range]:
    """Yield prefix lengths, newest first, in steps; the empty prefix identifies nothing."""
    stop, step = newest, 0
    while stop > 0:
        size = _LOOK_UP_SIZES[min(step, len(_LOOK_UP_SIZES) - 1)]
        yield range(stop, max(0, stop - size), -1)
        stop, step = stop - size, step + 1


def _marks(history: History, recognition: Recognition, root: bytes, anchors: list[tuple[bytes, int]]) -> Iterator[Mark]:
    if history.length:
        yield Mark(history.prefix(root, history.length), history.length + recognition.shift)
    for key, stop in anchors:
        if stop > recognition.known:
            yield Mark(key=key, length=stop - history.leading + recognition.shift)
