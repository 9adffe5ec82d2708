"""Writing the narrative of a span: asks a model, and never fails a request.

The request's own model is asked on its live prefix, which it reads from cache; where that is impossible, or another
model is to write, with a transcript, in pieces where it is longer than the window, each on top of the record so far.
One narrative is written per span at a time; after a failure a conversation is left alone for a while, longer each
time. What an answer is worth is decided by `core.narrative`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
import structlog

from proxy.core.envelope import decode
from proxy.core.history import digest, text_bytes
from proxy.core.memo import Memo
from proxy.core.narrative import (
    NARRATIVE_TOKENS,
    checked,
    has_heading,
    headings,
    transcript,
    transcript_instruction,
)
from proxy.core.prompt_text import prompt_texts
from proxy.core.sse import Splitter, read_frame
from proxy.core.wire.raw_fields import encode_lenient
from proxy.counting import Counter
from proxy.errors import UpstreamError
from proxy.upstream import UpstreamResponse

log = structlog.get_logger()

DEADLINE_SECONDS: Final = 180.0
"""A narrative that takes longer is given up; nobody has waited for it so long."""

_OK = range(200, 300)
_FORM_STATUSES = frozenset({400, 404, 405, 413, 415, 422, 500, 501})  # a transcript may be taken all the same
_TRIES = 2
_FIRST_PAUSE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 3600.0
_MOST_FAILURES = 4096
_MOST_WRITTEN = 256
_PROMPT_TOKENS = 600
_MOST_BYTES = 4_000_000  # of an answer; each token of a stream comes with some three hundred bytes around it
_SHARE = 0.6  # of the window for a piece of transcript; the rest is for the record so far and the answer


class Spent(msgspec.Struct, frozen=True):
    """What a narrative cost in tokens, as far as the upstream said."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def plus(self, usage: object) -> Spent:
        """Return this and what one answer reports."""
        if not isinstance(usage, dict):
            return self
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        return Spent(
            self.prompt + _count(usage.get("prompt_tokens")),
            self.cached + _count(cached),
            self.completion + _count(usage.get("completion_tokens")),
        )


class Told(msgspec.Struct, frozen=True):
    """A narrative and its cost."""

    text: str
    spent: Spent


class SummaryNeed(msgspec.Struct, frozen=True):
    """What has to be told: a span of a ledger, what an earlier narrative knows, and who is to tell it."""

    tenant: str
    ledger: str
    start: int
    cut: int
    previous: str
    span: bytes  # digest of the messages, so that branches share what they have in common
    pieces: Callable[[], Sequence[str]]  # the span's messages as text
    spoken: str  # what the user said, or a part of it
    model: str
    window_tokens: int
    known: int = 0  # how many narratives and compactions the ledger had then
    prompt: str | None = None
    can_fork: bool = False  # the request's own model is to tell what it has just seen
    live: tuple[bytes, ...] = ()  # the request forked on the live prefix; the next one where one is refused


class Reply(msgspec.Struct, frozen=True):
    """What an upstream answered to a request for a narrative; no text where it said something else."""

    status: int
    text: str | None = None
    usage: object = None


class Failures(msgspec.Struct, frozen=True):
    """How often in a row no narrative of a conversation was to be had, and until when nobody is asked for another."""

    count: int
    until: float


Ask = Callable[[bytes, str], Awaitable[UpstreamResponse]]  # a body, for a model
Key = tuple[str, bytes]
Task = asyncio.Task[Told | None]


