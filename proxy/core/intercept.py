"""The interceptor: lets one client turn flow, and has the model's calls of the reading tool answered out of sight.

It does no I/O. It is told events and returns commands; one lives for one client request, over all upstream rounds. Its
transitions are in `states.py`, what it asks for and is told in `signals.py`.

What holds:

- Until a call of ours is seen every event leaves with exactly its own bytes, at once. Frames of plain text are not even
  parsed; they are kept, and read only when a call of ours shows up.
- A call whose name may still become ours, or whose arguments may be running into a copied stub (`guard.py`), is held
  back together with what follows it, so that the client's own calls leave later but unchanged.
- From the first call of ours or copied stub on the turn is spliced: text and reasoning flow at once, our calls never
  do, the finish and what follows it wait for the end of the round. Only then is it known whether the round is hidden
  (all calls ours: read, ask again), mixed (the client gets its calls, ours are kept for the replay), or the last.
- From a copied stub on nothing leaves before the end of the round. Exact copies are restored; if others are there, the
  model is told in place of all its calls, a hidden round. When the client has seen the beginning of one of these calls
  it is too late for that, and the stream ends as an error: a call that holds a stub never comes to its end.
- What the client will send back is written down before the finish that lets it do so.
- An ending is never invented. A stream that stops without finish and `[DONE]`, or inside an event, ends as one error
  event. In a spliced turn the finish that is held back is an end, even if the connection breaks after it.
- Each round ends by `Ended` or `Broke`, also after `[DONE]`: so nothing of an old stream is taken for the new one.

A whole body runs through the same table, as one event that is a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Raw

from proxy.core.calls import Owner
from proxy.core.guard import COPIED
from proxy.core.outlet import Outlet, Piece
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
from proxy.core.sse import Splitter, read_frame, write_frame
from proxy.core.states import TABLE, Do, On, State
from proxy.core.usage import merge_usage, sum_usage
from proxy.core.wire import chat_body
from proxy.core.wire.chat_stream import Chunk, are_plain_frames, is_done, is_text, is_whole_event, read_chunk
from proxy.core.wire.raw import write

__all__ = [  # whoever drives the interceptor needs one import
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

_ERROR: Final = b"error"
_DEAF: Final = frozenset((State.READING, State.SETTLING, State.CLOSED))
_EARLY_END: Final = "The upstream's answer ended before it was complete."
_NO_END: Final = "The model did not come to an answer within the rounds that one request may take."


class Interceptor:
    """One client turn, from the first upstream byte to the last command."""

    def __init__(self, options: InterceptOptions) -> None:
        self._options = options
        self._state = State.OPENING
        self._is_stream = options.streaming
        self._has_tool = True
        self._splitter = Splitter()
        self._round = Round(options.tool, options.guard, options.others)
        self._outlet = Outlet(options, self._round)
        self._hidden = HiddenRounds()
        self._usages: list[Raw | None] = []  # of the hidden rounds
        self._piece = Piece(b"")
        self._answers: tuple[str, ...] | None = None
        self._refusal = Refused(502, b"")
        self._body = b""
        self._message = ""
        self._is_unterminated = False
        self._commands: list[Command] = []

    def receive(self, event: Event) -> list[Command]:
        """Take an event, return what is to be done about it, in order; never raises."""
        if isinstance(event, Received) and self._is_plain(event.data):
            self._splitter.skip()
            self._outlet.keep(event.data)
            return [Emit(event.data)]
        self._commands = []
        match event:
            case Received(data):
                self._receive(data)
            case Opened():
                self._step(On.OPENED)
            case Body(data):
                self._take_body(data)
            case Refused():
                self._refusal = event
                self._step(On.REFUSED)
            case Answered(answers):
                self._answers = answers
                self._step(On.ANSWERED)
            case Ended():
                self._conclude("")
            case Broke(message):
                self._conclude(message)
        data = self._outlet.take()
        return [*self._commands, Emit(data)] if data else self._commands

    # -- what has happened

    def _step(self, on: On) -> None:
        do, self._state = TABLE[self._state].get(on, (Do.NOTHING, self._state))
        _ACTIONS[do](self)

    def _is_plain(self, data: bytes) -> bool:
        """Say whether a read can leave as it is, unread."""
        return (
            self._state is State.PASSING
            and self._splitter.at_boundary()
            and are_plain_frames(data)
            and is_text(data)
            and self._round.can_wait(data, data)
        )

    def _receive(self, data: bytes) -> None:
        is_unfit = len(self._hidden) > 0 and not self._is_stream  # a stream after a whole body
        if is_unfit or self._state in _DEAF:
            return
        self._is_stream = self._is_stream or self._state is State.OPENING
        self._step(On.OPENED)
        for frame in self._splitter.feed(data):
            self._frame(frame)

    def _frame(self, frame: bytes) -> None:
        name, data = read_frame(frame)
        is_plain = data and self._state is State.PASSING and name != _ERROR and is_text(data)
        if is_plain and self._round.can_wait(data or b"", frame):
            self._outlet.let_plain(frame)
            return
        self._piece = Piece(frame)
        if is_done(data):
            self._round.is_done = True
            self._settle_calls()
            self._step(On.DONE)
            return
        chunk = read_chunk(data) if data else None
        if name == _ERROR or (chunk is not None and chunk.is_error):
            self._step(On.ERROR)
        elif chunk is None:
            self._step(On.NOISE)
        else:
            self._chunk(frame, chunk)

    def _chunk(self, frame: bytes, chunk: Chunk) -> None:
        running = self._round
        if chunk.usage is not None:
            running.usage, running.usage_chunk = chunk.usage, chunk
        routes = running.route(chunk.calls) if self._takes_calls(chunk) else ()
        self._piece = Piece(frame, chunk, tuple(routes))
        self._step(On.USAGE if chunk.is_usage_only else self._look())
        is_finish = chunk.finish is not None and running.finish is None
        if is_finish:
            running.finish = chunk.finish
            running.settle()
        if self._outlet.has_held() and not running.has_open():
            self._step(On.CLEARED)
        if is_finish:
            self._step(On.FINISH)

    def _takes_calls(self, chunk: Chunk) -> bool:
        """Say whether the calls of a chunk count: after a finish only those of a turn that has calls."""
        if not chunk.calls or self._options.relays_only:
            return False
        return self._state is not State.DRAINING or len(self._round.calls) > 0

    def _look(self) -> On:
        """Return what the chunk at hand shows."""
        running = self._round
        if self._state in (State.SPLICING, State.DRAINING) or not len(running.calls):
            return On.CHUNK
        is_late = running.finish is not None
        if running.has_copies():
            return On.COPIED_LATE if is_late else On.COPIED
        if running.calls.has(Owner.OURS):
            return On.OURS_LATE if is_late else On.OURS
        return On.OPEN_CALL if running.has_open() else On.CHUNK

    def _settle_calls(self) -> None:
        self._round.settle()
        if self._outlet.has_held():
            self._step(On.CLEARED)

    def _take_body(self, data: bytes) -> None:
        is_first = self._state is State.OPENING
        if not (is_first or self._state is State.REOPENING):
            return
        answer = chat_body.read_answer(data)
        self._is_stream = self._is_stream and not is_first
        if self._is_stream:
            self._take_body_for_stream(data, answer)
            return
        self._body = data
        self._step(self._round.take(data, answer, is_first=is_first) or self._outcome())

    def _take_body_for_stream(self, data: bytes, answer: chat_body.Answer | None) -> None:
        """Take a whole body as if it had been streamed: the client reads a stream already."""
        self._step(On.OPENED)
        stream = write_frame(data) if answer is None else chat_body.write_stream(answer)
        for frame in Splitter().feed(stream):
            self._frame(frame)
        self._conclude("")

    def _conclude(self, message: str) -> None:
        """Take the end of the connection."""
        self._message = message
        rest = self._splitter.close()
        is_half = bool(rest) and not (self._round.is_done or is_whole_event(rest))
        if rest and not is_half:
            self._is_unterminated = True
            self._frame(rest)
        self._step(self._verdict(is_half=is_half))

    def _verdict(self, *, is_half: bool) -> On:
        """Return what the end of the connection is the end of."""
        running = self._round
        if self._state in (State.PASSING, State.HOLDING):
            if running.is_done or (running.finish is not None and not is_half):
                self._settle_calls()
                return On.OVER
            return On.CUT
        if self._state is State.DRAINING or (self._state is State.SPLICING and running.is_done):
            return self._outcome()
        return On.OVER if self._state in (State.LATE, State.FAILING) else On.CUT

    def _outcome(self) -> On:
        """Return what a round of a spliced turn was."""
        outcome = self._round.outcome(can_go_on=self._has_tool)
        self._round.calls.mend(self._options.salt + b"%d" % len(self._hidden))
        self._outlet.overdue()
        return outcome

    # -- what is done about it: `_do_x` is what `Do.X` in the table means

    def _do_nothing(self) -> None:
        pass

    def _do_pass(self) -> None:
        self._outlet.drop_held()
        self._outlet.let(self._piece)

    def _do_hold(self) -> None:
        self._outlet.hold(self._piece)

    def _do_release(self) -> None:
        self._outlet.release()

    def _do_drop_held(self) -> None:
        self._outlet.drop_held()

    def _do_splice(self) -> None:
        self._outlet.splice_in(self._piece)

    def _do_edit(self) -> None:
        self._outlet.edit(self._piece)

    def _do_overdue(self) -> None:
        self._outlet.overdue()

    def _do_stop(self) -> None:
        self._command(CloseUpstream())

    def _do_forward(self) -> None:
        self._outlet.forward(self._piece)

    def _do_pass_error(self) -> None:
        self._outlet.forward(self._piece)
        self._command(CloseUpstream())
        self._finish(aborted=True)

    def _do_relay(self) -> None:
        self._outlet.whole(self._body)
        self._finish(aborted=len(self._hidden) > 0)

    def _do_read(self) -> None:
        self._command(Read(self._round.uses()))

    def _do_reopen(self) -> None:
        is_content_hidden = self._options.json_mode and not self._is_stream
        self._hidden.add(self._round, self._answers or (), is_content_hidden=is_content_hidden)
        self._usages.append(self._round.usage)
        self._round = self._outlet.round = Round(self._options.tool, self._options.guard, self._options.others)
        self._splitter, self._answers = Splitter(), None
        self._has_tool = len(self._hidden) < self._options.rounds
        self._command(Reopen(self._hidden.messages, self._has_tool))

    def _do_settle(self, reason: str | None = None) -> None:
        last = self._round
        turn = self._hidden.remember(last, self._answers)
        if turn.rounds or turn.calls:
            self._command(Remember(turn))
        usage = merge_usage([*self._usages, last.usage])
        if last.answer is None:
            self._outlet.ending(reason, usage)
        else:
            self._outlet.whole(
                chat_body.write_answer(last.answer, self._hidden.visible(last), finish=reason, usage=usage)
            )
        self._finish(aborted=False, visible=turn.visible)

    def _do_give_up(self) -> None:
        if self._round.has_content():
            self._do_settle("stop")
        else:
            self._fail("rounds_exhausted", _NO_END)

    def _do_end(self) -> None:
        self._finish(aborted=False)

    def _do_abort(self) -> None:
        self._finish(aborted=True)

    def _do_break_off(self) -> None:
        self._outlet.drop_held()
        self._fail("upstream_broken", f"{_EARLY_END} ({self._message})" if self._message else _EARLY_END)

    def _do_reject(self) -> None:
        self._command(CloseUpstream())
        self._fail("copied_stub", COPIED)

    def _do_refuse(self) -> None:
        status, body = self._refusal.status, self._refusal.body
        if not (self._is_stream and len(self._hidden)):
            self._command(Refuse(status, body))
            self._finish(aborted=True)
            return
        error = chat_body.read_error(body)
        if error is None:
            self._fail("upstream_refused", f"The upstream answered with status {status}.")
        else:
            self._outlet.event(bytes(write({"error": error})))
            self._finish(aborted=True)

    def _fail(self, code: str, message: str) -> None:
        """Tell the client of an error of our own: as an event in a stream, else as the answer."""
        body = chat_body.write_error(code, message)
        if self._is_stream:
            self._outlet.event(body, after_rest=self._is_unterminated)
        else:
            self._command(Refuse(502, body))
        self._finish(aborted=True)

    def _finish(self, *, aborted: bool, visible: bytes | None = None) -> None:
        usage = sum_usage([*self._usages, self._round.usage])
        self._command(Finished(usage=usage, visible=visible, aborted=aborted))

    def _command(self, command: Command) -> None:
        """Ask for something, after what has been collected for the client has been sent."""
        data = self._outlet.take()
        if data:
            self._commands.append(Emit(data))
        self._commands.append(command)


_ACTIONS: Final[Mapping[Do, Callable[[Interceptor], None]]] = {
    do: getattr(Interceptor, f"_do_{do.name.lower()}") for do in Do
}
