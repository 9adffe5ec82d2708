"""The states of one client turn and all transitions between them, as data.

`On` is what happened, guards included: the interceptor looks at a frame or at the end of a round and says which of
these it is. `TABLE` says what is done about it and what comes next; what is not listed is ignored. No transition is
made anywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a turn is."""

    OPENING = "opening"  # the first round has not begun
    PASSING = "passing"  # everything leaves as it came; nothing of ours was seen
    HOLDING = "holding"  # the same, but something of a call is open: whose it is, or whether it copies a stub
    LATE = "late"  # a call of ours came after the finish had left: all but usage and the end is dropped
    FAILING = "failing"  # the upstream told of an error in a stream that passes
    SPLICING = "splicing"  # a call of ours, or a copied stub, has been seen in this turn
    DRAINING = "draining"  # the same, after the finish of the round
    READING = "reading"  # the calls of a hidden round are being answered
    SETTLING = "settling"  # our calls of a mixed round are being answered
    REOPENING = "reopening"  # the next round has not begun
    CLOSED = "closed"


class On(StrEnum):
    """What can happen; what is seen in a frame comes before what is concluded at the end of a round."""

    OPENED = "opened"
    NOISE = "noise"  # a comment, a blank, or data that is no chunk
    CHUNK = "chunk"  # a chunk; in a turn that is not spliced: without a call of ours
    OPEN_CALL = "open call"  # a chunk, and something of a call is open
    CLEARED = "cleared"  # nothing is open any more: all calls are the client's, and copy no stub
    OURS = "ours"  # a chunk that shows a call of ours
    OURS_LATE = "ours late"  # the same after a finish
    COPIED = "copied"  # a chunk that shows a stub in a call of the client
    COPIED_LATE = "copied late"  # the same after a finish
    USAGE = "usage"  # a chunk of usage alone
    FINISH = "finish"  # the chunk just handled had the finish
    DONE = "done"
    ERROR = "error"
    RELAY = "relay"  # a whole body with nothing of ours in it
    OVER = "over"  # the end, as it should be
    CUT = "cut"  # the end, too early
    LAST = "last"  # end of a round in a spliced turn: nothing is to be read
    HIDDEN = "hidden"  # … only calls of ours
    MIXED = "mixed"  # … calls of ours and of the client
    DECLINED = "declined"  # … only calls that are declined: a stub was copied, and badly
    FAULTY = "faulty"  # … the same, but too late to be declined
    SPENT = "spent"  # … only calls of ours, although the tool had been withdrawn
    ANSWERED = "answered"
    REFUSED = "refused"


class Do(StrEnum):
    """What is done about it; each is a method of the interceptor, `_do_` and the name."""

    NOTHING = "nothing"
    PASS = "pass"  # noqa: S105 - an action, no password
    HOLD = "hold"
    RELEASE = "release"
    FORWARD = "forward"
    SPLICE = "splice"
    DROP_HELD = "drop held"
    EDIT = "edit"
    OVERDUE = "overdue"
    STOP = "stop"
    PASS_ERROR = "pass error"  # noqa: S105 - an action, no password
    RELAY = "relay"
    READ = "read"
    REOPEN = "reopen"
    SETTLE = "settle"
    GIVE_UP = "give up"
    END = "end"
    ABORT = "abort"
    BREAK_OFF = "break off"
    REJECT = "reject"
    REFUSE = "refuse"


_S = State
_CONCLUSIONS: Final = {
    On.LAST: (Do.SETTLE, _S.CLOSED),
    On.HIDDEN: (Do.READ, _S.READING),
    On.MIXED: (Do.READ, _S.SETTLING),
    On.DECLINED: (Do.REOPEN, _S.REOPENING),
    On.FAULTY: (Do.REJECT, _S.CLOSED),
    On.SPENT: (Do.GIVE_UP, _S.CLOSED),
    On.CUT: (Do.BREAK_OFF, _S.CLOSED),
}

