"""What every store must do: a machine that holds it against a model, and laws that are told one by one.

A store's test module gives a `Place` and takes `StoreLaws` as a base class and `machine(...)` as a test case. Only the
protocol is used here, so the same suite serves stores in memory, in files, and on servers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from typing import Any, ClassVar, Protocol, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from msgspec import structs

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
    StoreStats,
    Tip,
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
        """Look at what is left, and close everything."""
        try:
            if self.stores:
                self.look(2, 0, (0, 3))
        finally:
            for store in self.stores:
                self.run(store.close())
            self.runner.close()
            self.place.discard()

    # -- originals

    @rule(tenant=TENANTS, ledger=LEDGERS, names=st.lists(st.sampled_from(REF_NAMES), max_size=3), data=BYTES)
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

    @rule(asker=TENANTS | st.none(), tenant=TENANTS, name=st.sampled_from(REF_NAMES))
    def get(self, asker: str | None, tenant: str, name: str) -> None:
        """An original is given to its tenant and to the administration, byte for byte."""
        ref = ref_of(tenant, name)
        assert self.run(self.store.get_original(asker, ref)) == self.model.get(asker, ref)

    @rule(asker=TENANTS | st.none(), tenant=TENANTS, name=st.sampled_from(REF_NAMES))
    def erase(self, asker: str | None, tenant: str, name: str) -> None:
        """An original can be erased by its tenant and by the administration."""
        ref = ref_of(tenant, name)
        assert self.run(self.store.erase_original(asker, ref)) == self.model.erase(asker, ref)

    @rule(tenant=TENANTS, names=st.lists(st.sampled_from(REF_NAMES), max_size=4))
    def touch(self, tenant: str, names: Sequence[str]) -> None:
        """Touching renews what is there."""
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

    # -- sessions, facts, time

    @rule(tenant=TENANTS | st.none(), ledger=LEDGERS)
    def delete(self, tenant: str | None, ledger: str) -> None:
        """A session goes with what it alone holds."""
        assert self.run(self.store.delete_session(tenant, ledger)) == self.model.delete(tenant, ledger)

    @rule(tenant=TENANTS, name=st.sampled_from("xy"), value=BYTES)
    def learn(self, tenant: str, name: str, value: bytes) -> None:
        """A fact replaces the one before it."""
        self.run(self.store.put_fact(tenant, name, value))
        self.model.facts[tenant, name] = value

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

    # -- looking at all of it

    @rule(limit=st.integers(1, 3), after=st.integers(0, 3), span=st.tuples(st.integers(-1, 4), st.integers(-1, 4)))
    def look(self, limit: int, after: int, span: tuple[int, int]) -> None:
        """Everything that can be read is as the model has it."""
        for tenant in ("one", "two", None):
            self.look_at_lists(tenant, limit)
        for tenant, name in product(("one", "two"), LEDGER_NAMES):
            self.look_at_ledger(tenant, name, after, span)
        for tenant in ("one", "two"):
            expected = {name: value for (owner, name), value in self.model.facts.items() if owner == tenant}
            assert self.run(self.store.facts(tenant)) == expected
            self.look_at_originals(tenant)

    def look_at_lists(self, tenant: str | None, limit: int) -> None:
        """Lists are complete, in order, page by page."""
        ledgers = [ledger for (owner, _), ledger in self.model.ledgers.items() if tenant in (None, owner)]
        newest = sorted(ledgers, key=lambda ledger: -ledger.order)
        expected = [self.model.session(ledger.tenant, ledger.use.ledger) for ledger in newest]
        assert self.run(walk(lambda page: self.store.list_sessions(tenant, page), limit)) == expected
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
        """One session is what the list shows, with entries and record."""
        known = self.model.ledgers.get((tenant, name))
        session = self.model.session(tenant, name) if known else None
        assert self.run(self.store.get_session(tenant, name)) == session
        entries = known.entries[after:] if known else []
        assert self.run(self.store.load_ledger(tenant, name, after)) == entries
        record = sorted(known.record.items()) if known else []
        expected = [Recorded(index, data) for index, data in record if span[0] <= index < span[1]]
        assert self.run(self.store.load_record(tenant, name, *span)) == expected

    def look_at_originals(self, tenant: str) -> None:
        """What is missing is what is neither stored nor erased, and totals add up."""
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


def check_against_model(make_place: Callable[[], Place]) -> None:
    """Run the machine on places of one kind."""

    class Machine(StoreMachine):
        """The machine on these places."""

    Machine.make_place = staticmethod(make_place)
    some = settings(max_examples=settings().max_examples // 2, stateful_step_count=80)
    run_state_machine_as_test(Machine, settings=some)  # type: ignore[no-untyped-call]


@pytest.mark.anyio
class StoreLaws:
    """Laws told one by one; a store's module derives from this and gives the fixture `place`."""

    @pytest.fixture
    def clock(self) -> Clock:
        """Stand still until moved."""
        return Clock()

    @pytest.fixture
    async def store(self, place: Place, clock: Clock) -> AsyncIterator[Store]:
        """Open a store without a quota."""
        async with opened(place, clock) as store:
            yield store

    @pytest.mark.parametrize("size", [0, 1, 200, LARGE_BYTES - 1, LARGE_BYTES + 1, 3_000_000])
    @pytest.mark.parametrize("pattern", [b"\x00", b"line of text\r\n", None])
    async def test_originals_come_back_byte_for_byte(
        self, store: Store, size: int, pattern: bytes | None
    ) -> None:
        """Bytes of any size and kind are given back as they came, with their description."""
        data = os.urandom(size) if pattern is None else (pattern * (size // len(pattern) + 1))[:size]
        kept = original("r", "a", data)
        assert await store.put_originals("t", [kept]) == frozenset()
        assert await store.get_original("t", "r") == kept
        assert await store.get_original(None, "r") == kept

    async def test_a_known_ref_keeps_its_bytes(self, store: Store) -> None:
        """What was stored first under a ref stays, within one call and over several."""
        await store.put_originals("t", [original("r", "a", b"first"), original("r", "a", b"second")])
        await store.put_originals("t", [original("r", "b", b"third one")])
        assert await store.get_original("t", "r") == original("r", "a", b"first")
        assert (await store.stats()).stored_bytes == len(b"first")

    async def test_a_shared_original_outlives_its_first_holder(self, store: Store) -> None:
        """An original that two sessions hold goes with the second of them."""
        await store.put_originals("t", [original("r", "a"), original("own", "a")])
        await store.put_originals("t", [original("r", "b")])
        assert await store.delete_session("t", "a")
        assert await store.get_original("t", "own") is None
        assert await store.get_original("t", "r") == original("r", "b")
        assert await store.delete_session(None, "b")
        assert await store.get_original("t", "r") is None
        assert (await store.stats()).stored_bytes == 0

    async def test_erased_is_erased(self, store: Store) -> None:
        """An erased ref is refused from then on, the others of the same call are stored."""
        await store.put_originals("t", [original("r", "a")])
        assert not await store.erase_original("u", "r")
        assert await store.erase_original(None, "r")
        assert not await store.erase_original(None, "r")
        assert await store.get_original("t", "r") == Erased("r")
        assert await store.get_original("u", "r") is None
        assert await store.put_originals("t", [original("r", "b"), original("s", "b")]) == {"r"}
        assert await store.get_original("t", "r") == Erased("r")
        assert await store.get_original("t", "s") == original("s", "b")
        assert await store.missing_originals("t", ["r", "s", "x"]) == {"x"}
        assert await store.put_originals("u", [original("r", "a")]) == frozenset()

    async def test_erasure_outlives_session_and_time(self, store: Store, clock: Clock) -> None:
        """A tombstone stays when its session is deleted and when everything else has expired."""
        await store.put_originals("t", [original("r", "a")])
        await store.erase_original("t", "r")
        await store.delete_session("t", "a")
        clock.now += 10 * IDLE_TTL
        await store.expire(clock.now)
        assert await store.put_originals("t", [original("r", "a")]) == {"r"}

    async def test_use_renews_an_original(self, store: Store, clock: Clock) -> None:
        """Touching, reading and putting again each renew; the administration's look does not."""
        names = ("touched", "read", "put", "seen", "idle")
        await store.put_originals("t", [original(name, "a") for name in names])
        for _ in range(4):
            clock.now += 0.6 * IDLE_TTL
            await store.touch_originals("t", ["touched"])
            await store.get_original("t", "read")
            await store.put_originals("t", [original("put", "a")])
            await store.get_original(None, "seen")
            await store.expire(clock.now)
        assert await store.missing_originals("t", names) == {"seen", "idle"}
        await store.put_originals("t", [original("idle", "a")])
        assert await store.get_original("t", "idle") == original("idle", "a")

    async def test_notes_renew_a_session(self, store: Store, clock: Clock) -> None:
        """A session in use keeps tips, entries and record; an idle one loses all of them."""
        for name in ("busy", "idle"):
            await store.append_ledger("t", name, 0, [name.encode()], [Mark(key(name), 1)])
            store.note("t", SessionUse(name), [], [Recorded(0, b"m")])
        for _ in range(4):
            clock.now += 0.6 * IDLE_TTL
            store.note("t", SessionUse("busy"), [], [])
            await store.expire(clock.now)
        assert [tip.ledger for tip in await store.find_tips("t", [key("busy"), key("idle")])] == ["busy"]
        assert await store.load_ledger("t", "busy") == [b"busy"]
        assert await store.load_ledger("t", "idle") == []
        assert await store.load_record("t", "busy", 0, 9) == [Recorded(0, b"m")]
        assert await store.load_record("t", "idle", 0, 9) == []
        assert await store.get_session(None, "idle") is None

    async def test_time_passes_by_itself(self, place: Place, clock: Clock) -> None:
        """What is idle goes without anybody asking for it."""
        async with opened(place, clock, StoreOptions(idle_ttl=1.0)) as store:
            await store.put_originals("t", [original("r", "a")])
            clock.now += 2.0
            while await store.get_original(None, "r") is not None:
                await asyncio.sleep(0.05)

    async def test_much_can_expire_at_once(self, store: Store, clock: Clock) -> None:
        """An expiry is complete however much there is to drop."""
        for session in range(90):
            await store.put_originals("t", [original(f"r{session}-{i}", f"s{session}") for i in range(3)])
        clock.now += 2 * IDLE_TTL
        await store.put_originals("t", [original("new", "new")])
        assert await store.expire(clock.now) == 90 * 4
        assert await store.stats() == StoreStats(originals=1, stored_bytes=4, sessions=1, dropped=0)

    async def test_one_append_wins(self, store: Store) -> None:
        """Of many appends at one position exactly one succeeds, and the others learn how long the ledger is."""
        calls = [store.append_ledger("t", "a", 0, [b"%d" % i, b"x"], []) for i in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(str(type(result).__name__) for result in results) == ["Conflict"] * 19 + ["int"]
        assert {result.version for result in results if isinstance(result, Conflict)} == {2}
        assert len(await store.load_ledger("t", "a")) == 2

    async def test_lost_races_are_merged(self, place: Place, clock: Clock) -> None:
        """Writers that read again after a conflict lose nothing, over several stores too."""
        async with opened(place, clock) as one, opened(place, clock) as other:
            stores = [one, other if place.shared else one]

            async def write(number: int) -> None:
                store, at = stores[number % 2], 0
                for i in range(5):
                    while True:
                        try:
                            at = await store.append_ledger("t", "a", at, [b"%d.%d" % (number, i)], [])
                            break
                        except Conflict as conflict:
                            at = conflict.version

            await asyncio.gather(*(write(number) for number in range(6)))
            entries = await one.load_ledger("t", "a")
            assert sorted(entries) == sorted(b"%d.%d" % (n, i) for n in range(6) for i in range(5))
            for number in range(6):
                mine = [entry for entry in entries if entry.startswith(b"%d." % number)]
                assert mine == [b"%d.%d" % (number, i) for i in range(5)]

    async def test_one_secret(self, place: Place, clock: Clock) -> None:
        """Everybody gets the secret that was made first, and it outlives the stores."""
        async with opened(place, clock) as one, opened(place, clock) as other:
            stores = [one, other] if place.shared else [one]
            calls = [store.secret(lambda: os.urandom(32)) for store in stores * 5]
            (secret,) = set(await asyncio.gather(*calls))
        if place.shared:
            async with opened(place, clock) as later:
                assert await later.secret(lambda: b"") == secret

    async def test_tips_are_found_in_the_order_asked_for(self, store: Store) -> None:
        """Any number of keys can be looked up; unknown ones are left out."""
        names = [f"k{i}" for i in range(50)]
        await store.append_ledger("t", "a", 0, [b"e"], [Mark(key(name), i) for i, name in enumerate(names)])
        asked = [key(name) for pair in zip(reversed(names), (f"x{i}" for i in range(50)), strict=True) for name in pair]
        tips = await store.find_tips("t", asked)
        assert [(tip.key, tip.length) for tip in tips] == [(key(f"k{i}"), i) for i in range(49, -1, -1)]
        assert {(tip.version, tip.newest) for tip in tips} == {(1, 49)}
        assert await store.find_tips("t", []) == []

    async def test_marks_of_a_note_are_found_at_once(self, store: Store) -> None:
        """A mark is found before it is written, by the rule that a key stays with its first ledger."""
        store.note("t", SessionUse("a"), [Mark(key("k"), 3)], [])
        store.note("t", SessionUse("b"), [Mark(key("k"), 4), Mark(key("l"), 5)], [])
        expected = [Tip(key("k"), "a", 3, 0, 3), Tip(key("l"), "b", 5, 0, 5)]
        assert await store.find_tips("t", [key("k"), key("l")]) == expected
        await store.stats()
        assert await store.find_tips("t", [key("k"), key("l")]) == expected
        store.note("t", SessionUse("a"), [Mark(key("k"), 6), Mark(key("l"), 7)], [])
        expected = [Tip(key("k"), "a", 6, 0, 7), Tip(key("l"), "b", 5, 0, 5)]
        assert await store.find_tips("t", [key("k"), key("l")]) == expected
        assert await store.find_tips("u", [key("k"), key("l")]) == []

    async def test_a_note_reaches_the_others_soon(self, place: Place, clock: Clock) -> None:
        """Another store on the same place finds a mark without anybody asking for it to be written."""
        if not place.shared:
            pytest.skip("nobody else is there")
        async with opened(place, clock) as one, opened(place, clock) as other:
            one.note("t", SessionUse("a"), [Mark(key("k"), 3)], [])
            while not await other.find_tips("t", [key("k")]):
                await asyncio.sleep(0.02)

    async def test_closing_writes_what_is_behind(self, place: Place, clock: Clock) -> None:
        """A note made just before the end is there after it."""
        if not place.shared:
            pytest.skip("nothing is left after the end")
        async with opened(place, clock) as one:
            one.note("t", SessionUse("a", reads=2), [Mark(key("k"), 3)], [Recorded(4, b"m")])
        async with opened(place, clock) as later:
            assert [tip.length for tip in await later.find_tips("t", [key("k")])] == [3]
            assert await later.load_record("t", "a", 0, 9) == [Recorded(4, b"m")]

    async def test_strange_values_hold_nothing_up(self, store: Store) -> None:
        """A note that cannot be stored as it is does no harm to the others, and raises nothing."""
        store.note("t", SessionUse("a", key="\ud800", model="\x00\udfff", format="ü"), [Mark(key("k"), 1)], [])
        store.note("t", SessionUse("b", received_tokens=1 << 80), [], [])
        store.note("t", SessionUse("c"), [], [])
        found = {session.id for session in (await store.list_sessions("t", PageRequest())).data}
        assert found >= {"a", "c"}
        assert [tip.ledger for tip in await store.find_tips("t", [key("k")])] == ["a"]

    async def test_tenants_do_not_meet(self, store: Store) -> None:
        """Nothing that one tenant stored is seen or touched with another's name."""
        await store.put_originals("t", [original("r", "a")])
        await store.append_ledger("t", "a", 0, [b"e"], [Mark(key("k"), 1)])
        store.note("t", SessionUse("a"), [Mark(key("l"), 2)], [Recorded(0, b"m")])
        await store.put_fact("t", "f", b"v")
        store.note("u", SessionUse("z"), [], [])
        assert await store.get_original("u", "r") is None
        assert await store.missing_originals("u", ["r"]) == {"r"}
        assert not await store.erase_original("u", "r")
        assert await store.find_tips("u", [key("k"), key("l")]) == []
        assert await store.load_ledger("u", "a") == []
        assert await store.load_record("u", "a", 0, 9) == []
        assert await store.get_session("u", "a") is None
        assert not await store.delete_session("u", "a")
        assert (await store.list_originals("u", "a", PageRequest())).data == []
        assert [s.id for s in (await store.list_sessions("u", PageRequest())).data] == ["z"]
        assert await store.facts("u") == {}
        assert await store.append_ledger("u", "a", 0, [b"other"], [Mark(key("k"), 9)]) == 1
        assert await store.load_ledger("t", "a") == [b"e"]
        assert [tip.length for tip in await store.find_tips("t", [key("k")])] == [1]
        assert [tip.length for tip in await store.find_tips("u", [key("k")])] == [9]

    async def test_a_quota_stops_one_tenant(self, place: Place, clock: Clock) -> None:
        """Over the quota nothing of a call is stored, known refs still are, and deleting makes room again."""
        async with opened(place, clock, StoreOptions(idle_ttl=IDLE_TTL, stored_bytes=1000)) as store:
            await store.put_originals("t", [original("r", "a", b"x" * 900)])
            with pytest.raises(Full):
                await store.put_originals("t", [original("s", "b", b"x" * 50), original("u", "b", b"x" * 51)])
            assert await store.missing_originals("t", ["r", "s", "u"]) == {"s", "u"}
            await store.put_originals("t", [original("r", "b", b"x" * 900)])
            await store.put_originals("other", [original("s", "a", b"x" * 1000)])
            await store.delete_session("t", "a")
            await store.delete_session("t", "b")
            await store.put_originals("t", [original("s", "b", b"x" * 1000)])

    async def test_the_record_yields_to_originals(self, place: Place, clock: Clock) -> None:
        """A record that fills the quota does not keep originals out, and is cut off itself."""
        async with opened(place, clock, StoreOptions(idle_ttl=IDLE_TTL, stored_bytes=1000)) as store:
            store.note("t", SessionUse("a"), [], [Recorded(0, b"x" * 600), Recorded(1, b"x" * 400)])
            await store.put_originals("t", [original("r", "a", b"x" * 900)])
            store.note("t", SessionUse("a"), [Mark(key("k"), 1)], [Recorded(2, b"x")])
            assert [m.index for m in await store.load_record("t", "a", 0, 9)] == [0, 1]
            assert (await store.stats()).dropped == 1
            assert [tip.length for tip in await store.find_tips("t", [key("k")])] == [1]

    async def test_without_a_record(self, place: Place, clock: Clock) -> None:
        """With `record` off, a note leaves tips and figures, and no message."""
        async with opened(place, clock, StoreOptions(record=False)) as store:
            store.note("t", SessionUse("a"), [Mark(key("k"), 1)], [Recorded(0, b"m")])
            assert await store.load_record("t", "a", 0, 9) == []
            session = await store.get_session("t", "a")
            assert session is not None
            assert (session.calls, session.stored_bytes) == (1, 0)

    async def test_pages_stand_still(self, store: Store) -> None:
        """Going through a list shows each thing once, whatever comes and goes meanwhile."""
        for i in range(7):
            await store.put_originals("t", [original(f"r{i}", f"s{i}")])
        first = await store.list_sessions("t", PageRequest(3))
        store.note("t", SessionUse("s0"), [], [])
        store.note("t", SessionUse("new"), [], [])
        await store.delete_session("t", "s4")
        second = await store.list_sessions("t", PageRequest(3, first.next))
        last = await store.list_sessions("t", PageRequest(3, second.next))
        shown = [[session.id for session in page.data] for page in (first, second, last)]
        assert shown == [["s6", "s5", "s4"], ["s3", "s2", "s1"], ["s0"]]
        assert last.next is None
        with pytest.raises(BadRequest):
            await store.list_originals("t", None, PageRequest(3, "nonsense"))

    async def test_a_store_takes_writes(self, store: Store) -> None:
        """A ping succeeds, and changes nothing that is counted."""
        await store.ping()
        assert await store.stats() == StoreStats(originals=0, stored_bytes=0, sessions=0, dropped=0)


@asynccontextmanager
async def opened(place: Place, clock: Clock, options: StoreOptions | None = None) -> AsyncIterator[Store]:
    """Open a store for a while."""
    store = place.store(options or StoreOptions(idle_ttl=IDLE_TTL), clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
