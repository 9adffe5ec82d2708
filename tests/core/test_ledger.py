"""Ledgers are append-only values: what is in them stays, branches share just the common part."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.ledger import (
    AnyEntry,
    Began,
    Hidden,
    HiddenTurn,
    Learnt,
    Ledger,
    Offloaded,
    decode_entry,
    encode_entry,
    make_ledger_id,
    make_root,
)

TURN = HiddenTurn(rounds=(b'{"role":"assistant"}',), visible=b"{}", shown={"content": "a"}, calls=((1, b"{}"),))


def offloaded(exact: bytes = b"e", since: int = 0, ref: str = "off_a") -> Offloaded:
    """A decision to offload."""
    return Offloaded(
        exact=exact,
        since=since,
        ref=ref,
        kind="result",
        policy="p",
        reason="over_limit",
        tokens=9000,
        lines=3,
        head_lines=10,
        tail_lines=5,
        reader="read_offloaded",
    )


ENTRIES = st.one_of(
    st.builds(Began, root=st.binary(min_size=16, max_size=16)),
    st.builds(offloaded, exact=st.binary(max_size=3), since=st.integers(0, 9), ref=st.text(max_size=5)),
    st.builds(Hidden, position=st.integers(0, 9), match=st.binary(max_size=3), turn=st.just(TURN)),
    st.builds(Learnt, fact=st.text(max_size=5)),
)


@given(ENTRIES)
def test_entries_survive_being_stored(entry: AnyEntry) -> None:
    """What is written is what is read."""
    assert decode_entry(encode_entry(entry)) == entry


def test_entries_of_a_newer_version_are_skipped_but_counted() -> None:
    """An unknown tag neither fails nor shifts the version that appends are compared with."""
    strange = msgspec.msgpack.encode({"t": "from-the-future", "x": 1})
    assert decode_entry(strange) is None
    ledger = Ledger("s", [Began(b"r"), decode_entry(strange), Learnt("f")])
    assert (ledger.version, ledger.stored, ledger.facts) == (3, 3, {"f"})


@given(st.lists(ENTRIES, max_size=8), st.lists(ENTRIES, max_size=8))
def test_growth_keeps_decisions(old: list[AnyEntry], new: list[AnyEntry]) -> None:
    """Appending never changes what was decided about a text before, nor which hidden turn a message has."""
    before, after = Ledger("s", old), Ledger("s", old).extend(new)
    assert after.entries[: before.version] == before.entries
    for key, decided in before.offloads.items():
        assert after.offloads[key][: len(decided)] == decided
    for position, hidden in before.hidden.items():
        assert after.hidden[position][: len(hidden)] == hidden


@given(st.lists(ENTRIES, max_size=10), st.integers(0, 10))
def test_a_branch_holds_only_the_common_part(entries: list[AnyEntry], length: int) -> None:
    """Nothing that was decided behind the fork is in the branch, and none of it counts as stored."""
    branch = Ledger("s", entries).branch("b", length)
    assert (branch.id, branch.stored) == ("b", 0)
    assert all(e.since < length for e in branch.refs.values())
    assert all(position <= length for position in branch.hidden)
    assert branch.root == Ledger("s", entries).root


def test_a_hidden_turn_belongs_to_one_message() -> None:
    """A regenerated answer at the same place does not inherit it."""
    ledger = Ledger("s", [Hidden(3, b"m", TURN)])
    assert ledger.hidden_at(3, b"m") == TURN
    assert ledger.hidden_at(3, b"other") is None
    assert ledger.hidden_at(4, b"m") is None


def test_the_first_stub_names_the_reader_for_good() -> None:
    """The name that the first stub gives is the name that stays."""
    later = msgspec.structs.replace(offloaded(b"f"), reader="read_offloaded_2")
    assert Ledger("s").reader is None
    assert Ledger("s", [offloaded(), later]).reader == "read_offloaded"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("t", None, b"x"), ("u", None, b"x")),
        (("t", None, b"x"), ("t", None, b"y")),
        (("t", "a", b"x"), ("t", "b", b"x")),
        (("t", "a", b"x"), ("t", None, b"x")),
    ],
)
def test_roots_separate(one: tuple[str, str | None, bytes], two: tuple[str, str | None, bytes]) -> None:
    """Tenants, openings and explicit keys each give another root."""
    assert make_root(b"k", *one) != make_root(b"k", *two)


def test_an_explicit_key_counts_instead_of_the_opening() -> None:
    """With a key the first message may change; without the secret nobody can make the root."""
    assert make_root(b"k", "t", "a", b"x") == make_root(b"k", "t", "a", b"y")
    assert make_root(b"k", "t", None, b"x") != make_root(b"l", "t", None, b"x")


def test_ids_are_the_same_everywhere() -> None:
    """An id is a function of secret and prefix alone."""
    assert make_ledger_id(b"k", b"p") == make_ledger_id(b"k", b"p") != make_ledger_id(b"k", b"q")
