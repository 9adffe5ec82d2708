"""The rounds of one turn: the one that is running, and those that the client does not see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Raw

from proxy.core.calls import Call, Calls, Owner, Route
from proxy.core.guard import NOT_EXECUTED, BadCopies, Guard, Watch, explain, restore
from proxy.core.ledger import HiddenTurn
from proxy.core.signals import ToolUse
from proxy.core.sse import Splitter, read_frame
from proxy.core.states import On
from proxy.core.wire.chat_body import Answer, read_error, read_usage
from proxy.core.wire.chat_message import Draft, join_messages, texts_of, with_calls
from proxy.core.wire.chat_stream import Chunk, has_calls, has_head, read_chunk
from proxy.core.wire.raw import NULL, Fields, is_empty, read_text, write

# Finish reasons under which the calls of the turn are not carried out: the model was stopped while it wrote.
_STOPPED: Final = frozenset(
    (
        "length",
        "max_tokens",
        "model_length",
        "content_filter",
        "safety",
        "error",
        "abort",
        "cancelled",
        "insufficient_system_resource",
        "malformed_function_call",
    )
)
_NO_ANSWER: Final = "The read could not be answered. This is not final: call the tool again."


class Round:
    """One upstream answer, as far as it has come."""

    def __init__(self, tool: str | None, guard: Guard | None = None, others: Sequence[str] = ()) -> None:
        self._tool = tool
        self._guard = guard
        self._watch = None if guard is None else Watch(guard)
        self._relays_only = tool is None and guard is None
        self.calls = Calls(() if tool is None else (tool, *others))
        self.draft = Draft()
        self.kept: list[bytes] = []  # frames that left as they came, read when a call of ours shows up
        self.kept_bytes = 0
        self._deferred: list[bytes] = []
        self.finish: str | None = None
        self.ending: Chunk | None = None  # the chunk with the finish, while it is held back
        self.ending_is_bare = False  # the client got something of it
        self.tail: list[bytes] = []  # frames that came after the finish
        self.usage: Raw | None = None
        self.usage_chunk: Chunk | None = None
        self.is_done = False  # [DONE] was seen
        self.answer: Answer | None = None  # when it came as a whole body

    def can_wait(self, data: bytes, frame: bytes) -> bool:
        """Say whether chunks show nothing of ours, so that they can leave unread.

        They hold no call, or a piece of one where all calls so far are the client's; then reading it is put off.
        """
        if not has_calls(data) or self._relays_only:
            return True
        is_theirs = self.calls.are_theirs() and not has_head(data)
        can_wait = is_theirs and (self._watch is None or self._watch.can_skip(data))
        if can_wait:
            self._deferred.append(frame)
        return can_wait

    def route(self, entries: Iterable[Raw]) -> list[Route]:
        """Give deltas to their calls, those first that were put off."""
        if self._deferred:
            self._add_deferred()
        routes = self.calls.add(entries)
        self._follow(routes)
        return routes

    def take(self, data: bytes, answer: Answer | None, *, is_first: bool) -> On | None:
        """Take a whole body and what was read in it; return what it is, None where that is for `outcome` to say."""
        self.answer, self.usage = answer, read_usage(data)
        if answer is None:
            return On.RELAY if is_first or read_error(data) else On.CUT
        if not self._relays_only:
            self.finish = answer.finish
            self._follow(self.calls.take(answer.calls))
        is_plain = not (self.calls.has(Owner.OURS) or self.has_copies())
        return On.RELAY if is_first and is_plain else None

    def settle(self) -> None:
        """Take every name and all arguments as complete: the upstream has finished."""
        self.calls.settle_names()
        if self._watch is not None:
            self._watch.settle()

    def has_open(self) -> bool:
        """Say whether something of a call is open: whose it is, or whether its end begins a copied stub."""
        return self.calls.has(Owner.OPEN) or self.must_wait()

    def has_copies(self) -> bool:
        """Say whether a stub was copied into a call, and nothing has been done about it."""
        return self._watch is not None and self._watch.has_found

    def must_wait(self) -> bool:
        """Say whether what comes next has to wait, because a stub is copied or may be."""
        return self._watch is not None and self._watch.must_wait

    def outcome(self, *, can_go_on: bool) -> On:
        """Return what the round was, its copied stubs dealt with; `can_go_on`: there may be another round."""
        self.settle()
        bad = self._restore()
        if bad:
            if self._is_shown() or not (can_go_on or self.finish in _STOPPED):
                return On.FAULTY
            self._decline(bad)
        if self._watch is not None:
            self._watch.rest()
        if not self.reads():
            return On.LAST if self.has_ended() else On.CUT
        if self.calls.has(Owner.THEIRS):
            return On.MIXED
        if not can_go_on:
            return On.SPENT
        return On.HIDDEN if self.uses() else On.DECLINED

    def message(self) -> Fields:
        """Return the assistant message; its calls only if it came whole."""
        if self.answer is not None:
            return self.answer.message
        return self.draft.message(beside_calls=len(self.calls) > 0)

    def has_content(self) -> bool:
        """Say whether there is any text for the reader."""
        if self.answer is not None:
            return not is_empty(self.answer.message.get("content"))
        return self.draft.has_content()

    def has_ended(self) -> bool:
        """Say whether the upstream brought its answer to an end: a finish, or at least something and [DONE]."""
        if self.finish is not None or self.answer is not None:
            return True
        return self.is_done and (self.draft.has_content() or len(self.calls) > 0)

    def reads(self) -> list[Call]:
        """Return the calls that are to be answered here."""
        return [] if self.finish in _STOPPED else self.calls.of(Owner.OURS)

    def uses(self) -> tuple[ToolUse, ...]:
        """Return these calls as they are put to the reader."""
        return tuple(
            ToolUse(_plain(read_text(call.id) or ""), call.name, _plain(call.arguments))
            for call in self.reads()
            if call.answer is None
        )

    def _add_deferred(self) -> None:
        splitter = Splitter()
        frames = splitter.feed(b"".join(self._deferred))
        self._deferred = []
        for frame in (*frames, splitter.close()):
            chunk = read_chunk(read_frame(frame).data or b"")
            if chunk is not None:
                self.calls.add(chunk.calls)

    def _follow(self, routes: Iterable[Route]) -> None:
        """Look out for copied stubs in what calls have gained."""
        if self._watch is not None:
            for route in routes:
                if route.text and route.call.owner is not Owner.OURS:
                    self._watch.follow(route.call.position, route.text)

    def _restore(self) -> dict[int, BadCopies]:
        """Give the client's calls the texts that copied stubs stand for; return where that is impossible."""
        bad: dict[int, BadCopies] = {}
        if self._guard is None or not self.has_copies():
            return bad
        for call in self.calls.of(Owner.THEIRS):
            restored = restore(call.arguments, self._guard, is_json=call.body_key == "function")
            if isinstance(restored, BadCopies):
                bad[call.position] = restored
            elif restored != call.arguments:
                call.restore(restored)
        return bad

    def _is_shown(self) -> bool:
        """Say whether the client has seen anything of a call."""
        return any(call.shown_index is not None for call in self.calls)

    def _decline(self, bad: dict[int, BadCopies]) -> None:
        """Have none of the client's calls carried out; the model is told why."""
        for call in self.calls.of(Owner.THEIRS):
            copies = bad.get(call.position)
            call.decline(NOT_EXECUTED if copies is None else explain(copies, self._tool))


