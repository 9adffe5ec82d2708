"""The narratives of ledgers: which one a compaction can use, which one is to be written, and who waits for it.

A narrative is asked for shortly before the trigger, when the answer to a request has ended, so that the provider has
what it needs in its cache. It tells everything up to then; the compaction that uses it may leave the newest of that in
place. It is written into the ledger, where every later request finds it; by one gateway at a time, as far as the store
can tell (`claims`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import structlog

from policies.summarise_history import SummariseHistory
from proxy.claims import Claims
from proxy.core.envelope import open_envelope
from proxy.core.history import History
from proxy.core.ledger import Ledger, Narrated
from proxy.core.narrative import instruction
from proxy.core.wire.chat import ChatAdapter
from proxy.core.wire.chat_fork import fork
from proxy.counting import Counter
from proxy.errors import Conflict, StoreError
from proxy.occasion import Occasion
from proxy.sessions import Sessions
from proxy.summarise import DEADLINE_SECONDS, Ask, Summariser, SummaryNeed, Told

log = structlog.get_logger()

_MOST_OF_SPAN: Final = 0.75
_MOST_LINKS: Final = 7  # narratives made of narratives, before one is made of the messages again
_FAILURES_IN_A_ROW: Final = 2
_POLL_SECONDS: Final = 0.5  # between two looks whether another gateway is ready
_TRANSCRIPT_CHARACTERS: Final = 240_000
_MOST_CHARACTERS: Final = 8_000  # of one text in a transcript
_LEAST_CHARACTERS: Final = 300
_MOST_SPOKEN: Final = 8

Outcome = Narrated | Literal["elsewhere"] | None
"""A narrative, none because there is none to be had, or because another gateway writes it."""

Job = asyncio.Future[Outcome]


class Narrator:
    """Finds narratives and has them written."""

    def __init__(self, adapter: ChatAdapter, counter: Counter, sessions: Sessions) -> None:
        self._adapter = adapter
        self._sessions = sessions
        self._summariser = Summariser(counter)
        self._claims = Claims(sessions.store)
        self._running: dict[tuple[str, str], Job] = {}  # by tenant and ledger
        self._is_closed = False

    def written(self, occasion: Occasion, cut: int) -> Narrated | None:
        """Return the newest narrative that tells most of the span up to the index `cut`."""
        narratives, first = occasion.known.recognition.ledger.narratives, _first(occasion)
        usable = (n for n in narratives if _tells_most(n.cut, first, occasion.position(cut)))
        return max(usable, key=lambda n: n.cut, default=None)

    def is_lost(self, occasion: Occasion) -> bool:
        """Tell whether no narrative is to be had of a conversation, so that waiting for one is in vain."""
        identity, ledger = occasion.known.identity, occasion.known.recognition.ledger
        return self._summariser.failures(identity.tenant, ledger.id) >= _FAILURES_IN_A_ROW

    def need(self, occasion: Occasion, writer: SummariseHistory, cut: int) -> SummaryNeed:
        """Return what is to be told of the messages in front of the index `cut`."""
        folded, history = occasion.folded, occasion.history
        model = writer.model or occasion.means.model
        is_anew = self._is_anew(occasion)
        start = 0 if is_anew else _first(occasion)
        span = range(max(history.leading, occasion.index(start)), cut)
        return SummaryNeed(
            tenant=occasion.known.identity.tenant,
            ledger=occasion.known.recognition.ledger.id,
            start=start,
            cut=occasion.position(cut),
            previous="" if folded is None or is_anew else folded.narrative,
            span=history.prefix(b"", cut - history.leading),
            pieces=lambda: [self._tell(history, index, _most_characters(span)) for index in span],
            spoken=self._spoken(history),
            model=model,
            window_tokens=occasion.means.window_of(model),
            known=_told_in(occasion.known.recognition.ledger),
            prompt=writer.prompt,
            can_fork=writer.model is None and not is_anew,
        )

    async def wait(self, occasion: Occasion, writer: SummariseHistory, cut: int) -> Narrated | None:
        """Return a narrative for a request that cannot wait longer: the one being written, or one of its own.

        Raises Conflict when another gateway has written one meanwhile, or made the compaction itself.
        """
        need = self._urgent(occasion, writer, cut)
        loop = asyncio.get_running_loop()
        end = loop.time() + writer.wait_seconds
        while True:
            job = self._running.get((need.tenant, need.ledger)) or self._start(need, occasion.means.ask)
            done, _ = await asyncio.wait({job}, timeout=max(0.0, end - loop.time()))
            if not done or loop.time() >= end:
                return None
            outcome = job.result()
            if outcome != "elsewhere":
                return outcome
            newer = await self._newer(need)
            if newer is not None:
                raise Conflict("another gateway was faster", version=newer.version)
            await asyncio.sleep(max(0.0, min(_POLL_SECONDS, end - loop.time())))

    def _urgent(self, occasion: Occasion, writer: SummariseHistory, cut: int) -> SummaryNeed:
        """Return the need of a request that does not fit itself: a fork of the one before it, if that tells most."""
        known = occasion.known.recognition.known
        if _tells_most(occasion.position(known), _first(occasion), occasion.position(cut)):
            need = self.need(occasion, writer, known)
            if need.can_fork:
                live = fork(open_envelope(occasion.last_body()), instruction(need.prompt))
                return msgspec.structs.replace(need, live=live)
        return self.need(occasion, writer, cut)

    def begin(self, need: SummaryNeed, ask: Ask, body: bytes) -> None:
        """Have a narrative written behind `body`, one at a time: a conversation that goes on can use that one."""
        if (need.tenant, need.ledger) in self._running or self._summariser.rests(need):
            return
        if need.can_fork:
            need = msgspec.structs.replace(need, live=fork(open_envelope(body), instruction(need.prompt)))
        self._start(need, ask)

    async def close(self) -> None:
        """Stop writing; what is written already is kept."""
        self._is_closed = True
        await self._summariser.close()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _start(self, need: SummaryNeed, ask: Ask) -> Job:
        key = need.tenant, need.ledger
        job = asyncio.ensure_future(self._write(need, ask))
        self._running[key] = job
        job.add_done_callback(lambda _: self._running.pop(key, None))
        return job

    async def _write(self, need: SummaryNeed, ask: Ask) -> Outcome:
        """Return a narrative, unless somebody else is at it, or has been since the request was read.

        It is written into the ledger before the claim is given back, so that whoever gets that next finds it.
        """
        name = f"summary|{need.ledger}"
        token = await self._claims.take(need.tenant, name, DEADLINE_SECONDS)
        if token is None:
            return "elsewhere"
        try:
            if await self._newer(need) is not None:
                return "elsewhere"
            narrated = await self._told(need, ask)
            if narrated is not None:
                await self._keep(need, narrated)
        finally:
            await self._claims.give_back(need.tenant, name, token)
        return narrated

    async def _newer(self, need: SummaryNeed) -> Ledger | None:
        """Return the ledger if it has more narratives or compactions than the request knew of."""
        try:
            ledger = await self._sessions.reload(need.tenant, need.ledger)
        except StoreError:
            return None
        return ledger if _told_in(ledger) > need.known else None

    async def _told(self, need: SummaryNeed, ask: Ask) -> Narrated | None:
        task = None if self._is_closed else self._summariser.begin(need, ask)
        told = None if task is None else await task
        return None if told is None else _entry(need, told)

    async def _keep(self, need: SummaryNeed, narrated: Narrated) -> None:
        """Write a narrative into the ledger."""
        try:
            ledger = await self._sessions.reload(need.tenant, need.ledger)
            if not any(n.cut == need.cut for n in ledger.narratives):
                await self._sessions.append_later(need.tenant, ledger, [narrated])
        except StoreError as error:
            log.warning("summary_not_stored", error=error.message)

    def _is_anew(self, occasion: Occasion) -> bool:
        """Tell whether the next narrative is made of the messages themselves, as far as they are still sent."""
        recognition = occasion.known.recognition
        return recognition.shift == 0 and _links(recognition.ledger.narratives) >= _MOST_LINKS

    def _spoken(self, history: History) -> str:
        users = [i for i, f in enumerate(history.facts) if f.role == "user"]
        texts = (self._adapter.describe(history.messages[i], i, None).text for i in users[-_MOST_SPOKEN:])
        return "\n".join(text[:_MOST_CHARACTERS] for text in texts)

    def _tell(self, history: History, index: int, most: int) -> str:
        entry = self._adapter.describe(history.messages[index], index, history.tool_of(index))
        calls = "".join(f"\n{call.name} {_shortened(call.arguments, most)}" for call in entry.calls)
        name = f" · {entry.name}" if entry.name else ""
        return f"--- {entry.role}{name} ---\n{_shortened(entry.text, most)}{calls}"


def _entry(need: SummaryNeed, told: Told) -> Narrated:
    spent = told.spent
    return Narrated(need.start, need.cut, told.text, spent.prompt, spent.cached, spent.completion)


def _told_in(ledger: Ledger) -> int:
    return len(ledger.narratives) + len(ledger.compactions)


def _links(narratives: Sequence[Narrated]) -> int:
    """Return how many narratives stand on each other, the newest included."""
    links = 0
    for narrated in reversed(narratives):
        links += 1
        if narrated.start == 0:
            break
    return links


def _first(occasion: Occasion) -> int:
    """Return the position of the first message that no block stands for yet."""
    folded = occasion.folded
    return 0 if folded is None or folded.cut is None else folded.cut


def _tells_most(told: int, first: int, cut: int) -> bool:
    """Tell whether a narrative of the messages up to `told` is good enough for those in [first, cut)."""
    return told > first and told >= first + (cut - first) * _MOST_OF_SPAN


def _most_characters(span: range) -> int:
    """Return how much of one text a transcript of this span has, so that all of it is of a bearable length."""
    return max(_LEAST_CHARACTERS, min(_MOST_CHARACTERS, _TRANSCRIPT_CHARACTERS // max(1, len(span))))


def _shortened(text: str, most: int) -> str:
    """Return a long text without its middle: what a record needs of it stands at its ends."""
    tail = most // 3
    if len(text) <= most:
        return text
    return f"{text[: most - tail]}\n[… {len(text) - most} characters …]\n{text[-tail:]}"
