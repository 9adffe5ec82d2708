"""Two stores as one: a durable one that holds everything, and a hot one that answers first.

The durable store decides: who may append, what fits, what is erased, who holds a lock, what lists show. A change counts
once that store has confirmed it, and then goes to the hot one as well, so an original that a stub refers to is in both
while both are well. The hot store holds ledgers, tips, originals, facts and the secret, but not the record of messages.
What it has lost (it was emptied, or full, or away) comes back from the durable one when it is asked for, and an append
that finds it behind mends it (see `tier_life` for how an emptied one is noticed).

Without the hot store everything goes on, slower. Without the durable one nothing new is stored (Unavailable), while
ledgers, tips, originals and facts are still read from the hot one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import structlog

from proxy.errors import Conflict, Full, StoreError, Unavailable
from proxy.store.base import (
    Erased,
    Mark,
    Movable,
    Original,
    Page,
    PageRequest,
    Recorded,
    Session,
    SessionUse,
    StoreStats,
    Tip,
)
from proxy.store.tier_life import glance, lacks, name_life

T = TypeVar("T")

MOST_BEHIND = 10_000  # ledgers that are remembered as behind
TENANTS = 32  # asked at a time, when all are

_log = structlog.get_logger(__name__)
_Ledger = tuple[str, str]


class TierStore:
    """A hot store before a durable one; see `Store` for what each call promises."""

    def __init__(self, hot: Movable, durable: Movable) -> None:
        self._hot = hot
        self._durable = durable
        self._trouble: StoreError | None = None  # of the hot store
        self._life: bytes | None = None  # of the hot store, when the durable one was read last
        self._behind: dict[_Ledger, None] = {}  # of the hot store, for what it did not take

    async def open(self) -> None:
        """Open both; the hot one may be away."""
        try:
            await self._try_hot(self._hot.open)
        finally:
            await self._durable.open()

    async def close(self) -> None:
        """Close both."""
        try:
            await self._hot.close()
        finally:
            await self._durable.close()

    async def ping(self) -> None:
        """Prove that the durable store takes writes; what ails the hot one is logged."""
        await self._try_hot(self._hot.ping)
        await self._durable.ping()

    async def secret(self, create: Callable[[], bytes]) -> bytes:
        """Return the secret of the durable store; a new one takes over what the hot one has."""
        known = await self._ask_hot(lambda: self._hot.secret(_none), None)
        try:
            secret = await self._durable.secret(lambda: known or create())
        except Unavailable:
            if known is None:
                raise
            return known
        if known is None:
            await self._try_hot(lambda: self._hot.secret(lambda: secret))
        elif known != secret:
            _log.warning(
                "store_secrets_differ", mend="empty the first of the stores in store.url, or use the second alone"
            )
        return secret

    # -- originals

    async def put_originals(self, tenant: str, originals: Sequence[Original]) -> frozenset[str]:
        """Store in the durable one, then in the hot one what that did not refuse."""
        refused = await self._durable.put_originals(tenant, originals)
        taken = [original for original in originals if original.ref not in refused]
        await self._try_hot(lambda: self._hot.put_originals(tenant, taken))
        return refused

    async def get_original(self, tenant: str | None, ref: str) -> Original | Erased | None:
        """Read from the hot store, else from the durable one, and keep what that has hot."""
        found = await self._ask_hot(lambda: self._hot.get_original(tenant, ref), None)
        if found is not None:
            if tenant is not None:
                await self._durable.touch_originals(tenant, [ref])
            return found
        found = await self._durable.get_original(tenant, ref)
        if isinstance(found, Original) and tenant is not None:
            await self._warm_original(tenant, found)
        return found

    async def _warm_original(self, tenant: str, original: Original) -> None:
        """Keep an original hot, which is no use of its session."""
        if await self._try_hot(lambda: self._hot.put_originals(tenant, [original])) and original.ledger:
            await self._settle(tenant, original.ledger, 0)

    async def missing_originals(self, tenant: str, refs: Sequence[str]) -> frozenset[str]:
        """Look up in the hot store, and what it lacks in the durable one."""
        lacking = await self._ask_hot(lambda: self._hot.missing_originals(tenant, refs), frozenset(refs))
        return await self._durable.missing_originals(tenant, sorted(lacking)) if lacking else lacking

    async def erase_original(self, tenant: str | None, ref: str) -> bool:
        """Erase in both; raises Unavailable as long as one of them may still hold the bytes."""
        owners = [tenant] if tenant is not None else await self._owners(ref)
        return any([await self._erase(owner, ref) for owner in owners])

    async def _erase(self, tenant: str, ref: str) -> bool:
        in_durable = await self._durable.erase_original(tenant, ref)
        in_hot = await self._hot.erase_original(tenant, ref)
        if in_hot and not in_durable:
            await self._durable.put_erased(tenant, [ref])
        if in_durable and not in_hot:  # whoever has just read it would make it hot again
            await self._hot.put_erased(tenant, [ref])
        return in_durable or in_hot

    async def _owners(self, ref: str) -> list[str]:
        """Return the tenants that have a ref, or had one that was erased."""
        tenants = sorted({*await self._durable.tenants(), *await self._hot.tenants()})
        found: list[str] = []
        for start in range(0, len(tenants), TENANTS):
            some = tenants[start : start + TENANTS]
            lacking = await asyncio.gather(*(self.missing_originals(tenant, [ref]) for tenant in some))
            found += [tenant for tenant, missing in zip(some, lacking, strict=True) if not missing]
        return found

    async def list_originals(self, tenant: str | None, ledger: str | None, page: PageRequest) -> Page[Original]:
        """List what the durable store holds."""
        return await self._durable.list_originals(tenant, ledger, page)

    async def touch_originals(self, tenant: str, refs: Sequence[str]) -> None:
        """Renew in both."""
        await self._hot.touch_originals(tenant, refs)
        await self._durable.touch_originals(tenant, refs)

    # -- ledgers

    async def find_tips(self, tenant: str, keys: Sequence[bytes]) -> list[Tip]:
        """Look up in the hot store; where it knows none, or has lost something, in the durable one."""
        await self._mend()
        tips = await self._ask_hot(lambda: self._hot.find_tips(tenant, keys), None)
        life = await self._ask_hot(lambda: name_life(self._hot), None)  # after that: so it is the life that told them
        hot = {tip.key: tip for tip in tips or []}
        if hot and life is not None and life == self._life and not await self._is_behind(tenant, keys, hot):
            return list(hot.values())
        try:
            kept = await self._durable.find_tips(tenant, keys)
        except Unavailable:
            if tips is not None:
                return tips
            raise
        self._life = life
        if tips is not None and not any(lacks(hot, tip) or hot[tip.key].version > tip.version for tip in kept):
            return tips
        for ledger in dict.fromkeys(tip.ledger for tip in kept):
            await self._warm(tenant, ledger)
        return kept

    async def _is_behind(self, tenant: str, keys: Sequence[bytes], hot: Mapping[bytes, Tip]) -> bool:
        """Whether the durable store is known to have more than the hot one says."""
        try:
            return any(lacks(hot, tip) for tip in await glance(self._durable, tenant, keys))
        except StoreError:
            return True

    async def load_ledger(self, tenant: str, ledger: str, after: int = 0) -> list[bytes]:
        """Read from the hot store; where it has nothing, from the durable one."""
        await self._mend()
        entries = await self._ask_hot(lambda: self._hot.load_ledger(tenant, ledger, after), None)
        if entries:
            return entries
        try:
            kept = await self._durable.load_ledger(tenant, ledger, after)
        except Unavailable:
            if entries is not None:
                return entries
            raise
        if kept:
            await self._warm(tenant, ledger)
        return kept

    async def append_ledger(
        self, tenant: str, ledger: str, at: int, entries: Sequence[bytes], marks: Sequence[Mark]
    ) -> int:
        """Append where it is decided, then to the hot store, which is mended if it is not as long."""
        try:
            version = await self._durable.append_ledger(tenant, ledger, at, entries, marks)
        except Conflict:
            await self._warm(tenant, ledger)
            raise
        try:
            await self._hot.append_ledger(tenant, ledger, at, entries, marks)
        except Conflict:
            await self._warm(tenant, ledger)
        except StoreError as error:
            self._lost(error)
            if len(self._behind) < MOST_BEHIND:
                self._behind[tenant, ledger] = None
        return version

    def note(self, tenant: str, use: SessionUse, marks: Sequence[Mark], record: Sequence[Recorded]) -> None:
        """Count in both; the record goes to the durable store alone."""
        self._hot.note(tenant, use, marks, ())
        self._durable.note(tenant, use, marks, record)

    async def _warm(self, tenant: str, ledger: str) -> None:
        """Bring a ledger of the hot store to what the durable one has, as far as both answer."""
        there = await self._ask_hot(lambda: self._hot.load_ledger(tenant, ledger), None)
        if there is None:
            return
        try:
            entries = await self._durable.load_ledger(tenant, ledger)
            tips = await self._durable.list_tips(tenant, [ledger])
        except StoreError:
            return  # whoever needs that store learns why
        newest = max((tip.newest for tip in tips), default=0)
        marks = [Mark(tip.key, tip.length) for tip in sorted(tips, key=lambda tip: tip.length)]

        async def fill() -> None:
            known = len(there)
            if there != entries[:known]:  # of an earlier life of the ledger, which the durable store has dropped
                await self._hot.delete_session(tenant, ledger)
                known = 0
            await self._hot.append_ledger(tenant, ledger, known, entries[known:], marks)

        if await self._try_hot(fill):
            await self._settle(tenant, ledger, newest)

    async def _settle(self, tenant: str, ledger: str, newest: int) -> None:
        """Give what was made hot the row of its session; or drop it, if somebody has deleted that meanwhile."""
        try:
            session = await self._durable.get_session(tenant, ledger)
        except StoreError:
            return
        if session is None:
            await self._try_hot(lambda: self._hot.delete_session(tenant, ledger))
        else:
            await self._try_hot(lambda: self._hot.put_session(session, newest))

    async def _mend(self) -> None:
        """Bring the ledgers up to date that the hot store did not take while it was away."""
        if self._behind and await self._try_hot(self._hot.ping):
            for tenant, ledger in list(self._behind):
                await self._warm(tenant, ledger)
                self._behind.pop((tenant, ledger), None)

    # -- inspection

    async def load_record(self, tenant: str, ledger: str, start: int, stop: int) -> list[Recorded]:
        """Read from the durable store."""
        return await self._durable.load_record(tenant, ledger, start, stop)

    async def list_sessions(self, tenant: str | None, page: PageRequest) -> Page[Session]:
        """List what the durable store holds."""
        return await self._durable.list_sessions(tenant, page)

    async def get_session(self, tenant: str | None, session: str) -> Session | None:
        """Read from the durable store."""
        return await self._durable.get_session(tenant, session)

    async def delete_session(self, tenant: str | None, session: str) -> bool:
        """Delete in both; raises Unavailable as long as one of them may still hold it."""
        in_durable = await self._durable.delete_session(tenant, session)
        in_hot = await self._hot.delete_session(tenant, session)
        return in_durable or in_hot

    async def put_fact(self, tenant: str, key: str, value: bytes) -> None:
        """Set in both."""
        await self._durable.put_fact(tenant, key, value)
        await self._try_hot(lambda: self._hot.put_fact(tenant, key, value))

    async def facts(self, tenant: str) -> dict[str, bytes]:
        """Read from the durable store, or while that is away from the hot one."""
        try:
            return await self._durable.facts(tenant)
        except Unavailable:
            return await self._hot.facts(tenant)

    async def claim(self, tenant: str, name: str, seconds: float) -> int | None:
        """Take a lock of the durable store: an emptied one would give it away twice."""
        return await self._durable.claim(tenant, name, seconds)

    async def release(self, tenant: str, name: str, token: int) -> None:
        """Let go of a lock."""
        await self._durable.release(tenant, name, token)

    async def expire(self, now: float) -> int:
        """Expire in both."""
        await self._try_hot(lambda: self._hot.expire(now))
        return await self._durable.expire(now)

    async def stats(self) -> StoreStats:
        """Return the totals of the durable store, once both have written what was written behind."""
        await self._ask_hot(self._hot.stats, None)
        return await self._durable.stats()

    # -- moving

    async def tenants(self) -> list[str]:
        """List those of the durable store."""
        return await self._durable.tenants()

    async def list_tips(self, tenant: str, ledgers: Sequence[str]) -> list[Tip]:
        """List those of the durable store."""
        return await self._durable.list_tips(tenant, ledgers)

    async def list_erased(self, tenant: str) -> list[str]:
        """List those of the durable store."""
        return await self._durable.list_erased(tenant)

    async def put_erased(self, tenant: str, refs: Sequence[str]) -> None:
        """Refuse in both."""
        await self._durable.put_erased(tenant, refs)
        await self._hot.put_erased(tenant, refs)

    async def put_session(self, session: Session, newest: int) -> None:
        """Set in both."""
        await self._durable.put_session(session, newest)
        await self._try_hot(lambda: self._hot.put_session(session, newest))

    # -- the hot store may fail

    async def _ask_hot(self, call: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """Return the answer of the hot store, or something else while it has none."""
        try:
            answer = await call()
        except StoreError as error:
            self._lost(error)
            return otherwise
        if not isinstance(self._trouble, Full):  # a full store answers, and takes nothing
            self._found()
        return answer

    async def _try_hot(self, call: Callable[[], Awaitable[object]]) -> bool:
        """Tell the hot store; returns whether it took it."""
        try:
            await call()
        except StoreError as error:
            self._lost(error)
            return False
        self._found()
        return True

    def _lost(self, error: StoreError) -> None:
        if self._trouble is None and not isinstance(error, Conflict | _NoSecret):
            self._trouble = error
            _log.warning("hot_store_fails", reason=error.message)

    def _found(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            _log.info("hot_store_works_again")


class _NoSecret(StoreError):
    """The hot store has no secret."""


def _none() -> bytes:
    raise _NoSecret("there is no secret")
