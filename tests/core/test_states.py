"""The table of transitions holds together."""

from __future__ import annotations

import pytest

from proxy.core.states import TABLE, Do, On, State


def test_every_state_is_there_and_can_be_reached() -> None:
    """From the first state all others follow."""
    reached, open_states = {State.OPENING}, [State.OPENING]
    while open_states:
        for _, following in TABLE[open_states.pop()].values():
            if following not in reached:
                reached.add(following)
                open_states.append(following)
    assert reached == set(State) == set(TABLE)


def test_everything_in_the_table_is_of_use() -> None:
    """No word is defined that no transition uses."""
    assert {do for row in TABLE.values() for do, _ in row.values()} == set(Do)
    # A finish means something only where it is held back; where frames pass it goes with its frame.
    assert {on for row in TABLE.values() for on in row} == set(On)


@pytest.mark.parametrize("state", [state for state in State if state is not State.CLOSED])
def test_every_state_has_a_way_to_the_end(state: State) -> None:
    """A turn can always come to its end."""
    reached, open_states = {state}, [state]
    while open_states:
        following = {target for _, target in TABLE[open_states.pop()].values()} - reached
        reached |= following
        open_states += following
    assert State.CLOSED in reached


def test_the_end_is_the_end() -> None:
    """Nothing happens after it, and it is reached by actions that say so."""
    last = {do for row in TABLE.values() for do, following in row.values() if following is State.CLOSED}
    assert TABLE[State.CLOSED] == {}
    assert last == {
        Do.ABORT,
        Do.BREAK_OFF,
        Do.END,
        Do.GIVE_UP,
        Do.PASS_ERROR,
        Do.REFUSE,
        Do.REJECT,
        Do.RELAY,
        Do.SETTLE,
    }


@pytest.mark.parametrize(
    "state", [State.OPENING, State.PASSING, State.HOLDING, State.SPLICING, State.DRAINING, State.REOPENING]
)
def test_a_cut_stream_is_told_to_the_client(state: State) -> None:
    """Wherever the upstream still owes something, an early end is an error."""
    assert TABLE[state][On.CUT] == (Do.BREAK_OFF, State.CLOSED)


def test_a_spliced_turn_never_passes_frames_unread() -> None:
    """Once a call of ours has been seen no frame leaves as it came."""
    for state in (State.SPLICING, State.DRAINING, State.READING, State.SETTLING, State.REOPENING):
        for do, following in TABLE[state].values():
            assert do not in (Do.PASS, Do.RELEASE)
            assert following not in (State.PASSING, State.HOLDING, State.FAILING)
