"""The interceptor: lets one client turn flow, and answers the model's calls of the reading tool out of the client's sight.

It does no I/O. It is told events and returns commands; one lives for one client request, over all upstream rounds.

What holds:

- Until a call of ours is seen every event leaves with exactly its own bytes, at once. Frames of plain text are not even
  parsed; they are kept, and read only when a call of ours shows up.
- A call whose name may still become ours is held back together with what follows it, so that the client's own calls
  leave later but unchanged.
- From the first call of ours on the turn is spliced: text and reasoning flow at once, our calls never do, the finish and
  what follows it wait for the end of the round. Only then is it known whether the round is hidden (all calls ours: read,
  ask again), mixed (the client gets its calls, ours are kept for the replay), or the last.
- What the client will send back is written down before the finish that lets it do so.
- An ending is never invented. A stream that stops without finish and `[DONE]`, or inside an event, ends as one error
  event. A finish that was seen is an end, even if the connection broke after it.
- Each round ends by `Ended` or `Broke`, also after `[DONE]`: so nothing of an old stream is taken for the new one.

A whole body runs through the same table as one event that is a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import ClassVar, Final

import msgspec
from msgspec import Raw

from proxy.core.calls import Owner, Route
from proxy.core.rounds import HiddenRounds, Round
from proxy.core.signals import (
    Answered,
    Body,
    Broke,
    CloseUpstream,
    Command,
    Emit,
    Ended,
    Event,
    Finished,
    InterceptOptions,
    Opened,
    Read,
    Received,
    Refuse,
    Refused,
    Remember,
    Reopen,
    ToolUse,
)
from proxy.core.sse import Splitter, is_harmless_rest, read_frame, write_frame
from proxy.core.usage import merge_usage, sum_usage
from proxy.core.wire.chat_body import read_answer, read_error, read_usage, write_answer, write_stream
from proxy.core.wire.chat_stream import Chunk, Splice, is_plain, read_chunk
from proxy.core.wire.raw import read_object, write

__all__ = [
    "Answered",
    "Body",
    "Broke",
    "CloseUpstream",
    "Command",
    "Emit",
    "Ended",
    "Event",
    "Finished",
    "InterceptOptions",
    "Interceptor",
    "Opened",
    "Read",
    "Received",
    "Refuse",
    "Refused",
    "Remember",
    "Reopen",
    "ToolUse",
]


class State(StrEnum):
    """Where a turn is."""

    OPENING = "opening"  # the first round has not begun
    PASSING = "passing"  # everything leaves as it came
    HOLDING = "holding"  # the same, but for a call whose name is still open
    LATE = "late"  # a call of ours came after the finish had left: all but usage and the end is dropped
    FAILING = "failing"  # the upstream told of an error in a stream that passes
    SPLICING = "splicing"  # a call of ours has been seen in this turn
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
    OPEN_NAME = "open name"  # a chunk, and a call whose name is still open
    NAMED = "named"  # all names are known, none is ours
    OURS = "ours"  # a chunk that shows a call of ours
    OURS_LATE = "ours late"  # the same after a finish
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
    SPENT = "spent"  # … only calls of ours, although the tool had been withdrawn
    ANSWERED = "answered"
    REFUSED = "refused"


class Do(StrEnum):
    """What is done about it; each is a method of the interceptor."""

    NOTHING = "nothing"
    PASS = "pass"  # noqa: S105 - an action, no password
    HOLD = "hold"
    RELEASE = "release"
    SPLICE = "splice"
    DROP_HELD = "drop held"
    EDIT = "edit"
    KEEP_FINISH = "keep finish"
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
    REFUSE = "refuse"


_S = State
_CONCLUSIONS: Final = {
    On.LAST: (Do.SETTLE, _S.CLOSED),
    On.HIDDEN: (Do.READ, _S.READING),
    On.MIXED: (Do.READ, _S.SETTLING),
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
        On.OPEN_NAME: (Do.HOLD, _S.HOLDING),
        On.OURS: (Do.SPLICE, _S.SPLICING),
        On.OURS_LATE: (Do.NOTHING, _S.LATE),
        On.ERROR: (Do.PASS, _S.FAILING),
        On.OVER: (Do.END, _S.CLOSED),
        On.CUT: (Do.BREAK_OFF, _S.CLOSED),
    },
    _S.HOLDING: {
        On.NOISE: (Do.HOLD, _S.HOLDING),
        On.CHUNK: (Do.HOLD, _S.HOLDING),
        On.USAGE: (Do.HOLD, _S.HOLDING),
        On.OPEN_NAME: (Do.HOLD, _S.HOLDING),
        On.NAMED: (Do.RELEASE, _S.PASSING),
        On.OURS: (Do.SPLICE, _S.SPLICING),
        On.OURS_LATE: (Do.DROP_HELD, _S.LATE),
        On.CUT: (Do.BREAK_OFF, _S.CLOSED),
    },
    _S.LATE: {
        On.USAGE: (Do.PASS, _S.LATE),
        On.DONE: (Do.PASS, _S.LATE),
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
        On.FINISH: (Do.KEEP_FINISH, _S.DRAINING),
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
