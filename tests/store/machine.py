"""A machine that makes calls in any order and holds a store against the model; part of the suite of every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import product
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import structs

from proxy.errors import Conflict, Full
from proxy.store.base import Mark, Movable, Page, PageRequest, Recorded, SessionUse, StoreOptions
from tests.store.model import Model
from tests.store.suite import IDLE_TTL, Clock, Place, key, original

T = TypeVar("T")

TENANTS = st.sampled_from(["one", "one", "one", "two"])
LEDGER_NAMES = ("a", "b")
LEDGERS = st.sampled_from(LEDGER_NAMES)
REF_NAMES = ("r1", "r2", "r3")
KEYS = [key(f"k{i}") for i in range(4)]
MARKS = st.lists(st.builds(Mark, st.sampled_from(KEYS), st.integers(1, 50)), max_size=3)
BYTES = st.binary(max_size=40) | st.integers(100, 400).map(lambda n: b"text " * n)
RECORD = st.lists(st.builds(Recorded, st.integers(0, 2), BYTES), max_size=3, unique_by=lambda m: m.index)
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
TICK = 0.4 * IDLE_TTL  # no number of ticks falls into the time in which an expiry may or may not have come


def ref_of(tenant: str, name: str) -> str:
    """Make a ref as the gateway does: different for every tenant."""
    return f"off_{tenant}_{name}"


@runtime_checkable
class Forgetful(Protocol):
    """A place a part of which may be lost."""

    def forget(self) -> None:
        """Lose it."""


class StoreMachine(RuleBasedStateMachine):
    """Calls in any order leave a store in the state that the model is in."""

    make_place: ClassVar[Callable[[], Place]]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.place = type(self).make_place()
        self.clock = Clock()
        self.stores: list[Movable] = []

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

    def opened(self) -> Movable:
        """Make and open a store."""
        store = self.place.store(self.options, self.clock)
        self.run(store.open())
        return store

    @property
    def store(self) -> Movable:
        """The store in use."""
        return self.stores[0]

    def teardown(self) -> None:
        """Look at what is left, and close everything."""
        try:
            if self.stores:
                self.look(2, 0, (0, 3))
        finally:
            for store in self.stores:
                self.run(store.close())
            self.runner.close()
            self.place.discard()

    @precondition(lambda self: isinstance(self.place, Forgetful))
    @rule()
    def forget(self) -> None:
        """Let the place lose what it may lose at any time: nobody notices."""
        assert isinstance(self.place, Forgetful)
        self.place.forget()

    # -- originals

    @rule(tenant=TENANTS, ledger=LEDGERS, names=st.lists(st.sampled_from(REF_NAMES), max_size=3), data=BYTES)
    def put(self, tenant: str, ledger: str, names: Sequence[str], data: bytes) -> None:
        """Put originals: they are stored, refused, or do not fit, as in the model."""
        originals = [original(ref_of(tenant, name), ledger, data + name.encode()) for name in names]
        try:
            expected = self.model.put(tenant, originals)
        except Full:
            with pytest.raises(Full):
                self.run(self.store.put_originals(tenant, originals))
        else:
            assert self.run(self.store.put_originals(tenant, originals)) == expected

    @rule(asker=TENANTS | st.none(), tenant=TENANTS, name=st.sampled_from(REF_NAMES))
    def get(self, asker: str | None, tenant: str, name: str) -> None:
        """Get an original: its tenant and the administration do, byte for byte."""
        ref = ref_of(tenant, name)
        assert self.run(self.store.get_original(asker, ref)) == self.model.get(asker, ref)

    @rule(asker=TENANTS | st.none(), tenant=TENANTS, name=st.sampled_from(REF_NAMES))
    def erase(self, asker: str | None, tenant: str, name: str) -> None:
        """Erase an original: its tenant and the administration can."""
        ref = ref_of(tenant, name)
        assert self.run(self.store.erase_original(asker, ref)) == self.model.erase(asker, ref)

    @rule(tenant=TENANTS, names=st.lists(st.sampled_from(REF_NAMES), max_size=4))
    def touch(self, tenant: str, names: Sequence[str]) -> None:
        """Touch originals: what is there is renewed."""
        refs = [ref_of(tenant, name) for name in names]
        self.run(self.store.touch_originals(tenant, refs))
        for ref in refs:
            if (tenant, ref) in self.model.originals:
                self.model.originals[tenant, ref].used = self.model.now

    # -- ledgers

    @rule(
        tenant=TENANTS,
        ledger=LEDGERS,
        off=st.sampled_from([0, 0, 0, 1, -1]),
        entries=st.lists(BYTES, max_size=3),
        marks=MARKS,
    )
    def append(self, tenant: str, ledger: str, off: int, entries: list[bytes], marks: list[Mark]) -> None:
        """Append: it succeeds exactly at the end of the ledger, with its marks."""
        known = self.model.ledgers.get((tenant, ledger))
        at = max(0, (len(known.entries) if known else 0) + off)
        call = self.store.append_ledger(tenant, ledger, at, entries, marks)
        try:
            made = self.model.append(tenant, ledger, at, entries)
        except Conflict as conflict:
            with pytest.raises(Conflict, match=str(conflict)):
                self.run(call)
        else:
            self.model.mark(tenant, made, marks)
            assert self.run(call) == len(made.entries)

    @rule(tenant=TENANTS, use=USES, marks=MARKS, record=RECORD, wait=st.booleans())
    def note(self, tenant: str, use: SessionUse, marks: list[Mark], record: list[Recorded], wait: bool) -> None:
        """Note: it shows in everything that is read after it."""
        self.store.note(tenant, use, marks, record)
        self.model.note(tenant, use, marks, record)
        if wait or self.quota is not None:  # notes written together meet the quota together
            self.run(self.store.stats())

    @rule(tenant=TENANTS, keys=st.permutations(KEYS))
    def find(self, tenant: str, keys: list[bytes]) -> None:
        """Find tips: they are as they were marked, at once."""
        assert self.run(self.store.find_tips(tenant, keys)) == list(self.model.find(tenant, keys))

    # -- sessions, facts, time

    @rule(tenant=TENANTS | st.none(), ledger=LEDGERS)
    def delete(self, tenant: str | None, ledger: str) -> None:
        """Delete a session: it goes with what it alone holds."""
        assert self.run(self.store.delete_session(tenant, ledger)) == self.model.delete(tenant, ledger)

    @rule(tenant=TENANTS, name=st.sampled_from("xy"), value=BYTES)
    def learn(self, tenant: str, name: str, value: bytes) -> None:
        """Learn a fact: it replaces the one before it."""
        self.run(self.store.put_fact(tenant, name, value))
        self.model.facts[tenant, name] = value

    @rule()
    def tick(self) -> None:
        """Let time pass: what was idle is dropped, and only that."""
        self.clock.now += TICK
        self.model.now = self.clock.now
        assert self.run(self.store.expire(self.clock.now)) == self.model.expire()

    @precondition(lambda self: self.place.shared)
    @rule()
    def switch(self) -> None:
        """Take another store on the same place: it has the same state."""
        self.run(self.store.stats())  # until then, what is written behind shows only where it was written
        self.stores.reverse()

    @precondition(lambda self: self.place.shared)
    @rule()
    def reopen(self) -> None:
        """Close a store and open another: it has the same state."""
        self.run(self.store.close())
        self.stores[0] = self.opened()
        self.model.dropped = 0

    # -- looking at all of it

    @rule(limit=st.integers(1, 3), after=st.integers(0, 3), span=st.tuples(st.integers(-1, 4), st.integers(-1, 4)))
    def look(self, limit: int, after: int, span: tuple[int, int]) -> None:
        """Look at everything that can be read: it is as the model has it."""
        for tenant in ("one", "two", None):
            self.look_at_lists(tenant, limit)
        for tenant, name in product(("one", "two"), LEDGER_NAMES):
            self.look_at_ledger(tenant, name, after, span)
        for tenant in ("one", "two"):
            expected = {name: value for (owner, name), value in self.model.facts.items() if owner == tenant}
            assert self.run(self.store.facts(tenant)) == expected
            self.look_at_originals(tenant)

    def look_at_lists(self, tenant: str | None, limit: int) -> None:
        """Find all lists complete and in order, page by page."""
        ledgers = [ledger for (owner, _), ledger in self.model.ledgers.items() if tenant in (None, owner)]
        newest = sorted(ledgers, key=lambda ledger: -ledger.order)
        expected = [self.model.session(ledger.tenant, ledger.use.ledger) for ledger in newest]
        found = self.run(walk(lambda page: self.store.list_sessions(tenant, page), limit))
        for each in {ledger.tenant for ledger in ledgers}:  # what several tenants have noted together has no order
            assert [s for s in found if s.tenant == each] == [s for s in expected if s.tenant == each]
        assert len(found) == len(expected)
        for name in (*LEDGER_NAMES, None):
            kept = [
                kept
                for (owner, _), kept in self.model.originals.items()
                if tenant in (None, owner) and (name is None or name in kept.holders)
            ]
            kept.sort(key=lambda kept: -kept.order)
            shown = [structs.replace(Model.shown(k, name), data=b"") for k in kept]
            ask = partial(self.store.list_originals, tenant, name)
            assert self.run(walk(ask, limit)) == shown

    def look_at_ledger(self, tenant: str, name: str, after: int, span: tuple[int, int]) -> None:
        """Get one session as the list shows it, its entries and its record."""
        known = self.model.ledgers.get((tenant, name))
        session = self.model.session(tenant, name) if known else None
        assert self.run(self.store.get_session(tenant, name)) == session
        entries = known.entries[after:] if known else []
        assert self.run(self.store.load_ledger(tenant, name, after)) == entries
        record = sorted(known.record.items()) if known else []
        expected = [Recorded(index, data) for index, data in record if span[0] <= index < span[1]]
        assert self.run(self.store.load_record(tenant, name, *span)) == expected

    def look_at_originals(self, tenant: str) -> None:
        """Miss what is neither stored nor erased, and find the totals adding up."""
        refs = [ref_of(tenant, name) for name in REF_NAMES]
        known = self.model.originals.keys() | self.model.erased
        missing = {ref for ref in refs if (tenant, ref) not in known}
        assert self.run(self.store.missing_originals(tenant, refs)) == missing
        stats = self.run(self.store.stats())
        room = sum(self.model.kept_bytes(t) + self.model.record_bytes(t) for t in ("one", "two"))
        counted = (len(self.model.originals), room, len(self.model.ledgers))
        assert (stats.originals, stats.stored_bytes, stats.sessions) == counted


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


def check_against_model(make_place: Callable[[], Place], *, share: int = 3, steps: int = 80) -> None:
    """Run the machine on places of one kind, for one of `share` of the usual examples, each of so many steps."""

    class Machine(StoreMachine):
        """The machine on these places."""

    Machine.make_place = staticmethod(make_place)
    some = settings(max_examples=settings().max_examples // share, stateful_step_count=steps)
    run_state_machine_as_test(Machine, settings=some)