class HiddenRounds:
    """The hidden rounds of a turn so far, and what of them the client has seen."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self._shown: list[Fields] = []

    def __len__(self) -> int:
        return len(self._shown)

    @property
    def messages(self) -> tuple[bytes, ...]:
        """All messages of these rounds, raw: assistant, tool, tool, assistant and so on."""
        return tuple(self._messages)

    def add(self, finished: Round, answers: Sequence[str], *, is_content_hidden: bool) -> None:
        """Add a round whose calls are all ours; its text may stay hidden, its reasoning is always shown."""
        message = finished.message()
        reads = finished.reads()
        self._messages.append(bytes(write(with_calls(message, reads))))
        self._messages += _tool_messages(reads, answers)
        self._shown.append({**message, "content": NULL} if is_content_hidden else message)

    def visible(self, last: Round) -> Fields:
        """Return the assistant message as the client sees it: all text, and its own calls."""
        joined = join_messages(self._shown, last.message())
        return with_calls(joined, last.calls.of(Owner.THEIRS))

    def remember(self, last: Round, answers: Sequence[str] | None) -> HiddenTurn:
        """Return what has to be known when the client sends the visible message back."""
        reads = last.reads() if answers is not None else []
        return HiddenTurn(
            rounds=self.messages,
            visible=bytes(write(self.visible(last))),
            shown=_joined_texts(self._shown),
            calls=tuple((call.position, bytes(call.encode())) for call in reads),
            answers=tuple(_tool_messages(reads, answers or ())),
        )


def _joined_texts(messages: list[Fields]) -> dict[str, str]:
    shown: dict[str, str] = {}
    for message in messages:
        for key, text in texts_of(message).items():
            shown[key] = shown.get(key, "") + text
    return shown


def _tool_messages(calls: list[Call], answers: Sequence[str]) -> list[bytes]:
    """Return the tool messages that answer these calls; `answers` are those of the calls that were read."""
    read = iter(answers)
    texts = [next(read, _NO_ANSWER) if call.answer is None else call.answer for call in calls]
    return [
        bytes(write({"role": "tool", "tool_call_id": call.id or NULL, "content": write(text)}))
        for call, text in zip(calls, texts, strict=True)
    ]


def _plain(text: str) -> str:
    """Return text with halves of surrogate pairs joined, and lone ones replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
