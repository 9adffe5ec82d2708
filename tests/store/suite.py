"""What every store must do: laws told one by one, and (in `machine`) any calls in any order against a model.

A store's test module gives a `Place`, derives its tests from `StoreLaws` (or `SharedLaws`, if stores on one place see
the same data) and calls `check_against_model`. Only the protocol is used here, so the same suite serves stores in
memory, in files, and on servers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import pytest
from msgspec import structs

from proxy.errors import BadRequest, Conflict, Full
from proxy.store.base import (
    LARGE_BYTES,
    Erased,
    Mark,
    Movable,
    Original,
    PageRequest,
    Recorded,
    Session,
    SessionUse,
    StoreOptions,
    StoreStats,
    Tip,
)

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

    def store(self, options: StoreOptions, clock: Callable[[], float]) -> Movable:
        """Make a store, not opened yet."""

    def discard(self) -> None:
        """Take the place away."""


IDLE_TTL = 1000.0


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


@pytest.mark.anyio
class StoreLaws:
    """Laws told one by one; a store's module derives from this and gives the fixture `place`."""

    @pytest.fixture
    def clock(self) -> Clock:
        """Stand still until moved."""
        return Clock()

    @pytest.fixture
    async def store(self, place: Place, clock: Clock) -> AsyncIterator[Movable]:
        """Open a store without a quota."""
        async with opened(place, clock) as store:
            yield store

    @pytest.mark.parametrize("size", [0, 1, 200, LARGE_BYTES - 1, LARGE_BYTES + 1, 3_000_000])
    @pytest.mark.parametrize("pattern", [b"\x00", b"line of text\r\n", None])
    async def test_originals_come_back_byte_for_byte(self, store: Movable, size: int, pattern: bytes | None) -> None:
        """Bytes of any size and kind are given back as they came, with their description."""
        data = os.urandom(size) if pattern is None else (pattern * (size // len(pattern) + 1))[:size]
        kept = original("r", "a", data)
        assert await store.put_originals("t", [kept]) == frozenset()
        assert await store.get_original("t", "r") == kept
        assert await store.get_original(None, "r") == kept

    async def test_a_known_ref_keeps_its_bytes(self, store: Movable) -> None:
        """What was stored first under a ref stays, within one call and over several."""
        await store.put_originals("t", [original("r", "a", b"first"), original("r", "a", b"second")])
        await store.put_originals("t", [original("r", "b", b"third one")])
        assert await store.get_original("t", "r") == original("r", "a", b"first")
        assert (await store.stats()).stored_bytes == len(b"first")

    async def test_a_shared_original_outlives_its_first_holder(self, store: Movable) -> None:
        """An original that two sessions hold goes with the second of them."""
        await store.put_originals("t", [original("r", "a"), original("own", "a")])
        await store.put_originals("t", [original("r", "b")])
        assert await store.delete_session("t", "a")
        assert await store.get_original("t", "own") is None
        assert await store.get_original("t", "r") == original("r", "b")
        assert await store.delete_session(None, "b")
        assert await store.get_original("t", "r") is None
        assert (await store.stats()).stored_bytes == 0

    async def test_erased_is_erased(self, store: Movable) -> None:
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

    async def test_erasure_outlives_session_and_time(self, store: Movable, clock: Clock) -> None:
        """A tombstone stays when its session is deleted and when everything else has expired."""
        await store.put_originals("t", [original("r", "a")])
        await store.erase_original("t", "r")
        await store.delete_session("t", "a")
        clock.now += 10 * IDLE_TTL
        await store.expire(clock.now)
        assert await store.put_originals("t", [original("r", "a")]) == {"r"}

    async def test_use_renews_an_original(self, store: Movable, clock: Clock) -> None:
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

    async def test_notes_renew_a_session(self, store: Movable, clock: Clock) -> None:
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

    async def test_nothing_goes_before_its_time(self, store: Movable, clock: Clock) -> None:
        """However coarsely uses are written down, what was used is there for the whole idle life after it."""
        await store.put_originals("t", [original("r", "a")])
        for _ in range(20):
            clock.now += IDLE_TTL / 100
            await store.touch_originals("t", ["r"])
            store.note("t", SessionUse("a"), [], [])
        clock.now += IDLE_TTL - 1
        assert await store.expire(clock.now) == 0
        clock.now += IDLE_TTL / 8 + 2
        assert await store.expire(clock.now) == 2

    async def test_time_passes_by_itself(self, place: Place, clock: Clock) -> None:
        """What is idle goes without anybody asking for it."""
        async with opened(place, clock, StoreOptions(idle_ttl=1.0)) as store:
            await store.put_originals("t", [original("r", "a")])
            clock.now += 2.0
            await until(lambda: store.get_original(None, "r"), lambda found: found is None)

    async def test_much_can_expire_at_once(self, store: Movable, clock: Clock) -> None:
        """An expiry is complete however much there is to drop."""
        for session in range(90):
            await store.put_originals("t", [original(f"r{session}-{i}", f"s{session}") for i in range(3)])
        clock.now += 2 * IDLE_TTL
        assert await store.expire(clock.now) == 90 * 4
        assert await store.stats() == StoreStats(originals=0, stored_bytes=0, sessions=0, dropped=0)

    async def test_one_append_wins(self, store: Movable) -> None:
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

    async def test_tips_are_found_in_the_order_asked_for(self, store: Movable) -> None:
        """Any number of keys can be looked up; unknown ones are left out."""
        names = [f"k{i}" for i in range(50)]
        await store.append_ledger("t", "a", 0, [b"e"], [Mark(key(name), i) for i, name in enumerate(names)])
        asked = [key(name) for pair in zip(reversed(names), (f"x{i}" for i in range(50)), strict=True) for name in pair]
        tips = await store.find_tips("t", asked)
        assert [(tip.key, tip.length) for tip in tips] == [(key(f"k{i}"), i) for i in range(49, -1, -1)]
        assert {(tip.version, tip.newest) for tip in tips} == {(1, 49)}
        assert await store.find_tips("t", []) == []

    async def test_marks_of_a_note_are_found_at_once(self, store: Movable) -> None:
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

    async def test_an_owner_marks_its_key_again(self, store: Movable) -> None:
        """A mark of the ledger that a key belongs to counts, also behind one of another ledger that counts not."""
        store.note("t", SessionUse("a"), [Mark(key("k"), 2)], [])
        await store.stats()
        store.note("t", SessionUse("b"), [Mark(key("k"), 1)], [])
        store.note("t", SessionUse("a"), [Mark(key("k"), 4)], [])
        assert await store.find_tips("t", [key("k")]) == [Tip(key("k"), "a", 4, 0, 4)]
        await store.stats()
        assert await store.find_tips("t", [key("k")]) == [Tip(key("k"), "a", 4, 0, 4)]

    async def test_what_was_noted_before_comes_first(self, store: Movable) -> None:
        """Other changes are made after the notes before them: keys, order and deletion follow the calls."""
        store.note("t", SessionUse("a"), [Mark(key("k"), 1)], [])
        await store.append_ledger("t", "b", 0, [b"e"], [Mark(key("k"), 2)])
        assert [tip.ledger for tip in await store.find_tips("t", [key("k")])] == ["a"]
        store.note("t", SessionUse("c"), [], [])
        await store.put_originals("t", [original("r", "d")])
        assert [s.id for s in (await store.list_sessions("t", PageRequest())).data] == ["d", "c", "b", "a"]
        store.note("t", SessionUse("e"), [], [Recorded(0, b"m")])
        assert await store.delete_session("t", "e")
        assert await store.get_session("t", "e") is None

    async def test_keys_of_a_deleted_session_are_free(self, store: Movable) -> None:
        """A key belongs to its first ledger only as long as that lives, also if another takes its name."""
        await store.append_ledger("t", "a", 0, [b"e"], [Mark(key("k"), 1), Mark(key("l"), 2)])
        await store.delete_session("t", "a")
        assert await store.find_tips("t", [key("k"), key("l")]) == []
        await store.append_ledger("t", "a", 0, [b"f"], [])
        assert await store.find_tips("t", [key("k"), key("l")]) == []
        await store.append_ledger("t", "b", 0, [b"g"], [Mark(key("k"), 3)])
        store.note("t", SessionUse("b"), [Mark(key("l"), 4)], [])
        expected = [Tip(key("k"), "b", 3, 1, 4), Tip(key("l"), "b", 4, 1, 4)]
        assert await store.find_tips("t", [key("k"), key("l")]) == expected

    async def test_strange_values_hold_nothing_up(self, store: Movable) -> None:
        """A note that cannot be stored as it is does no harm to the others, and raises nothing."""
        store.note("t", SessionUse("a", key="\ud800", model="\x00\udfff", format="ü"), [Mark(key("k"), 1)], [])
        store.note("t", SessionUse("b", received_tokens=1 << 80), [], [])
        store.note("t", SessionUse("c"), [], [])
        found = {session.id for session in (await store.list_sessions("t", PageRequest())).data}
        assert found >= {"a", "c"}
        assert [tip.ledger for tip in await store.find_tips("t", [key("k")])] == ["a"]

    async def test_tenants_do_not_meet(self, store: Movable) -> None:
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

    async def test_known_refs_are_put_again_over_the_quota(self, place: Place, clock: Clock) -> None:
        """Entries may fill a tenant's quota and more: what is stored already is still taken, by every store."""
        options = StoreOptions(idle_ttl=IDLE_TTL, stored_bytes=500)
        async with opened(place, clock, options) as one, opened(place, clock, options) as other:
            await one.put_originals("t", [original("r", "a", b"x" * 400)])
            await one.append_ledger("t", "a", 0, [b"x" * 500], [])
            known = other if place.shared else one
            assert await known.put_originals("t", [original("r", "b", b"x" * 400)]) == frozenset()
            with pytest.raises(Full):
                await known.put_originals("t", [original("s", "b", b"x")])

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

    async def test_pages_stand_still(self, store: Movable) -> None:
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

    async def test_one_claim_wins(self, place: Place, clock: Clock) -> None:
        """Of many claims for one lock exactly one gets it; other names and other tenants are other locks."""
        async with opened(place, clock) as one, opened(place, clock) as other:
            stores = [one, other if place.shared else one]
            calls = [store.claim("t", "lock", 60.0) for store in stores * 5]
            tokens = [token for token in await asyncio.gather(*calls) if token is not None]
            assert len(tokens) == 1
            assert await one.claim("t", "another", 60.0) is not None
            assert await one.claim("u", "lock", 60.0) is not None

    async def test_a_lock_that_is_let_go_is_free(self, store: Movable) -> None:
        """Only its own token releases a lock, and every claim gets a greater one."""
        first = await store.claim("t", "lock", 60.0)
        assert first is not None
        await store.release("t", "lock", first + 1)
        await store.release("u", "lock", first)
        await store.release("t", "other", first)
        assert await store.claim("t", "lock", 60.0) is None
        await store.release("t", "lock", first)
        second = await store.claim("t", "lock", 60.0)
        assert second is not None
        assert second > first
        await store.release("t", "lock", first)
        assert await store.claim("t", "lock", 60.0) is None

    async def test_a_lock_ends_by_itself(self, store: Movable, clock: Clock) -> None:
        """A lock whose holder has died is free after its time, and the holder's token is worth nothing then."""
        first = await store.claim("t", "lock", 0.05)
        assert first is not None
        clock.now += 0.05  # stores whose server tells the time need as long in truth
        tokens: list[int] = []

        async def claim() -> bool:
            token = await store.claim("t", "lock", 60.0)
            tokens.extend([] if token is None else [token])
            return bool(tokens)

        await until(claim, bool)
        assert tokens[0] > first
        await store.release("t", "lock", first)
        assert await store.claim("t", "lock", 60.0) is None

    async def test_a_new_session_is_as_it_was_elsewhere(self, store: Movable, clock: Clock) -> None:
        """Times and figures of another store are taken over, what it holds is counted here; and it expires like any."""
        row = Session(
            "a", "t", "key", clock.now - 9, clock.now - 5, "model", "chat", "deep", 3, 4, 50, 40, 2, 1, 6, 0, 0
        )
        await store.put_session(row, 9)
        assert await store.get_session("t", "a") == row
        await store.append_ledger("t", "a", 0, [b"entry"], [Mark(key("k"), 2)])
        assert [tip.newest for tip in await store.find_tips("t", [key("k")])] == [9]
        await store.put_session(structs.replace(row, reads=8), 1)
        assert await store.get_session("t", "a") == structs.replace(row, reads=8, stored_bytes=5)
        assert await store.tenants() == ["t"]
        store.note("t", SessionUse("b"), [], [])
        assert [s.id for s in (await store.list_sessions("t", PageRequest())).data] == ["b", "a"]
        await store.put_session(structs.replace(row, last_used=clock.now - 2 * IDLE_TTL), 1)
        assert await store.expire(clock.now) == 1
        assert await store.get_session("t", "a") is None

    async def test_all_tips_of_some_ledgers(self, store: Movable) -> None:
        """However many there are, those of other ledgers and of deleted ones are left out."""
        await store.append_ledger("t", "gone", 0, [b"e"], [Mark(key("g"), 1)])
        await store.delete_session("t", "gone")
        await store.append_ledger("t", "a", 0, [b"e"], [Mark(key(f"a{i}"), i) for i in range(2500)])
        await store.append_ledger("t", "b", 0, [b"e", b"f"], [Mark(key("b"), 7)])
        await store.append_ledger("t", "c", 0, [b"e"], [Mark(key("c"), 1)])
        store.note("t", SessionUse("b"), [Mark(key("noted"), 9)], [])
        found = {tip.key: tip for tip in await store.list_tips("t", ["a", "b", "gone", "unknown"])}
        assert {name for name, tip in found.items() if tip.ledger == "b"} == {key("b"), key("noted")}
        assert found[key("b")] == Tip(key("b"), "b", 7, 2, 9)
        assert sorted(tip.length for tip in found.values() if tip.ledger == "a") == list(range(2500))
        assert len(found) == 2502
        assert await store.list_tips("t", []) == []
        assert await store.list_tips("nobody", ["a"]) == []

    async def test_tombstones_without_originals(self, store: Movable) -> None:
        """A ref is refused that was never stored, and what was stored under one is dropped."""
        await store.put_originals("t", [original("r", "a")])
        await store.put_erased("t", ["r", "s"])
        await store.put_erased("t", [])
        assert sorted(await store.list_erased("t")) == ["r", "s"]
        assert await store.get_original("t", "r") == Erased("r")
        assert await store.put_originals("t", [original("r", "a"), original("s", "a")]) == {"r", "s"}
        assert (await store.stats()).stored_bytes == 0
        assert await store.list_erased("nobody") == []

    async def test_an_original_that_nobody_holds(self, store: Movable, clock: Clock) -> None:
        """Without a ledger an original is stored, no session comes into being, and only its own use keeps it."""
        await store.put_originals("t", [original("r", ""), original("s", "")])
        assert await store.get_original("t", "r") == original("r", "")
        assert (await store.stats()).sessions == 0
        await store.put_originals("t", [original("r", "a")])
        assert await store.get_original("t", "r") == original("r", "a")
        await store.delete_session("t", "a")
        assert await store.missing_originals("t", ["r", "s"]) == {"r"}
        clock.now += 2 * IDLE_TTL
        assert await store.expire(clock.now) == 1

    async def test_everybody_who_stored_something_is_a_tenant(self, store: Movable) -> None:
        """Whatever it was: an original, an entry, a note, a fact, a tombstone."""
        await store.put_originals("original", [original("r", "")])
        await store.append_ledger("entry", "a", 0, [b"e"], [])
        store.note("note", SessionUse("a"), [], [])
        await store.put_fact("fact", "f", b"v")
        await store.put_erased("tombstone", ["r"])
        assert sorted(await store.tenants()) == ["entry", "fact", "note", "original", "tombstone"]

    async def test_a_store_takes_writes(self, store: Movable) -> None:
        """A ping succeeds, and changes nothing that is counted."""
        await store.ping()
        assert await store.stats() == StoreStats(originals=0, stored_bytes=0, sessions=0, dropped=0)


class SharedLaws(StoreLaws):
    """Laws of places that several stores share, and that outlive them."""

    async def test_a_note_reaches_the_others_soon(self, place: Place, clock: Clock) -> None:
        """Another store on the same place finds a mark without anybody asking for it to be written."""
        async with opened(place, clock) as one, opened(place, clock) as other:
            one.note("t", SessionUse("a"), [Mark(key("k"), 3)], [])
            await until(lambda: other.find_tips("t", [key("k")]), bool)

    async def test_closing_writes_what_is_behind(self, place: Place, clock: Clock) -> None:
        """A note made just before the end is there after it."""
        async with opened(place, clock) as one:
            one.note("t", SessionUse("a", reads=2), [Mark(key("k"), 3)], [Recorded(4, b"m")])
        async with opened(place, clock) as later:
            assert [tip.length for tip in await later.find_tips("t", [key("k")])] == [3]
            assert await later.load_record("t", "a", 0, 9) == [Recorded(4, b"m")]


@asynccontextmanager
async def opened(place: Place, clock: Clock, options: StoreOptions | None = None) -> AsyncIterator[Movable]:
    """Open a store for a while."""
    store = place.store(options or StoreOptions(idle_ttl=IDLE_TTL), clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def until(ask: Callable[[], Awaitable[T]], is_enough: Callable[[T], bool]) -> None:
    """Ask until the answer is enough; the test's own limit ends a vain wait."""
    while not is_enough(await ask()):  # noqa: ASYNC110 - what happens in another thread or process sends no event
        await asyncio.sleep(0.02)
