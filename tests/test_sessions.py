"""Sessions are recognised by their history: continued, branched, anchored, kept apart."""

from __future__ import annotations

import time
from typing import Any

import pytest

from proxy.core.ledger import AnyEntry, Began, Learnt
from proxy.errors import Conflict
from proxy.sessions import Identity, Known, Sessions
from proxy.store.base import SessionUse, StoreOptions
from proxy.store.memory import MemoryStore
from tests.core.test_history import assistant, history, tool, user
from tests.core.test_ledger import offloaded

pytestmark = pytest.mark.anyio
Message = dict[str, Any]
WORK = [assistant(None, ("z", "f")), tool("z", "KEY-A")]


class Desk:
    """Sessions on a store, served as the gateway serves them."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore(StoreOptions(), time.time)
        self.sessions = Sessions(self.store, b"s" * 32)

    async def serve(self, *messages: Message, key: str | None = None, decide: int | None = None) -> Known:
        """Recognise a history and write its marks; `decide`: also a decision taken at this position."""
        known = await self.sessions.recognise(Identity("t", key), history(*messages))
        ledger = known.recognition.ledger
        entries: list[AnyEntry] = []
        if decide is not None:
            began = [] if ledger.root else [Began(known.root)]
            entries = [*began, offloaded(b"%d" % decide, since=decide, ref=f"off_{decide}")]
        if entries or ledger.stored < ledger.version:
            await self.sessions.append("t", ledger, entries)
        self.store.note("t", SessionUse(ledger=ledger.id), known.marks, ())
        return known


def shape(known: Known) -> tuple[int, int, bool]:
    """What is known, the shift, and whether an anchor told."""
    r = known.recognition
    return r.known, r.shift, r.anchored


async def test_a_growing_history_is_one_session() -> None:
    """Each request continues the one before, also in a process that starts with an empty cache."""
    desk = Desk()
    first = await desk.serve(user("x"), decide=0)
    second = await desk.serve(user("x"), assistant("a"), user("y"), decide=2)
    third = await Desk(desk.store).serve(user("x"), assistant("a"), user("y"), assistant("b"), user("z"))
    ids = {k.recognition.ledger.id for k in (first, second, third)}
    assert len(ids) == 1
    assert shape(third) == (3, 0, False)
    assert set(third.recognition.ledger.refs) == {"off_0", "off_2"}


async def test_a_clock_in_the_system_prompt_does_not_matter() -> None:
    """Leading system messages are outside."""
    desk = Desk()
    one = await desk.serve({"role": "system", "content": "12:00"}, user("x"), *WORK)
    two = await desk.serve({"role": "system", "content": "12:01"}, user("x"), *WORK, assistant("a"))
    assert two.recognition.ledger.id == one.recognition.ledger.id
    assert shape(two) == (4, 0, False)


async def test_repeating_an_older_request_is_no_branch() -> None:
    """The same history is answered from the tip that it reached before."""
    desk = Desk()
    first = await desk.serve(user("x"), decide=0)
    await desk.serve(user("x"), assistant("a"), user("y"))
    again = await desk.serve(user("x"))
    assert again.recognition.ledger.id == first.recognition.ledger.id


async def test_an_older_tip_with_other_words_is_a_branch() -> None:
    """Two chats with one opening share what was decided about it, and nothing that came later."""
    desk = Desk()
    first = await desk.serve(user("x"), decide=0)
    await desk.serve(user("x"), assistant("a"), user("mine"), decide=2)
    other = await desk.serve(user("x"), assistant("b"), user("theirs"), decide=1)
    assert other.recognition.ledger.id != first.recognition.ledger.id
    assert set(other.recognition.ledger.refs) == {"off_0"}
    assert other.recognition.ledger.root == first.root
    later = await Desk(desk.store).serve(user("x"), assistant("b"), user("theirs"), assistant("c"))
    assert set(later.recognition.ledger.refs) == {"off_0", "off_1"}
    assert later.recognition.ledger.id == other.recognition.ledger.id


async def test_a_branch_without_decisions_of_its_own_is_written_too() -> None:
    """What a branch shares survives in another process."""
    desk = Desk()
    await desk.serve(user("x"), decide=0)
    await desk.serve(user("x"), assistant("a"), user("mine"))
    await desk.serve(user("x"), assistant("b"))
    later = await Desk(desk.store).serve(user("x"), assistant("b"), user("c"))
    assert set(later.recognition.ledger.refs) == {"off_0"}


async def test_explicit_keys_separate_and_inside_a_key_the_history_counts() -> None:
    """Two keys share nothing; one key holds several histories."""
    desk = Desk()
    ids = {
        (await desk.serve(*messages, key=key)).recognition.ledger.id
        for key in (None, "a", "b")
        for messages in ([user("x")], [user("y")])
    }
    assert len(ids) == 6
    grown = await desk.serve(user("x"), assistant("1"), key="a")
    assert grown.recognition.known == 1


async def test_a_client_that_trims_its_front_is_recognised() -> None:
    """Positions shift: what the ledger calls the sixth message is the client's third."""
    desk = Desk()
    told = [user("x"), *WORK, user("go"), assistant("ok"), user("more")]
    whole = await desk.serve(*told, decide=1)
    trimmed = await desk.serve(*told[1:], assistant("done"))
    assert trimmed.recognition.ledger.id == whole.recognition.ledger.id
    assert shape(trimmed) == (4, 1, True)
    once_more = await desk.serve(*told[1:], assistant("done"), user("next"))
    assert shape(once_more) == (6, 1, False)


