"""A store as simple as it can be told, to hold real ones against: plain dictionaries, no thought of speed or space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, structs

from proxy.errors import Conflict, Full
from proxy.store.base import Erased, Mark, Original, Recorded, Session, SessionUse, StoreOptions, Tip

COUNTERS = ("received_tokens", "sent_tokens", "reads", "calls")


class Ledger(Struct):
    """A session as the model knows it."""

    order: int
    tenant: str
    use: SessionUse
    created: float
    used: float
    entries: list[bytes] = []
    record: dict[int, bytes] = {}
    newest: int = 0


class Kept(Struct):
    """An original as the model knows it."""

    order: int
    original: Original
    used: float
    holders: list[str] = []


class Model:
    """What a store must look like from outside after a series of calls."""

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self.now = 0.0
        self.order = 0
        self.dropped = 0
        self.ledgers: dict[tuple[str, str], Ledger] = {}
        self.originals: dict[tuple[str, str], Kept] = {}
        self.erased: set[tuple[str, str]] = set()
        self.tips: dict[tuple[str, bytes], tuple[str, int]] = {}
        self.facts: dict[tuple[str, str], bytes] = {}

    def _next(self) -> int:
        self.order += 1
        return self.order

    def use_ledger(self, tenant: str, name: str) -> Ledger:
        """Renew a ledger, making it if need be."""
        fresh = Ledger(0, tenant, SessionUse(name, calls=0), self.now, self.now)
        ledger = self.ledgers.setdefault((tenant, name), fresh)
        ledger.order = ledger.order or self._next()
        ledger.used = self.now
        return ledger

    # -- room

    def kept_bytes(self, tenant: str) -> int:
        """Return the room of originals and entries."""
        originals = sum(k.original.size_bytes for (t, _), k in self.originals.items() if t == tenant)
        return originals + sum(len(e) for (t, _), x in self.ledgers.items() if t == tenant for e in x.entries)

    def record_bytes(self, tenant: str) -> int:
        """Return the room of the record."""
        ledgers = [ledger for (t, _), ledger in self.ledgers.items() if t == tenant]
        return sum(len(data) for ledger in ledgers for data in ledger.record.values())

    # -- calls

    def put(self, tenant: str, originals: Sequence[Original]) -> frozenset[str]:
        """As `put_originals`."""
        erased = frozenset(o.ref for o in originals if (tenant, o.ref) in self.erased)
        wanted = [o for o in originals if o.ref not in erased]
        new = {o.ref: o.size_bytes for o in wanted if (tenant, o.ref) not in self.originals}
        more = sum(list(new.values()))
        quota = self.options.stored_bytes
        if quota is not None and more and self.kept_bytes(tenant) + more > quota:
            raise Full("")
        for original in wanted:
            key = (tenant, original.ref)
            kept = self.originals.setdefault(key, Kept(0, original, self.now))
            kept.order = kept.order or self._next()
            kept.used = self.now
            if original.ledger not in kept.holders:
                kept.holders.append(original.ledger)
        for name in dict.fromkeys(o.ledger for o in wanted):
            self.use_ledger(tenant, name)
        return erased

    def get(self, tenant: str | None, ref: str) -> Original | Erased | None:
        """As `get_original`, for refs that only one tenant has."""
        for (owner, known), kept in self.originals.items():
            if known == ref and tenant in (None, owner):
                if tenant is not None:
                    kept.used = self.now
                return self.shown(kept)
        return Erased(ref) if any(r == ref and tenant in (None, t) for t, r in self.erased) else None

    @staticmethod
    def shown(kept: Kept, ledger: str | None = None) -> Original:
        """Return an original as the store shows it."""
        return structs.replace(kept.original, ledger=ledger or (kept.holders[0] if kept.holders else ""))

    def erase(self, tenant: str | None, ref: str) -> bool:
        """As `erase_original`."""
        found = [key for key in self.originals if key[1] == ref and tenant in (None, key[0])]
        for key in found:
            del self.originals[key]
            self.erased.add(key)
        return bool(found)

    def mark(self, tenant: str, ledger: Ledger, marks: Sequence[Mark]) -> None:
        """Set marks: the first ledger keeps a key."""
        for mark in marks:
            ledger.newest = max(ledger.newest, mark.length)
            if self.tips.get((tenant, mark.key), (ledger.use.ledger,))[0] == ledger.use.ledger:
                self.tips[tenant, mark.key] = (ledger.use.ledger, mark.length)

    def find(self, tenant: str, keys: Sequence[bytes]) -> Iterator[Tip]:
        """As `find_tips`."""
        for key in keys:
            if (tenant, key) in self.tips:
                name, length = self.tips[tenant, key]
                ledger = self.ledgers[tenant, name]
                yield Tip(key, name, length, len(ledger.entries), ledger.newest)

    def append(self, tenant: str, name: str, at: int, entries: Sequence[bytes]) -> Ledger:
        """As `append_ledger`, without the marks."""
        known = self.ledgers.get((tenant, name))
        version = len(known.entries) if known else 0
        if version != at:
            raise Conflict(f"holds {version} entries", version=version)
        ledger = self.use_ledger(tenant, name)
        ledger.entries.extend(entries)
        return ledger

    def note(self, tenant: str, use: SessionUse, marks: Sequence[Mark], record: Sequence[Recorded]) -> None:
        """As `note`."""
        ledger = self.use_ledger(tenant, use.ledger)
        sums = {name: getattr(ledger.use, name) + getattr(use, name) for name in COUNTERS}
        ledger.use = structs.replace(use, **sums)
        self.mark(tenant, ledger, marks)
        messages = {message.index: message.data for message in record}
        size = sum(map(len, messages.values()))
        quota = self.options.stored_bytes
        if messages and quota is not None and self.kept_bytes(tenant) + self.record_bytes(tenant) + size > quota:
            self.dropped += 1
        else:
            ledger.record.update(messages)

    def session(self, tenant: str, name: str) -> Session:
        """As the session is shown."""
        ledger = self.ledgers[tenant, name]
        held = [k.original.size_bytes for (t, _), k in self.originals.items() if t == tenant and name in k.holders]
        more = sum(map(len, ledger.entries)) + sum(map(len, ledger.record.values()))
        use = {key: value for key, value in structs.asdict(ledger.use).items() if key != "ledger"}
        return Session(
            id=name,
            tenant=tenant,
            created=ledger.created,
            last_used=ledger.used,
            originals=len(held),
            stored_bytes=sum(held) + more,
            **use,
        )

    def delete(self, tenant: str | None, name: str) -> bool:
        """As `delete_session`."""
        found = [key for key in self.ledgers if key[1] == name and tenant in (None, key[0])]
        for key in found:
            for at, kept in list(self.originals.items()):
                if at[0] == key[0] and kept.holders == [name]:
                    del self.originals[at]
            self.drop(key)
        return bool(found)

    def drop(self, key: tuple[str, str]) -> None:
        """Take a ledger away, and its name from what points to it."""
        tenant, name = key
        del self.ledgers[key]
        self.tips = {k: v for k, v in self.tips.items() if (k[0], v[0]) != (tenant, name)}
        for (owner, _), kept in self.originals.items():
            if owner == tenant and name in kept.holders:
                kept.holders.remove(name)

    def expire(self) -> int:
        """As `expire`, now."""
        before = self.now - self.options.idle_ttl
        ledgers = [key for key, ledger in self.ledgers.items() if ledger.used < before]
        originals = [key for key, kept in self.originals.items() if kept.used < before]
        for key in ledgers:
            self.drop(key)
        for key in originals:
            del self.originals[key]
        return len(ledgers) + len(originals)
