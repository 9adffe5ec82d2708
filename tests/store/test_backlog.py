"""What is written behind."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.store import backlog as module
from proxy.store.backlog import Backlog, Batch, Note, merged, sum_uses
from proxy.store.base import Mark, Recorded, SessionUse
from tests.store.suite import key


def note(ledger: str, *marks: Mark, data: bytes = b"", at: float = 0.0) -> Note:
    """Make a note of tenant "t"."""
    return Note("t", SessionUse(ledger), marks, (Recorded(0, data),) if data else (), at)


def test_only_the_first_to_wait_wakes_the_writer() -> None:
    """The writer is woken once for each batch."""
    backlog = Backlog(slack=1.0)
    assert [backlog.add(note("a")), backlog.add(note("b")), backlog.touch("t", ["r"], 0.0)] == [True, False, False]
    backlog.take()
    backlog.settle()
    assert backlog.touch("t", ["s"], 0.0)


def test_tips_are_found_until_they_are_settled() -> None:
    """A tip shows while it fills a batch, while it is written, after a failure, and no longer once it is committed."""
    backlog = Backlog(slack=1.0)
    backlog.add(note("a", Mark(key("k"), 3)))
    found = {key("k"): {"a": 3}}
    assert backlog.find("t", [key("k"), key("l")]) == found
    assert backlog.find("u", [key("k")]) == {}
    backlog.take()
    assert backlog.find("t", [key("k")]) == found
    backlog.add(note("b", Mark(key("k"), 4)))
    backlog.add(note("a", Mark(key("l"), 5)))
    assert backlog.find("t", [key("k"), key("l")]) == {key("k"): {"a": 3, "b": 4}, key("l"): {"a": 5}}
    assert backlog.newest("t", "a") == 5
    backlog.put_back()
    assert backlog.find("t", [key("k"), key("l")]) == {key("k"): {"a": 3, "b": 4}, key("l"): {"a": 5}}
    assert [n.use.ledger for n in backlog.take().notes] == ["a", "b", "a"]
    backlog.settle()
    assert not backlog
    assert backlog.find("t", [key("k"), key("l")]) == {}


def test_a_key_that_two_ledgers_mark_keeps_the_order_of_notes() -> None:
    """The one that marked it first is written first, although the other one began before."""
    notes = [note("b"), note("a", Mark(key("k"), 1)), note("b", Mark(key("k"), 2))]
    assert merged(notes) == notes
    assert [n.use.ledger for n in merged([*notes[:2], note("b")])] == ["b", "a"]


def test_too_much_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is written, the newest notes beyond the bounds are dropped, and what waits at the end is, too."""
    monkeypatch.setattr(module, "MOST_NOTES", 3)
    backlog = Backlog(slack=1.0)
    for number in range(5):
        backlog.add(note(f"{number}"))
    assert backlog.dropped == 2
    assert [n.use.ledger for n in backlog.take().notes] == ["0", "1", "2"]
    backlog.add(note("late"))
    backlog.discard()
    assert backlog.dropped == 6
    assert not backlog


def test_large_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few notes with much in them are too much as well."""
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    backlog = Backlog(slack=1.0)
    for _ in range(4):
        backlog.add(note("a", data=b"x" * 60))
    assert backlog.dropped == 2


def test_renewals_are_written_coarsely() -> None:
    """A second use within the slack costs nothing; a later one is written again."""
    backlog = Backlog(slack=1.0)
    backlog.touch("t", ["r"], 10.0)
    backlog.touch("t", ["r"], 10.9)
    assert backlog.take().touches == {("t", "r"): 10.0}
    backlog.settle()
    backlog.touch("t", ["r"], 11.1)
    backlog.touch("u", ["r"], 11.1)
    assert backlog.take().touches == {("t", "r"): 11.1, ("u", "r"): 11.1}


def test_renewals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what waits nor what is remembered of renewals grows without end."""
    monkeypatch.setattr(module, "MOST_RENEWALS", 3)
    backlog = Backlog(slack=1.0)
    backlog.touch("t", [f"r{i}" for i in range(9)], 0.0)
    assert len(backlog.take().touches) == 3
    backlog.put_back()
    assert len(backlog.take().touches) == 3


NOTES = st.lists(
    st.builds(
        Note,
        st.sampled_from(["t", "u"]),
        st.builds(
            SessionUse,
            ledger=st.sampled_from(["a", "b"]),
            model=st.sampled_from(["m", "n"]),
            messages=st.integers(0, 9),
            reads=st.integers(0, 9),
            calls=st.integers(0, 9),
        ),
        st.lists(st.builds(Mark, st.sampled_from([key("k"), key("l")]), st.integers(0, 9)), max_size=2).map(tuple),
        st.lists(st.builds(Recorded, st.integers(0, 2), st.binary(max_size=2)), max_size=2).map(tuple),
        st.floats(0, 9),
    ),
    max_size=8,
)


@given(NOTES)
def test_joined_notes_have_the_effect_of_all(notes: list[Note]) -> None:
    """Joining leaves one note per session, with the sums, the last values, all marks and each message's last form."""
    marked = {(n.tenant, mark.key, n.use.ledger) for n in notes for mark in n.marks}
    assume(len(marked) == len({(tenant, name) for tenant, name, _ in marked}))
    joined = {(n.tenant, n.use.ledger): n for n in merged(notes)}
    assert len(joined) == len(merged(notes)) == len({(n.tenant, n.use.ledger) for n in notes})
    for owner, one in joined.items():
        mine = [n for n in notes if (n.tenant, n.use.ledger) == owner]
        assert one.use.reads == sum(n.use.reads for n in mine)
        assert one.use.calls == sum(n.use.calls for n in mine)
        assert (one.use.model, one.use.messages, one.at) == (mine[-1].use.model, mine[-1].use.messages, mine[-1].at)
        assert list(one.marks) == [mark for n in mine for mark in n.marks]
        last = {message.index: message.data for n in mine for message in n.record}
        assert {message.index: message.data for message in one.record} == last


def test_sums_of_uses() -> None:
    """Tokens are added up, what describes the session is the latest."""
    uses = [SessionUse("a", key="k", received_tokens=5, edits=3), SessionUse("a", sent_tokens=2, edits=1)]
    assert sum_uses(uses) == SessionUse("a", None, received_tokens=5, sent_tokens=2, edits=1, calls=2)


def test_batches_share_nothing() -> None:
    """A new batch is empty."""
    Batch().add(note("a", Mark(key("k"), 1)))
    assert not Batch()
    assert Batch().tips == {}
