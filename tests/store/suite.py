"""What every store must do: a machine that holds it against a model, and laws that are told one by one.

A store's test module gives a `Place` and takes `StoreLaws` as a base class and `machine(...)` as a test case. Only the
protocol is used here, so the same suite serves stores in memory, in files, and on servers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Protocol, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from proxy.errors import BadRequest, Conflict, Full
from proxy.store.base import (
    LARGE_BYTES,
    Erased,
    Mark,
    Original,
    Page,
    PageRequest,
    Recorded,
    SessionUse,
    Store,
    StoreOptions,
)
from tests.store.model import Model

T = TypeVar("T")


class Clock:
    """A time that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


class Place(Protocol):
    """Where stores are made; on a shared one all see the same data, now and after all are closed."""

    shared: bool

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> Store:
        """Make a store, not opened yet."""

    def discard(self) -> None:
        """Take the place away."""


def original(ref: str, ledger: str, data: bytes = b"data") -> Original:
    """Make an original whose description follows from its bytes."""
    return Original(
        ref=ref,
        ledger=ledger,
        kind="result",
        tool=None if len(data) % 2 else "grep",
        tokens=len(data) // 4,
        lines=data.count(b"\n") + 1,
        size_bytes=len(data),
        created=1_600_000_000.5,
        data=data,
    )


def key(name: str) -> bytes:
    """Make a digest out of a name."""
    return name.encode().ljust(16, b"\x80")


TENANTS = st.sampled_from(["one", "two"])
LEDGERS = st.sampled_from(["a", "b", "c"])
SHARED_REFS = ["r1", "r2", "r3", "r4"]
KEYS = [key(f"k{i}") for i in range(6)]
MARKS = st.lists(st.builds(Mark, st.sampled_from(KEYS), st.integers(1, 50)), max_size=3)
BYTES = st.binary(max_size=40) | st.integers(100, 400).map(lambda n: b"text " * n)
RECORD = st.lists(st.builds(Recorded, st.integers(0, 6), BYTES), max_size=3, unique_by=lambda m: m.index)
USES = st.builds(
    SessionUse,
    ledger=LEDGERS,
    key=st.none() | st.just("key"),
    model=st.sampled_from(["", "gpt", "größer"]),
    format=st.just("chat"),
    preset=st.just("balanced"),
    messages=st.integers(0, 50),
    received_tokens=st.integers(0, 1000),
    sent_tokens=st.integers(0, 1000),
    edits=st.integers(0, 5),
    compactions=st.integers(0, 2),
    reads=st.integers(0, 2),
    calls=st.integers(0, 1),
)
IDLE_TTL = 1000.0
TICK = 0.4 * IDLE_TTL  # no number of ticks falls into the time in which an expiry may or may not have come


def ref_of(tenant: str, name: str) -> str:
    """Make a ref as the gateway does: different for every tenant."""
    return f"off_{tenant}_{name}"