async def test_a_clock_in_the_first_message_keeps_the_session() -> None:
    """The opening changes with every request; the work that follows tells whose it is."""
    desk = Desk()
    work = [*WORK, user("go"), assistant("ok"), user("next")]
    first = await desk.serve(user("12:00 x"), *work, decide=2)
    for minute in (1, 2):
        later = await desk.serve(user(f"12:0{minute} x"), *work, *[assistant("a"), user("b")] * minute)
        assert later.recognition.ledger.id == first.recognition.ledger.id
        assert later.recognition.ledger.root == first.root
        assert (later.recognition.anchored, later.recognition.shift) == (True, 0)


async def test_other_work_under_the_same_short_answers_is_another_session() -> None:
    """Common answers do not lead into somebody else's ledger."""
    desk = Desk()
    mine = await desk.serve(user("x"), *WORK, user("go"), assistant("ok"), user("next"))
    theirs = [
        user("other"),
        assistant(None, ("z", "f")),
        tool("z", "KEY-B"),
        user("go"),
        assistant("ok"),
        user("next"),
    ]
    assert (await desk.serve(*theirs)).recognition.ledger.id != mine.recognition.ledger.id


async def test_the_same_first_step_under_another_task_is_another_session() -> None:
    """One equal block is not enough to take two tasks for one."""
    desk = Desk()
    one = await desk.serve(user("one task"), *WORK, user("go"))
    other = await desk.serve(user("another task"), *WORK, user("go"))
    assert other.recognition.ledger.id != one.recognition.ledger.id


async def test_long_gaps_are_searched_in_steps() -> None:
    """A history that grew by hundreds of messages at once still finds its tip."""
    desk = Desk()
    await desk.serve(user("x"), decide=0)
    grown = [user("x"), *[m for i in range(120) for m in (assistant(str(i)), user(str(i)))]]
    assert (await desk.serve(*grown)).recognition.known == 1


async def test_a_lost_race_is_reported_and_can_be_joined() -> None:
    """Appending to a ledger that grew meanwhile raises Conflict; appending later goes behind what is there."""
    desk, other = Desk(), Desk()
    other.store = desk.store
    other.sessions = Sessions(desk.store, b"s" * 32)
    mine = await desk.serve(user("x"))
    theirs = await other.serve(user("x"))
    await desk.sessions.append("t", mine.recognition.ledger, [Began(b"r"), Learnt("one")])
    with pytest.raises(Conflict):
        await other.sessions.append("t", theirs.recognition.ledger, [Learnt("two")])
    joined = await other.sessions.append_later("t", theirs.recognition.ledger, [Learnt("two")])
    assert joined.facts == {"one", "two"}


async def test_a_deleted_session_begins_anew() -> None:
    """What a deleted session had decided is forgotten, although this process still remembers it."""
    desk = Desk()
    first = await desk.serve(user("x"), decide=0)
    await desk.store.delete_session("t", first.recognition.ledger.id)
    again = await desk.serve(user("x"))
    assert again.recognition.ledger.refs == {}
    later = await desk.serve(user("x"), assistant("a"), decide=1)
    assert set((await desk.serve(user("x"), assistant("a"))).recognition.ledger.refs) == {"off_1"}
    assert later.recognition.ledger.id == first.recognition.ledger.id


async def test_an_empty_history_has_a_session() -> None:
    """A body with system messages only, or none, is served like any other."""
    desk = Desk()
    assert (await desk.serve()).marks == ()
    assert (await desk.serve({"role": "system", "content": "s"})).recognition.ledger.id