class Summariser:
    """Writes narratives, each once."""

    def __init__(self, counter: Counter, clock: Callable[[], float] = time.monotonic) -> None:
        self._counter = counter
        self._clock = clock
        self._running: dict[Key, Task] = {}
        self._written: Memo[Key, Task] = Memo(_MOST_WRITTEN)
        self._failed: Memo[tuple[str, str], Failures] = Memo(_MOST_FAILURES)  # by tenant and ledger

    def begin(self, need: SummaryNeed, ask: Ask) -> Task | None:
        """Start to write, or join what is being or was written; None while an earlier failure is too fresh.

        Branches of a conversation have one span in common and need one narrative of it.
        """
        key = _key(need)
        known = self._running.get(key) or self._written.get(key)
        if known is not None:
            return known
        if self.rests(need):
            return None
        task = asyncio.ensure_future(self._write(need, ask))
        self._running[key] = task
        task.add_done_callback(lambda done: self._ended(key, need, done))
        return task

    def rests(self, need: SummaryNeed) -> bool:
        """Tell whether an earlier failure is too fresh for another try."""
        failed = self._failed.get((need.tenant, need.ledger))
        return failed is not None and failed.until > self._clock()

    def failures(self, tenant: str, ledger: str) -> int:
        """Return how often in a row no narrative of a conversation was to be had."""
        failed = self._failed.get((tenant, ledger))
        return 0 if failed is None else failed.count

    async def close(self) -> None:
        """Stop writing."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, key: Key, need: SummaryNeed, task: Task) -> None:
        self._running.pop(key, None)
        conversation = need.tenant, need.ledger
        if task.cancelled() or task.result() is None:
            before = self.failures(*conversation)
            pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**before)
            self._failed.put(conversation, Failures(before + 1, self._clock() + pause))
        else:
            self._failed.put(conversation, Failures(0, 0.0))
            self._written.put(key, task)

    async def _write(self, need: SummaryNeed, ask: Ask) -> Told | None:
        """Return the narrative, None when none is to be had."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await self._tell(need, ask)
        except (UpstreamError, TimeoutError) as error:
            log.warning("summary_failed", error=str(error) or "it took too long")
        except Exception:
            log.exception("summary_failed")
        return None

    async def _tell(self, need: SummaryNeed, ask: Ask) -> Told | None:
        spent = Spent()
        for body in need.live:
            reply = await read_reply(await ask(body, need.model))
            spent = spent.plus(reply.usage)
            text = await self._checked_live(need, body, reply)
            if text is not None:
                return Told(text, spent)
            if reply.status in _OK:  # another form of the question would not help
                break
            if reply.status not in _FORM_STATUSES:
                log.warning("summary_refused", status=reply.status)
                return None
        return await self._tell_in_pieces(need, ask, spent)

    async def _checked_live(self, need: SummaryNeed, body: bytes, reply: Reply) -> str | None:
        if reply.text is None or not has_heading(reply.text, headings(need.prompt)):
            return None
        source = "\n".join(await asyncio.to_thread(prompt_texts, body))
        return await asyncio.to_thread(checked, reply.text, source, need.spoken, self._counter.count)

    async def _tell_in_pieces(self, need: SummaryNeed, ask: Ask, spent: Spent) -> Told | None:
        pieces = await asyncio.to_thread(need.pieces)
        told = Told(need.previous, spent)
        for chunk in await asyncio.to_thread(self._chunks, pieces, need.window_tokens):
            further = await self._tell_piece(need, told, chunk, ask)
            if further is None:
                return None
            told = further
        return told if told.text and self._is_shorter(told.text, need.previous, pieces) else None

    async def _tell_piece(self, need: SummaryNeed, so_far: Told, chunk: str, ask: Ask) -> Told | None:
        spent, wanted = so_far.spent, headings(need.prompt)
        for _ in range(_TRIES):
            reply = await read_reply(await ask(_body(need, so_far.text, chunk), need.model))
            if reply.status not in _OK:
                log.warning("summary_refused", status=reply.status)
                return None
            spent = spent.plus(reply.usage)
            source = so_far.text + chunk
            text = await asyncio.to_thread(checked, reply.text, source, need.spoken, self._counter.count)
            if text is not None and has_heading(text, wanted):
                return Told(text, spent)
        return None

    def _is_shorter(self, text: str, previous: str, pieces: Sequence[str]) -> bool:
        """Tell whether a narrative is shorter than what it replaces."""
        replaced = "\n".join((previous, *pieces))
        return text == previous or self._counter.exceeds(replaced, self._counter.count(text))

    def _chunks(self, pieces: Sequence[str], window_tokens: int) -> list[str]:
        room = max(200, int(window_tokens * _SHARE) - _PROMPT_TOKENS - NARRATIVE_TOKENS // 2)
        out: list[str] = []
        chunk: list[str] = []
        used = 0
        for piece in pieces:
            for part in self._parts(piece, room):
                size = self._counter.count(part) + 2
                if chunk and used + size > room:
                    out.append("\n".join(chunk))
                    chunk, used = [], 0
                chunk.append(part)
                used += size
        return [*out, "\n".join(chunk)] if chunk else out

    def _parts(self, piece: str, room: int) -> list[str]:
        """Return a piece cut into parts that fit, by characters: a token is a character at least, nearly always."""
        if self._counter.count(piece) <= room:
            return [piece]
        return [piece[at : at + room] for at in range(0, len(piece), room)]


def _key(need: SummaryNeed) -> Key:
    told = (need.model, need.prompt or "", need.previous, str(need.start))
    return need.tenant, digest(need.span, *(text_bytes(text) for text in told))


def _body(need: SummaryNeed, so_far: str, chunk: str) -> bytes:
    messages = [
        {"role": "system", "content": transcript_instruction(need.prompt)},
        {"role": "user", "content": transcript(chunk, so_far)},
    ]
    return encode_lenient({"model": need.model, "messages": messages, "stream": True})


async def read_reply(response: UpstreamResponse) -> Reply:
    """Return what an answer says; it is read to its end."""
    if response.status not in _OK:
        await response.close()
        return Reply(response.status)
    data = await _read(response)
    if data is None:
        return Reply(response.status)
    if not response.is_event_stream:
        value = decode(data)
        return Reply(response.status, _text_of(value, "message"), _usage_of(value))
    texts: list[str] = []
    usage: object = None
    for value in _events(data):
        text = _text_of(value, "delta")
        if text is None:
            return Reply(response.status, None, usage)
        texts.append(text)
        usage = _usage_of(value) or usage
    return Reply(response.status, "".join(texts), usage)


async def _read(response: UpstreamResponse) -> bytes | None:
    """Return the body, None of one that is far longer than any narrative with all its thoughts."""
    pieces: list[bytes] = []
    size = 0
    try:
        async for data in response:
            pieces.append(data)
            size += len(data)
            if size > _MOST_BYTES:
                return None
    finally:
        await response.close()
    return b"".join(pieces)


def _events(data: bytes) -> list[object]:
    splitter = Splitter()
    frames = [*splitter.feed(data), splitter.close()]
    contents = (read_frame(frame).data for frame in frames if frame)
    return [decode(content) for content in contents if content and not content.strip().startswith(b"[DONE]")]


def _text_of(value: object, key: str) -> str | None:
    """Return the text of a chunk or answer; None for errors, calls and other shapes."""
    if not isinstance(value, dict) or value.get("error"):
        return None
    choices = value.get("choices")
    if not choices:
        return "" if key == "delta" else None
    part = choices[0].get(key) or {}
    if part.get("tool_calls"):
        return None
    content = part.get("content")
    return content if isinstance(content, str) else ""


def _usage_of(value: object) -> object:
    return value.get("usage") if isinstance(value, dict) else None


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
