"""When a compaction pays, and when trying is given up."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.ledger import Compacted
from proxy.core.worth import ANEW, CALLS_APART, Prospect, is_fruitless, is_given_up, is_worth_it

REACHED = Prospect(before=100_000, after=20_000, target=20_000, head=5_000, calls=1, growth=50_000)
MISSED = Prospect(before=100_000, after=40_000, target=20_000, head=5_000, calls=200, growth=500)


def test_a_target_that_is_reached_is_enough() -> None:
    """The sizes of a preset mean what they say, in a short session and in one that grows fast."""
    assert is_worth_it(REACHED)
    assert not is_worth_it(msgspec.structs.replace(REACHED, after=20_001))


@pytest.mark.parametrize(("after", "is_made"), [(90_000, True), (90_001, False), (100_000, False), (110_000, False)])
def test_a_tenth_must_be_freed(after: int, *, is_made: bool) -> None:
    """Whatever the target is."""
    assert is_worth_it(msgspec.structs.replace(REACHED, after=after, target=100_000)) is is_made


@pytest.mark.parametrize(("calls", "is_made"), [(6, True), (5, False)])
def test_a_short_session_waits_until_it_pays(calls: int, *, is_made: bool) -> None:
    """A break of 350,000 cached reads that saves 60,000 a call has paid after six."""
    assert (MISSED.after - MISSED.head) * ANEW == 350_000
    assert is_worth_it(msgspec.structs.replace(MISSED, calls=calls)) is is_made


@pytest.mark.parametrize(("growth", "is_made"), [(3000, True), (3001, False)])
def test_compactions_are_some_calls_apart(growth: int, *, is_made: bool) -> None:
    """What is freed is as much as so many calls bring."""
    assert MISSED.before - MISSED.after == 3000 * CALLS_APART
    assert is_worth_it(msgspec.structs.replace(MISSED, growth=growth)) is is_made


def test_large_pins_move_the_mark_up() -> None:
    """Where little can be freed one waits until carrying has cost as much as breaking."""
    pinned = Prospect(before=15_000, after=11_000, target=3_000, head=500, calls=1000, growth=200)
    assert not is_worth_it(pinned)
    sizes = range(15_000, 40_000, 100)
    first = next(before for before in sizes if is_worth_it(msgspec.structs.replace(pinned, before=before)))
    assert (first - pinned.after) ** 2 == pytest.approx(2 * ANEW * 10_500 * 200, rel=0.05)


@given(
    st.builds(Prospect, *(st.integers(0, 200_000) for _ in range(4)), st.integers(0, 500), st.floats(0, 50_000)),
    st.integers(0, 10_000),
)
def test_deeper_is_never_worse(prospect: Prospect, deeper: int) -> None:
    """What pays when it ends here pays when it ends lower; and longer sessions do not make it worse."""
    if is_worth_it(prospect):
        assert is_worth_it(msgspec.structs.replace(prospect, after=prospect.after - deeper))
        assert is_worth_it(msgspec.structs.replace(prospect, calls=prospect.calls + deeper))


def made(before: int, after: int) -> Compacted:
    """A compaction of these sizes."""
    return Compacted(made_at=1, before_tokens=before, tokens=after)


@pytest.mark.parametrize(
    ("before", "after", "expected"), [(1000, 500, False), (1000, 600, True), (620, 590, True), (650, 580, False)]
)
def test_what_is_fruitless(before: int, after: int, *, expected: bool) -> None:
    """It ended at or over the trigger, or freed less than a tenth."""
    assert is_fruitless(made(before, after), 600) is expected


BAD, GOOD = made(1000, 900), made(1000, 300)


@pytest.mark.parametrize(
    ("past", "before", "expected"),
    [
        ([], 2000, False),
        ([BAD, BAD], 901, False),
        ([BAD, BAD, BAD], 901, True),
        ([BAD, BAD, BAD], 1079, True),
        ([BAD, BAD, BAD], 1080, False),
        ([BAD, BAD, BAD, BAD], 901, True),
        ([BAD, BAD, GOOD], 901, False),
        ([BAD, GOOD, BAD, BAD], 901, False),
        ([GOOD, BAD, BAD, BAD], 901, True),
        ([Compacted(made_at=1)] * 5, 901, False),
        ([BAD, BAD, Compacted(made_at=1), BAD], 901, True),
    ],
)
def test_three_in_vain_are_enough(past: list[Compacted], before: int, *, expected: bool) -> None:
    """Then the request has to grow by a fifth; a good one in between, and old entries without sizes, do not count."""
    assert is_given_up(past, before, 600) is expected
