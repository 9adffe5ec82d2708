"""A store that lives and dies with its process: the protocol over dictionaries, for `memory:` and for tests.

Nothing awaits in here, so every call is atomic. What is bounded by disks elsewhere is bounded by constants here: over
`MOST_BYTES` originals are refused and records dropped, over `MOST_SESSIONS` the session idle for longest goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from proxy.errors import Conflict, Full
from proxy.store.backlog import sum_uses
from proxy.store.base import (
    Clock,
    Erased,
    Mark,
    Original,
    Page,
    PageRequest,
    Recorded,
    Session,
    SessionUse,
    StoreOptions,
    StoreStats,
    Tip,
)
from proxy.store.memory_lists import page_of, things_of

MOST_BYTES = 512 * 1024 * 1024
MOST_SESSIONS = 10_000


class Ledger(Struct):
    """A session with all that belongs to it, except originals."""

    number: int
    tenant: str
    created: float
    used: float
    use: SessionUse
    entries: list[bytes] = []
    tips: set[bytes] = set()
    record: dict[int, bytes] = {}
    newest: int = 0

    @property
    def entry_bytes(self) -> int:
        """The room that the entries take."""
        return sum(map(len, self.entries))

    @property
    def record_bytes(self) -> int:
        """The room that the record takes."""
        return sum(map(len, self.record.values()))


class Kept(Struct):
    """An original, who holds it (first holder first), and when it was used."""

    number: int
    tenant: str
    original: Original
    used: float
    holders: dict[str, None] = {}

    def shown(self, ledger: str | None = None) -> Original:
        """Return it as the store shows it, as held by a ledger or by its first holder."""
        return structs.replace(self.original, ledger=next(iter(self.holders), "") if ledger is None else ledger)


class MemoryStore:
    """A store in memory; see `Store` for what each call promises."""

    def __init__(self, options: StoreOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._secret: bytes | None = None
        self._ledgers: dict[tuple[str, str], Ledger] = {}
        self._originals: dict[tuple[str, str], Kept] = {}
        self._erased: dict[tuple[str, str], bool] = {}
        self._tips: dict[tuple[str, bytes], tuple[Ledger, int]] = {}
        self._facts: dict[str, dict[str, bytes]] = {}
        self._claims: dict[tuple[str, str], tuple[int, float]] = {}  # token, and when the lock ends
        self._kept_bytes: dict[str, int] = {}  # per tenant: originals and entries
        self._record_bytes: dict[str, int] = {}
        self._number = 0
        self._dropped = 0
        self._sweep_due = clock() + options.sweep_period

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to let go of."""

    async def ping(self) -> None:
        """Memory is always there."""

    async def secret(self, create: Callable[[], bytes]) -> bytes:
        """Return the secret of this process."""
        if self._secret is None:
            self._secret = create()
        return self._secret

    # -- originals

    async def put_originals(self, tenant: str, originals: Sequence[Original]) -> frozenset[str]:
        """Keep what is new, renew what is known."""
        self._sweep_if_due()
        erased = frozenset(o.ref for o in originals if (tenant, o.ref) in self._erased)
        wanted = [o for o in originals if o.ref not in erased]
        new = {o.ref: o for o in reversed(wanted) if (tenant, o.ref) not in self._originals}  # the first of equals
        self._charge(tenant, sum(o.size_bytes for o in new.values()))
        for original in wanted:
            key = (tenant, original.ref)
            if key not in self._originals:
                self._originals[key] = Kept(self._next(), tenant, original, 0.0)
            kept = self._originals[key]
            kept.used = self._clock()
            if original.ledger:
                kept.holders.setdefault(original.ledger)
                self._use(tenant, original.ledger)
        return erased

    def _charge(self, tenant: str, size_bytes: int) -> None:
        """Count originals to their tenant, or raise Full."""
        quota = self._options.stored_bytes
        kept = self._kept_bytes.get(tenant, 0) + size_bytes
        if size_bytes and quota is not None and kept > quota:
            raise Full("the tenant has used up what it may store")
        if size_bytes and self._total_bytes() + size_bytes > MOST_BYTES:
            raise Full("the store in memory is full")
        self._kept_bytes[tenant] = kept

    def _total_bytes(self) -> int:
        return sum(self._kept_bytes.values()) + sum(self._record_bytes.values())

    async def get_original(self, tenant: str | None, ref: str) -> Original | Erased | None:
        """Return an original; a tenant's reading renews it."""
        self._sweep_if_due()
        for kept in things_of(self._originals, tenant, ref):
            if tenant is not None:
                kept.used = self._clock()
            return kept.shown()
        return Erased(ref) if things_of(self._erased, tenant, ref) else None

    async def missing_originals(self, tenant: str, refs: Sequence[str]) -> frozenset[str]:
        """Look refs up."""
        keys = [(tenant, ref) for ref in refs]
        return frozenset(key[1] for key in keys if key not in self._originals and key not in self._erased)

    async def erase_original(self, tenant: str | None, ref: str) -> bool:
        """Drop an original for good."""
        found = things_of(self._originals, tenant, ref)
        for kept in found:
            self._drop_original(kept)
            self._erased[kept.tenant, ref] = True
        return bool(found)

    async def list_originals(self, tenant: str | None, ledger: str | None, page: PageRequest) -> Page[Original]:
        """List originals without their bytes."""
        found = [
            kept
            for kept in self._originals.values()
            if tenant in (None, kept.tenant) and (ledger is None or ledger in kept.holders)
        ]
        chosen, following = page_of(found, page)
        return Page([structs.replace(kept.shown(ledger), data=b"") for kept in chosen], following)

    async def touch_originals(self, tenant: str, refs: Sequence[str]) -> None:
        """Renew originals."""
        for ref in refs:
            if (tenant, ref) in self._originals:
                self._originals[tenant, ref].used = self._clock()

    # -- ledgers

    async def find_tips(self, tenant: str, keys: Sequence[bytes]) -> list[Tip]:
        """Look keys up."""
        found = [(key, self._tips.get((tenant, key))) for key in keys]
        return [
            Tip(key, tip[0].use.ledger, tip[1], len(tip[0].entries), tip[0].newest)
            for key, tip in found
            if tip is not None
        ]

    async def load_ledger(self, tenant: str, ledger: str, after: int = 0) -> list[bytes]:
        """Return entries."""
        known = self._ledgers.get((tenant, ledger))
        return known.entries[after:] if known else []

    async def append_ledger(
        self, tenant: str, ledger: str, at: int, entries: Sequence[bytes], marks: Sequence[Mark]
    ) -> int:
        """Compare and append."""
        known = self._ledgers.get((tenant, ledger))
        version = len(known.entries) if known else 0
        if version != at:
            raise Conflict(f"the ledger holds {version} entries, not {at}", version=version)
        known = self._use(tenant, ledger)
        known.entries.extend(entries)
        self._kept_bytes[tenant] = self._kept_bytes.get(tenant, 0) + sum(map(len, entries))
        self._mark(known, marks)
        return len(known.entries)

    def note(self, tenant: str, use: SessionUse, marks: Sequence[Mark], record: Sequence[Recorded]) -> None:
        """Count, mark and record at once."""
        self._sweep_if_due()
        known = self._use(tenant, use.ledger)
        known.use = sum_uses([known.use, use])
        self._mark(known, marks)
        if record and self._options.record:
            self._record(known, record)

    def _use(self, tenant: str, ledger: str) -> Ledger:
        """Renew a ledger, making it if it is new."""
        now = self._clock()
        known = self._ledgers.get((tenant, ledger))
        if known is None:
            if len(self._ledgers) >= MOST_SESSIONS:
                self._drop_ledger(min(self._ledgers.values(), key=lambda other: other.used))
            known = Ledger(self._next(), tenant, now, now, SessionUse(ledger, calls=0))
            self._ledgers[tenant, ledger] = known
        known.used = max(known.used, now)
        return known

    def _mark(self, known: Ledger, marks: Sequence[Mark]) -> None:
        """Set tips; a key stays with the ledger that has it."""
        for mark in marks:
            known.newest = max(known.newest, mark.length)
            owner, _ = self._tips.get((known.tenant, mark.key), (known, 0))
            if owner is known:
                self._tips[known.tenant, mark.key] = (known, mark.length)
                known.tips.add(mark.key)

    def _record(self, known: Ledger, record: Sequence[Recorded]) -> None:
        """Keep messages if they fit what originals leave of the quota."""
        quota = self._options.stored_bytes
        of_tenant = self._kept_bytes.get(known.tenant, 0) + self._record_bytes.get(known.tenant, 0)
        more = sum(len(message.data) for message in record)
        if (quota is not None and of_tenant + more > quota) or self._total_bytes() + more > MOST_BYTES:
            self._dropped += 1
            return
        for message in record:
            grown = len(message.data) - len(known.record.get(message.index, b""))
            known.record[message.index] = message.data
            self._record_bytes[known.tenant] = self._record_bytes.get(known.tenant, 0) + grown

    # -- inspection

    async def load_record(self, tenant: str, ledger: str, start: int, stop: int) -> list[Recorded]:
        """Return recorded messages."""
        known = self._ledgers.get((tenant, ledger))
        if known is None:
            return []
        return [Recorded(index, known.record[index]) for index in sorted(known.record) if start <= index < stop]

    async def list_sessions(self, tenant: str | None, page: PageRequest) -> Page[Session]:
        """List sessions."""
        found = [known for known in self._ledgers.values() if tenant in (None, known.tenant)]
        chosen, following = page_of(found, page)
        return Page([self._session(known) for known in chosen], following)

    async def get_session(self, tenant: str | None, session: str) -> Session | None:
        """Return one session; the administration gets the last created one of that id."""
        found = sorted(things_of(self._ledgers, tenant, session), key=lambda known: known.number)
        return self._session(found[-1]) if found else None

    def _session(self, known: Ledger) -> Session:
        """Return a session as it is shown."""
        use = structs.asdict(known.use)
        held = [
            kept.original.size_bytes
            for kept in self._originals.values()
            if kept.tenant == known.tenant and use["ledger"] in kept.holders
        ]
        return Session(
            id=use.pop("ledger"),
            tenant=known.tenant,
            created=known.created,
            last_used=known.used,
            originals=len(held),
            stored_bytes=sum(held) + known.entry_bytes + known.record_bytes,
            **use,
        )

    async def delete_session(self, tenant: str | None, session: str) -> bool:
        """Drop a session and the originals that nobody else holds."""
        found = things_of(self._ledgers, tenant, session)
        for known in found:
            for kept in list(self._originals.values()):
                if kept.tenant == known.tenant and list(kept.holders) == [session]:
                    self._drop_original(kept)
            self._drop_ledger(known)
        return bool(found)

    async def claim(self, tenant: str, name: str, seconds: float) -> int | None:
        """Take a lock."""
        now = self._clock()
        self._claims = {key: claim for key, claim in self._claims.items() if claim[1] > now}
        if (tenant, name) in self._claims:
            return None
        token = self._next()
        self._claims[tenant, name] = (token, now + seconds)
        return token

    async def release(self, tenant: str, name: str, token: int) -> None:
        """Let go of a lock."""
        if self._claims.get((tenant, name), (None, 0.0))[0] == token:
            del self._claims[tenant, name]

    async def put_fact(self, tenant: str, key: str, value: bytes) -> None:
        """Set a fact."""
        self._facts.setdefault(tenant, {})[key] = value

    async def facts(self, tenant: str) -> dict[str, bytes]:
        """Return facts."""
        return dict(self._facts.get(tenant, {}))

    # -- moving

    async def tenants(self) -> list[str]:
        """List tenants."""
        owned = (self._ledgers, self._originals, self._erased)
        return sorted({tenant for things in owned for tenant, _ in things} | self._facts.keys())

    async def list_tips(self, tenant: str, ledgers: Sequence[str]) -> list[Tip]:
        """List tips."""
        keys = [
            key for (owner, key), (known, _) in self._tips.items() if owner == tenant and known.use.ledger in ledgers
        ]
        return await self.find_tips(tenant, keys)

    async def list_erased(self, tenant: str) -> list[str]:
        """List tombstones."""
        return [ref for owner, ref in self._erased if owner == tenant]

    async def put_erased(self, tenant: str, refs: Sequence[str]) -> None:
        """Leave tombstones."""
        for ref in refs:
            for kept in things_of(self._originals, tenant, ref):
                self._drop_original(kept)
            self._erased[tenant, ref] = True

    async def put_session(self, session: Session, newest: int) -> None:
        """Set the figures of a session."""
        known = self._use(session.tenant, session.id)
        known.created, known.used, known.newest = session.created, session.last_used, max(known.newest, newest)
        figures = {name: getattr(session, name) for name in SessionUse.__struct_fields__ if name != "ledger"}
        known.use = SessionUse(session.id, **figures)

    async def expire(self, now: float) -> int:
        """Drop what was idle for too long."""
        return self._expire(now)

    async def stats(self) -> StoreStats:
        """Return the totals."""
        return StoreStats(len(self._originals), self._total_bytes(), len(self._ledgers), self._dropped)

    # -- leaving

    def _sweep_if_due(self) -> None:
        """Expire in the course of use: there is no thread that could do it."""
        now = self._clock()
        if now >= self._sweep_due:
            self._sweep_due = now + self._options.sweep_period
            self._expire(now)

    def _expire(self, now: float) -> int:
        before = now - self._options.idle_ttl
        ledgers = [known for known in self._ledgers.values() if known.used < before]
        originals = [kept for kept in self._originals.values() if kept.used < before]
        for known in ledgers:
            self._drop_ledger(known)
        for kept in originals:
            self._drop_original(kept)
        return len(ledgers) + len(originals)

    def _drop_ledger(self, known: Ledger) -> None:
        tenant, name = known.tenant, known.use.ledger
        for key in known.tips:
            del self._tips[tenant, key]
        for kept in self._originals.values():
            if kept.tenant == tenant:
                kept.holders.pop(name, None)
        self._kept_bytes[tenant] = self._kept_bytes.get(tenant, 0) - known.entry_bytes
        self._record_bytes[tenant] = self._record_bytes.get(tenant, 0) - known.record_bytes
        del self._ledgers[tenant, name]

    def _drop_original(self, kept: Kept) -> None:
        self._kept_bytes[kept.tenant] -= kept.original.size_bytes
        del self._originals[kept.tenant, kept.original.ref]

    def _next(self) -> int:
        self._number += 1
        return self._number
