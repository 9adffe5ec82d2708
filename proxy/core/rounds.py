"""The rounds of one turn: the one that is running, and those that the client does not see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Raw

from proxy.core.calls import Call, Calls, Owner, Route
from proxy.core.ledger import HiddenTurn
from proxy.core.signals import ToolUse
from proxy.core.sse import read_frame
from proxy.core.wire.chat_body import Answer
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

    def __init__(self, tool: str | None) -> None:
        self._tool = tool
        self.calls = Calls(tool)
        self.draft = Draft()
        self.kept: list[bytes] = []  # frames that left as they came, read when a call of ours shows up
        self.kept_bytes = 0
        self._deferred: list[bytes] = []
        self.finish: str | None = None
        self.ending: Chunk | None = None  # the chunk with the finish, while it is held back
        self.is_bare = False  # the client got something of the chunk edited last
        self.ending_is_bare = False  # … of the chunk with the finish
        self.tail: list[bytes] = []  # frames that came after the finish
        self.usage: Raw | None = None
        self.usage_chunk: Chunk | None = None
        self.is_done = False  # [DONE] was seen
        self.answer: Answer | None = None  # when it came as a whole body

    def can_wait(self, data: bytes, frame: bytes) -> bool:
        """Say whether chunks show nothing of ours, so that they can leave unread.

        They hold no call, or a piece of one where all calls so far are the client's; then reading it is put off.
        """
        if self._tool is None or not has_calls(data):
            return True
        is_theirs = self.calls.are_theirs() and not has_head(data)
        if is_theirs:
            self._deferred.append(frame)
        return is_theirs

    def route(self, entries: Iterable[Raw]) -> list[Route]:
        """Give deltas to their calls, those first that were put off."""
        deferred, self._deferred = self._deferred, []
        for frame in deferred:
            chunk = read_chunk(read_frame(frame).data or b"")
            if chunk is not None:
                self.calls.add(chunk.calls)
        return self.calls.add(entries)

    def keep_ending(self, chunk: Chunk | None) -> None:
        """Hold the chunk with the finish back until the round has ended."""
        self.ending, self.ending_is_bare = chunk, self.is_bare

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
            ToolUse(_plain(read_text(call.id) or ""), call.name, _plain(call.arguments)) for call in self.reads()
        )


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
    """Return the tool messages that answer these calls."""
    missing = [_NO_ANSWER] * (len(calls) - len(answers))
    pairs = zip(calls, [*answers, *missing], strict=False)
    return [
        bytes(write({"role": "tool", "tool_call_id": call.id or NULL, "content": write(text)})) for call, text in pairs
    ]


def _plain(text: str) -> str:
    """Return text with halves of surrogate pairs joined, and lone ones replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