# What is not listed is ignored.
TABLE: Final[Mapping[State, Mapping[On, tuple[Do, State]]]] = {
    _S.OPENING: {
        **_CONCLUSIONS,
        On.OPENED: (Do.NOTHING, _S.PASSING),
        On.RELAY: (Do.RELAY, _S.CLOSED),
        On.REFUSED: (Do.REFUSE, _S.CLOSED),
    },
    _S.PASSING: {
        On.NOISE: (Do.PASS, _S.PASSING),
        On.CHUNK: (Do.PASS, _S.PASSING),
        On.USAGE: (Do.PASS, _S.PASSING),
        On.DONE: (Do.PASS, _S.PASSING),
        On.OPEN_CALL: (Do.HOLD, _S.HOLDING),
        On.OURS: (Do.SPLICE, _S.SPLICING),
        On.OURS_LATE: (Do.NOTHING, _S.LATE),
        On.COPIED: (Do.SPLICE, _S.SPLICING),
        On.COPIED_LATE: (Do.REJECT, _S.CLOSED),
        On.ERROR: (Do.PASS, _S.FAILING),
        On.OVER: (Do.END, _S.CLOSED),
        On.CUT: (Do.BREAK_OFF, _S.CLOSED),
    },
    _S.HOLDING: {
        On.NOISE: (Do.HOLD, _S.HOLDING),
        On.CHUNK: (Do.HOLD, _S.HOLDING),
        On.USAGE: (Do.HOLD, _S.HOLDING),
        On.OPEN_CALL: (Do.HOLD, _S.HOLDING),
        On.CLEARED: (Do.RELEASE, _S.PASSING),
        On.OURS: (Do.SPLICE, _S.SPLICING),
        On.OURS_LATE: (Do.DROP_HELD, _S.LATE),
        On.COPIED: (Do.SPLICE, _S.SPLICING),
        On.COPIED_LATE: (Do.REJECT, _S.CLOSED),
        On.ERROR: (Do.PASS, _S.FAILING),
        On.CUT: (Do.BREAK_OFF, _S.CLOSED),
    },
    _S.LATE: {
        On.USAGE: (Do.FORWARD, _S.LATE),
        On.DONE: (Do.FORWARD, _S.LATE),
        On.ERROR: (Do.PASS, _S.FAILING),
        On.OVER: (Do.END, _S.CLOSED),
    },
    _S.FAILING: {
        On.NOISE: (Do.PASS, _S.FAILING),
        On.CHUNK: (Do.PASS, _S.FAILING),
        On.USAGE: (Do.PASS, _S.FAILING),
        On.DONE: (Do.PASS, _S.FAILING),
        On.ERROR: (Do.PASS, _S.FAILING),
        On.OVER: (Do.ABORT, _S.CLOSED),
    },
    _S.SPLICING: {
        **_CONCLUSIONS,
        On.CHUNK: (Do.EDIT, _S.SPLICING),
        On.FINISH: (Do.OVERDUE, _S.DRAINING),
        On.DONE: (Do.STOP, _S.SPLICING),
        On.ERROR: (Do.PASS_ERROR, _S.CLOSED),
    },
    _S.DRAINING: {
        **_CONCLUSIONS,
        On.CHUNK: (Do.EDIT, _S.DRAINING),
        On.DONE: (Do.STOP, _S.DRAINING),
        On.ERROR: (Do.PASS_ERROR, _S.CLOSED),
    },
    _S.READING: {On.ANSWERED: (Do.REOPEN, _S.REOPENING)},
    _S.SETTLING: {On.ANSWERED: (Do.SETTLE, _S.CLOSED)},
    _S.REOPENING: {
        **_CONCLUSIONS,
        On.OPENED: (Do.NOTHING, _S.SPLICING),
        On.RELAY: (Do.RELAY, _S.CLOSED),
        On.REFUSED: (Do.REFUSE, _S.CLOSED),
    },
    _S.CLOSED: {},
}