class StoreMachine(RuleBasedStateMachine):
    """Calls in any order leave a store in the state that the model is in."""

    make_place: ClassVar[Callable[[], Place]]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.place = type(self).make_place()
        self.clock = Clock()
        self.stores: list[Store] = []

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Let a call finish."""
        return self.runner.run(call)

    @initialize(quota=st.none() | st.integers(500, 4000))
    def begin(self, quota: int | None) -> None:
        """Open one store, or two on a shared place."""
        self.quota = quota
        self.options = StoreOptions(idle_ttl=IDLE_TTL, stored_bytes=quota)
        self.model = Model(self.options)
        self.model.now = self.clock.now
        self.stores = [self.opened() for _ in range(2 if self.place.shared else 1)]

    def opened(self) -> Store:
        """Make and open a store."""
        store = self.place.store(self.options, self.clock)
        self.run(store.open())
        return store

    @property
    def store(self) -> Store:
        """The store in use."""
        return self.stores[0]

    def teardown(self) -> None:
        """Close everything."""
        for store in self.stores:
            self.run(store.close())
        self.runner.close()
        self.place.discard()

    # -- originals

    @rule(tenant=TENANTS, ledger=LEDGERS, names=st.lists(st.sampled_from(SHARED_REFS), max_size=3), data=BYTES)
    def put(self, tenant: str, ledger: str, names: Sequence[str], data: bytes) -> None:
        """Originals are stored, refused, or do not fit, as in the model."""
        originals = [original(ref_of(tenant, name), ledger, data + name.encode()) for name in names]
        try:
            expected = self.model.put(tenant, originals)
        except Full:
            with pytest.raises(Full):
                self.run(self.store.put_originals(tenant, originals))
        else:
            assert self.run(self.store.put_originals(tenant, originals)) == expected

    @rule(asker=TENANTS | st.none(), tenant=TENANTS, name=st.sampled_from(SHARED_REFS))
    def get(self, asker: str | None, tenant: str, name: str) -> None:
        """An original is given to its tenant and to the administration, byte for byte."""
        ref = ref_of(tenant, name)
        assert self.run(self.store.get_original(asker, ref)) == self.model.get(asker, ref)

    @rule(tenant=TENANTS)
    def miss(self, tenant: str) -> None:
        """What is missing is what is neither stored nor erased."""
        refs = [ref_of(tenant, name) for name in SHARED_REFS]
        known = self.model.originals.keys() | self.model.erased
        expected = {ref for ref in refs if (tenant, ref) not in known}
        assert self.run(self.store.missing_originals(tenant, refs)) == expected

    @rule(asker=TENANTS | st.none(), tenant=TENANTS, name=st.sampled_from(SHARED_REFS))
    def erase(self, asker: str | None, tenant: str, name: str) -> None:
        """An original can be erased by its tenant and by the administration."""
        ref = ref_of(tenant, name)
        assert self.run(self.store.erase_original(asker, ref)) == self.model.erase(asker, ref)

    @rule(tenant=TENANTS, names=st.lists(st.sampled_from(SHARED_REFS), max_size=4))
    def touch(self, tenant: str, names: Sequence[str]) -> None:
        """Touching renews what is there."""
        refs = [ref_of(tenant, name) for name in names]
        self.run(self.store.touch_originals(tenant, refs))
        for ref in refs:
            if (tenant, ref) in self.model.originals:
                self.model.originals[tenant, ref].used = self.model.now

    @rule(tenant=TENANTS | st.none(), ledger=LEDGERS | st.none(), limit=st.integers(1, 3))
    def list_originals(self, tenant: str | None, ledger: str | None, limit: int) -> None:
        """Lists of originals are complete, newest first, and without bytes."""
        kept = [
            (kept.order, Model.shown(kept, ledger))
            for (owner, _), kept in self.model.originals.items()
            if tenant in (None, owner) and (ledger is None or ledger in kept.holders)
        ]
        expected = [o.ref for _, o in sorted(kept, key=lambda pair: -pair[0])]
        found = self.run(walk(lambda page: self.store.list_originals(tenant, ledger, page), limit))
        assert [o.ref for o in found] == expected
        assert all(o.data == b"" for o in found)
        owners = {o.ref: o.ledger for _, o in kept}
        assert all(o.ledger == owners[o.ref] for o in found)

    # -- ledgers

    @rule(
        tenant=TENANTS,
        ledger=LEDGERS,
        off=st.sampled_from([0, 0, 0, 1, -1]),
        entries=st.lists(BYTES, max_size=3),
        marks=MARKS,
    )
    def append(self, tenant: str, ledger: str, off: int, entries: list[bytes], marks: list[Mark]) -> None:
        """An append succeeds exactly at the end of the ledger, with its marks."""
        known = self.model.ledgers.get((tenant, ledger))
        at = max(0, (len(known.entries) if known else 0) + off)
        call = self.store.append_ledger(tenant, ledger, at, entries, marks)
        try:
            made = self.model.append(tenant, ledger, at, entries)
        except Conflict as expected:
            with pytest.raises(Conflict) as caught:
                self.run(call)
            assert caught.value.version == expected.version
        else:
            self.model.mark(tenant, made, marks)
            assert self.run(call) == len(made.entries)

    @rule(tenant=TENANTS, use=USES, marks=MARKS, record=RECORD, wait=st.booleans())
    def note(
        self, tenant: str, use: SessionUse, marks: list[Mark], record: list[Recorded], wait: bool
    ) -> None:
        """A note shows in everything that is read after it."""
        self.store.note(tenant, use, marks, record)
        self.model.note(tenant, use, marks, record)
        if wait or self.quota is not None:  # notes written together meet the quota together
            self.run(self.store.stats())

    @rule(tenant=TENANTS, keys=st.permutations(KEYS))
    def find(self, tenant: str, keys: list[bytes]) -> None:
        """Tips are found as they were marked, at once."""
        assert self.run(self.store.find_tips(tenant, keys)) == list(self.model.find(tenant, keys))

    @rule(tenant=TENANTS, ledger=LEDGERS, after=st.integers(0, 4))
    def load(self, tenant: str, ledger: str, after: int) -> None:
        """A ledger gives its entries in order, from any position."""
        known = self.model.ledgers.get((tenant, ledger))
        expected = known.entries[after:] if known else []
        assert self.run(self.store.load_ledger(tenant, ledger, after)) == expected

    @rule(tenant=TENANTS, ledger=LEDGERS, start=st.integers(-1, 7), stop=st.integers(-1, 9))
    def load_record(self, tenant: str, ledger: str, start: int, stop: int) -> None:
        """The record gives each message as it was recorded last."""
        known = self.model.ledgers.get((tenant, ledger))
        record = sorted(known.record.items()) if known else []
        expected = [Recorded(index, data) for index, data in record if start <= index < stop]
        assert self.run(self.store.load_record(tenant, ledger, start, stop)) == expected

    # -- sessions, facts, time

    @rule(tenant=TENANTS | st.none(), limit=st.integers(1, 3))
    def list_sessions(self, tenant: str | None, limit: int) -> None:
        """Lists of sessions are complete and newest first, each session with all its figures."""
        ledgers = [ledger for (owner, _), ledger in self.model.ledgers.items() if tenant in (None, owner)]
        newest = sorted(ledgers, key=lambda ledger: -ledger.order)
        expected = [self.model.session(ledger.tenant, ledger.use.ledger) for ledger in newest]
        found = self.run(walk(lambda page: self.store.list_sessions(tenant, page), limit))
        assert found == expected

    @rule(tenant=TENANTS, ledger=LEDGERS)
    def get_session(self, tenant: str, ledger: str) -> None:
        """One session is what the list shows."""
        known = (tenant, ledger) in self.model.ledgers
        expected = self.model.session(tenant, ledger) if known else None
        assert self.run(self.store.get_session(tenant, ledger)) == expected

    @rule(tenant=TENANTS | st.none(), ledger=LEDGERS)
    def delete(self, tenant: str | None, ledger: str) -> None:
        """A session goes with what it alone holds."""
        assert self.run(self.store.delete_session(tenant, ledger)) == self.model.delete(tenant, ledger)

    @rule(tenant=TENANTS, name=st.sampled_from("xy"), value=BYTES)
    def learn(self, tenant: str, name: str, value: bytes) -> None:
        """A fact replaces the one before it."""
        self.run(self.store.put_fact(tenant, name, value))
        self.model.facts[tenant, name] = value

    @rule(tenant=TENANTS)
    def recall(self, tenant: str) -> None:
        """Facts are those of the tenant."""
        expected = {name: value for (owner, name), value in self.model.facts.items() if owner == tenant}
        assert self.run(self.store.facts(tenant)) == expected

    @rule()
    def tick(self) -> None:
        """Time drops what was idle, and only that."""
        self.clock.now += TICK
        self.model.now = self.clock.now
        assert self.run(self.store.expire(self.clock.now)) == self.model.expire()

    @precondition(lambda self: self.place.shared)
    @rule()
    def switch(self) -> None:
        """Another store on the same place has the same state."""
        self.run(self.store.stats())  # until then, what is written behind shows only where it was written
        self.stores.reverse()

    @precondition(lambda self: self.place.shared)
    @rule()
    def reopen(self) -> None:
        """A store that was closed and opened again has the same state."""
        self.run(self.store.close())
        self.stores[0] = self.opened()
        self.model.dropped = 0

    @invariant()
    def totals(self) -> None:
        """The totals are those of the model; asking settles what is written behind, so not always."""
        if self.stores and self.quota is not None:
            stats = self.run(self.store.stats())
            tenants = {owner for owner, _ in (*self.model.ledgers, *self.model.originals)}
            room = sum(self.model.kept_bytes(t) + self.model.record_bytes(t) for t in tenants)
            assert (stats.originals, stats.sessions) == (len(self.model.originals), len(self.model.ledgers))
            assert stats.stored_bytes == room


async def walk(ask: Callable[[PageRequest], Coroutine[Any, Any, Page[T]]], limit: int) -> list[T]:
    """Collect a list page by page."""
    found: list[T] = []
    cursor = None
    while True:
        page = await ask(PageRequest(limit, cursor))
        assert len(page.data) <= limit
        found += page.data
        if page.next is None:
            return found
        assert len(page.data) == limit
        cursor = page.next


def check_against_model(make_place: Callable[[], Place]) -> None:
    """Run the machine on places of one kind."""

    class Machine(StoreMachine):
        """The machine on these places."""

    Machine.make_place = staticmethod(make_place)
    some = settings(max_examples=settings().max_examples // 3, stateful_step_count=40)
    run_state_machine_as_test(Machine, settings=some)  # type: ignore[no-untyped-call]
