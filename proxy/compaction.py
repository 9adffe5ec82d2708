"""From a client's body to the body that goes upstream: recognise, decide, store, rewrite; fails open.

Order matters: an original is confirmed by the store, and the decision by the ledger, before the body that refers to it
leaves this module. A lost race for the ledger is answered by recognising and planning again on the newer one.
"""

from __future__ import annotations

import time
from functools import partial

import msgspec

from policies.offer_compaction import OfferCompaction
from proxy.breaking import Breaks, Decision
from proxy.core.breaks import Breaker
from proxy.core.declaration import OFFER_NAME, OFFER_TOKENS, TOOL_TOKENS
from proxy.core.envelope import Envelope, Patch, open_envelope, split_list
from proxy.core.guard import Guard
from proxy.core.history import History, text_bytes
from proxy.core.ledger import Ledger, Offloaded
from proxy.core.plan import Plan, Planner, Stubs, Terms, undecided
from proxy.core.prefixes import Reader
from proxy.core.record import RecordedMessage, encode_recorded
from proxy.core.rewrite import Rewriter
from proxy.core.wire.chat import ChatAdapter
from proxy.core.wire.chat_tools import ChatTools, Situation, can_offer, choose_name, free_name, look_at
from proxy.counting import Counter
from proxy.errors import Conflict, Full
from proxy.narration import Narrator
from proxy.occasion import Means, Occasion
from proxy.presets import Preset
from proxy.sessions import Identity, Known, Sessions
from proxy.store.base import Clock, Recorded, SessionUse, Store, StoreOptions
from proxy.summarise import SummaryNeed
from proxy.upkeep import Upkeep, original_of

_MOST_RACES = 4
_COUNTED_FROM_BYTES = 256  # nothing smaller is ever worth a stub
_COUNT_ELSEWHERE_FROM_BYTES = 65_536
_BYTES_PER_TOKEN = 4


class Order(msgspec.Struct, frozen=True):
    """What is asked for: whose body it is, under which preset, and what its upstream is known to be like."""

    identity: Identity
    envelope: Envelope
    preset: Preset
    takes_tools: bool = True
    takes_tools_with_json: bool = False
    facts: frozenset[str] = frozenset()  # what was learnt about this tenant's upstreams
    room_tokens: int | None = None  # what fits at most, by our estimates
    output_tokens: int = 0  # of the answer that is asked for, as far as the request says
    means: Means | None = None  # for compactions; None: the preset makes none
    is_retry: bool = False  # the same request was refused a moment ago

    def within(self, tokens: int) -> Order:
        """Return the order for the retry of a request that was too long: no more than so many tokens."""
        means = None if self.means is None else self.means.within(tokens)
        return msgspec.structs.replace(self, room_tokens=tokens, means=means, is_retry=True)


class Compacted(msgspec.Struct, frozen=True):
    """A body ready to leave, and all that its answer needs."""

    order: Order
    history: History
    known: Known
    plan: Plan
    ledger: Ledger
    situation: Situation
    body: bytes
    received_tokens: int
    sent_tokens: int
    need: SummaryNeed | None = None  # a narrative to be written when the answer has ended
    counted_tokens: int | None = None  # of what is sent, token by token, where that was looked into

    @property
    def weight(self) -> int:
        """What is sent, in tokens, as exactly as it is known."""
        return self.sent_tokens if self.counted_tokens is None else self.counted_tokens

    @property
    def edits(self) -> int:
        """How many edits are in force: texts moved out, and the block."""
        return len(self.plan.stubs) + (self.plan.fold is not None)

    @property
    def compactions(self) -> int:
        """How many compactions this history went through."""
        return sum(c.made_at <= self.length for c in self.ledger.compactions)

    @property
    def length(self) -> int:
        """Messages of the ledger's chain up to the end of this history."""
        return self.history.length + self.plan.recognition.shift


class Compactor:
    """Compacts bodies of Chat Completions for all tenants of one store."""

    def __init__(
        self, store: Store, secret: bytes, counter: Counter, options: StoreOptions, clock: Clock = time.time
    ) -> None:
        self.adapter = ChatAdapter()
        self.sessions = Sessions(store, secret)
        self._store = store
        self.counter = counter
        self._record = options.record
        self._clock = clock
        self._upkeep = Upkeep(store, self.adapter, clock, options.idle_ttl)
        self.messages = Reader(self.adapter)
        stubs = Stubs(counter.count)
        self._stubs = stubs
        self._planner = Planner(self.adapter, secret, stubs)
        breaker = Breaker(self.adapter, self._planner, stubs, secret)
        self._breaker = breaker
        self._narrator = Narrator(self.adapter, counter, self.sessions)
        self._breaks = Breaks(breaker, self.adapter, counter, self._narrator)
        self._rewriter = Rewriter(self.adapter, ChatTools(), stubs, breaker.render)

    async def compact(self, order: Order) -> Compacted:
        """Return the body to send; whatever this raises, the client's own body can be sent instead."""
        envelope = order.envelope
        history = self.messages.read(envelope)
        situation = look_at(envelope, takes_tools_with_json=order.takes_tools_with_json)
        contested: Ledger | None = None
        for _ in range(_MOST_RACES):
            known = await self.sessions.recognise(order.identity, history, contested)
            try:
                decision, ledger = await self._decide(order, history, known, situation)
            except Conflict as conflict:
                contested = await self.sessions.reload(order.identity.tenant, known.recognition.ledger.id)
                lost = conflict
            else:
                break
        else:
            raise lost
        plan = decision.plan
        await self._upkeep.renew(order.identity.tenant, ledger, history, plan.stubs)
        body = envelope.body if order.preset.shadow else self._rewriter.rewrite(envelope, history, plan)
        received, sent = self._sizes(envelope, history, plan)
        compacted = Compacted(
            order=order,
            history=history,
            known=known,
            plan=plan,
            ledger=ledger,
            situation=situation,
            body=body,
            received_tokens=received,
            sent_tokens=sent,
            need=decision.need,
            counted_tokens=decision.tokens,
        )
        self._note(compacted)
        return compacted

    def begin_narrative(self, compacted: Compacted) -> None:
        """Have the narrative written that this request calls for, if any; to be called when its answer has ended."""
        if compacted.need is not None and compacted.order.means is not None:
            self._narrator.begin(compacted.need, compacted.order.means.ask, compacted.body)

    async def close(self) -> None:
        """Stop what runs in the background."""
        await self._narrator.close()

    def without_tool(self, compacted: Compacted) -> bytes:
        """Return the same body without the reading tool, whose rounds are used up; its stubs promise no reading."""
        stubs = {place: msgspec.structs.replace(entry, reader="") for place, entry in compacted.plan.stubs.items()}
        plan = msgspec.structs.replace(compacted.plan, reader=None, offer=None, stubs=stubs)
        return self._rewriter.rewrite(compacted.order.envelope, compacted.history, plan)

    def guard(self, compacted: Compacted) -> Guard | None:
        """Return the stubs that this request's answer may copy into a call; None where none can be looked for."""
        if compacted.situation.obstacle == "choices":  # only one of them could be spliced
            return None
        return self._rewriter.guard(compacted.history, compacted.plan)

    async def _decide(
        self, order: Order, history: History, known: Known, situation: Situation
    ) -> tuple[Decision, Ledger]:
        tenant = order.identity.tenant
        terms = _terms(order, known.recognition.ledger, situation)
        await self._count_large(history, known, terms)
        decision = Decision(self._planner.plan(history, known.recognition, known.root, terms))
        if order.means is not None:
            means = _means(order, order.means, history, known, terms)
            last = partial(self._last_body, order.envelope, known, terms)
            occasion = Occasion(history, known, order.envelope, order.preset, means, terms.reader, last)
            decision = await self._breaks.plan(decision.plan, occasion)
        plan = decision.plan
        if order.means is not None and (decision.tokens or 0) > order.means.bounds.limit_tokens:
            plan = msgspec.structs.replace(plan, is_over=True)
        if plan.fresh:
            plan = await self._keep_originals(tenant, plan, history, known, terms)
        ledger = known.recognition.ledger
        if plan.entries or ledger.stored < ledger.version:
            ledger = await self.sessions.append(tenant, ledger, plan.entries, known.marks)
        return msgspec.structs.replace(decision, plan=plan), ledger

    def _last_body(self, envelope: Envelope, known: Known, terms: Terms) -> bytes:
        """Return the body that was sent for the known part of a history, as far as that can be told from the ledger."""
        messages = split_list(envelope.fields["messages"])[: known.recognition.known]
        patch = Patch(envelope)
        patch.set_field("messages", b"[" + b",".join(messages) + b"]")
        shorter = open_envelope(patch.apply())
        history = self.messages.read(shorter)
        plan = self._planner.plan(history, known.recognition, known.root, terms)
        return self._rewriter.rewrite(shorter, history, plan)

    async def _keep_originals(self, tenant: str, plan: Plan, history: History, known: Known, terms: Terms) -> Plan:
        """Have originals confirmed; where the store refuses some, plan again without these."""
        ledger_id = known.recognition.ledger.id
        originals = [original_of(f.entry, f.text, ledger_id, self._clock()) for f in plan.fresh]
        try:
            refused = await self._store.put_originals(tenant, originals)
        except Full:
            terms = msgspec.structs.replace(terms, may_offload=False)
            return self._planner.plan(history, known.recognition, known.root, terms)
        if not refused:
            return plan
        terms = msgspec.structs.replace(terms, refused=refused)
        return self._planner.plan(history, known.recognition, known.root, terms)

    async def _count_large(self, history: History, known: Known, terms: Terms) -> None:
        """Count large new texts in a thread, so that deciding finds their counts and the loop is never blocked."""
        if not terms.may_offload or not terms.policies:
            return
        sizes = [(c.size_bytes, c) for c in undecided(history, known.recognition)]
        if any(size > _COUNTED_FROM_BYTES for size, _ in sizes):
            await self.counter.ready()
        large = [c for size, c in sizes if size > _COUNT_ELSEWHERE_FROM_BYTES]
        if large:
            await self.counter.count_large([self.adapter.text(history.messages[c.message], c.at) for c in large])

    def _sizes(self, envelope: Envelope, history: History, plan: Plan) -> tuple[int, int]:
        """Return tokens received and sent: counted where something had to be counted, else bytes / 4."""
        outside = len(envelope.body) - history.messages.size_bytes
        received = history.estimated_tokens + outside // _BYTES_PER_TOKEN
        sent, fold = received, plan.fold
        shown = range(len(history)) if fold is None else {fold.goal, *fold.chosen, *range(fold.cut, len(history))}
        for (index, at), entry in plan.stubs.items():
            raw = history.messages[index]
            stub = self._stubs.render(entry, partial(self.adapter.text, raw, at))
            slot = next(s for s in history.facts[index].slots if s.at == at)
            received += entry.tokens - slot.size_bytes // _BYTES_PER_TOKEN
            if index in shown:
                sent += (len(text_bytes(stub)) - slot.size_bytes) // _BYTES_PER_TOKEN
        if fold is not None:
            gone = [history.facts[i].estimated_tokens for i in fold.leaving(history)]
            sent += len(text_bytes(self._breaker.render(history, plan))) // _BYTES_PER_TOKEN - sum(gone)
        sent -= sum(history.facts[index].reasoning_bytes // _BYTES_PER_TOKEN for index in plan.bare.intersection(shown))
        for turn in plan.grafts.values():
            sent += sum(map(len, (*turn.rounds, *turn.answers))) // _BYTES_PER_TOKEN
        return received, sent + (TOOL_TOKENS if plan.reader else 0) + (OFFER_TOKENS if plan.offer else 0)

    def _note(self, compacted: Compacted) -> None:
        """Hand the session's statistics, its marks and the record of new messages over, to be written behind."""
        record = self._new_messages(compacted) if self._record else []
        self._store.note(compacted.order.identity.tenant, _use(compacted), compacted.known.marks, record)

    def note_reads(self, compacted: Compacted, reads: int) -> None:
        """Add the reads of a finished turn to the session's statistics."""
        use = msgspec.structs.replace(_use(compacted), calls=0, received_tokens=0, sent_tokens=0, reads=reads)
        self._store.note(compacted.order.identity.tenant, use, (), ())

    def _new_messages(self, compacted: Compacted) -> list[Recorded]:
        history, known = compacted.history, compacted.plan.recognition
        edits: dict[int, list[tuple[int, Offloaded]]] = {}
        for (index, at), entry in compacted.plan.stubs.items():
            edits.setdefault(index, []).append((at, entry))
        out: list[Recorded] = []
        for index in range(max(known.known, history.leading), len(history)):
            made = edits.get(index, [])
            message = RecordedMessage(
                raw=self._rewriter.stubbed(history, index, made) if made else history.messages[index],
                edits=tuple((at, entry.ref) for at, entry in made),
                policies=tuple(entry.policy for _, entry in made),
            )
            out.append(Recorded(index - history.leading + known.shift, encode_recorded(message)))
        return out


def _use(compacted: Compacted) -> SessionUse:
    order, counts = compacted.order, not compacted.order.is_retry
    return SessionUse(
        ledger=compacted.ledger.id,
        key=order.identity.session_key,
        model=compacted.situation.model,
        format="chat",
        preset=order.preset.name,
        messages=compacted.length,
        received_tokens=compacted.received_tokens * counts,
        sent_tokens=compacted.sent_tokens,
        edits=compacted.edits,
        compactions=compacted.compactions,
        reads=0,
        calls=int(counts),
    )


def _means(order: Order, means: Means, history: History, known: Known, terms: Terms) -> Means:
    """Return what a compaction goes by: nothing leaves without need that cannot be read back, or was sent before."""
    is_wished = order.is_retry or known.recognition.ledger.is_wished
    if not is_wished and known.recognition.known >= len(history):
        return means.for_repeat()
    return means if terms.reader is not None and terms.may_offload else means.at_limit()


def _terms(order: Order, ledger: Ledger, situation: Situation) -> Terms:
    can_declare = situation.obstacle is None and order.takes_tools and not refuses_tool(order.facts, situation)
    return Terms(
        policies=order.preset.policies,
        reader=choose_name(situation.names, ledger.reader) if can_declare else None,
        may_offload=situation.can_be_called,
        has_tools=situation.has_tools,
        offer=free_name(OFFER_NAME, situation.names)
        if can_declare and _offers(order) and can_offer(situation)
        else None,
        room_tokens=order.room_tokens,
    )


def _offers(order: Order) -> bool:
    """Say whether the model is to have the tool that asks for a compaction."""
    makes_any = order.means is not None and not order.preset.shadow
    return makes_any and any(isinstance(policy, OfferCompaction) for policy in order.preset.policies)


def refusal_fact(situation: Situation) -> str:
    """Return the name of the fact that a model refuses the reading tool, with and without JSON answers apart."""
    return f"no-tool|{'json' if situation.is_json else 'any'}|{situation.model}"


def refuses_tool(facts: frozenset[str], situation: Situation) -> bool:
    """Say whether it was learnt that this request would be refused with the reading tool."""
    return f"no-tool|any|{situation.model}" in facts or refusal_fact(situation) in facts
