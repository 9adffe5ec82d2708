"""One request from start to end: the only place where effects are put in sequence.

1 choose the preset        settings      header or default -> preset, 400; one without policies is a plain relay
2 identify the caller      tenants       credential -> tenant and what goes upstream, 401
3 compact                  compaction    body -> shorter body; whatever breaks here: the client's own body (law f)
4 ask the upstream         upstream      a refusal of the reading tool is answered by one try without it
5 relay, splice, remember  turn          answer -> client, reads answered in between
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

import msgspec
import structlog

from proxy.access import Provider
from proxy.breaking import Means
from proxy.budget import Asking, Budget
from proxy.compaction import Compacted, Compactor, Order, refusal_fact
from proxy.core.envelope import Envelope, NotAnEnvelope, open_envelope
from proxy.core.guard import Guard
from proxy.core.intercept import InterceptOptions, Interceptor, ToolUse
from proxy.core.ledger import Hidden, HiddenTurn, Learnt
from proxy.core.rewrite import append_messages
from proxy.core.stub import STUB_START
from proxy.core.usage import sum_usage
from proxy.core.wire.chat_body import read_usage
from proxy.counting import Counter
from proxy.directives import choose_preset, session_key
from proxy.errors import ProxyError, StoreError, error_body
from proxy.exchange import Exchange, Responder
from proxy.headers import request_headers, response_headers
from proxy.outcome import Outcome
from proxy.presets import Preset
from proxy.reader import Reader, ReadScope
from proxy.room import asked_output
from proxy.sessions import Identity
from proxy.settings import Settings
from proxy.store.base import Store, StoreOptions
from proxy.tenants import Caller, identify
from proxy.turn import Summary, Turn
from proxy.upstream import Transport, UpstreamRequest, UpstreamResponse

log = structlog.get_logger()

_OK = range(200, 300)
_REFUSAL_STATUSES = frozenset({400, 404, 405, 422, 501})
_TOOL_WORDS = re.compile(rb"\btools?\b|function call|extra inputs|response mime type", re.IGNORECASE)
# A history with broken pairs is refused in words about tools, too; sending it without our tool would not help.
_PAIRING_WORDS = re.compile(rb"tool_call_id|tool_calls|role .{0,3}tool\b", re.IGNORECASE)
_STUB_START = STUB_START.encode()
_VETTED_HOSTS = ("openai.com", "openai.azure.com")


class Parts(msgspec.Struct, frozen=True):
    """What the gateway is made of; the callables give what is in force now."""

    settings: Callable[[], Settings]
    provider: Callable[[str], Provider]  # by model
    store: Store
    store_options: StoreOptions
    secret: bytes
    transport: Transport
    counter: Counter


class CompactingGateway:
    """Serves the compacting route."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.compactor = Compactor(parts.store, parts.secret, parts.counter, parts.store_options)
        self.reader = Reader(parts.store, self.compactor.adapter, parts.counter)
        self.budget = Budget()
        self._facts: dict[str, frozenset[str]] = {}

    async def handle(self, exchange: Exchange, responder: Responder) -> None:
        """Serve one chat request."""
        job = _Job(self, exchange, responder)
        try:
            await job.run()
        except ProxyError as error:
            if responder.started:
                raise
            body = error_body(error)
            head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            await responder.start(error.status, [*head, *job.outcome.headers()])
            await responder.finish(body)

    async def facts_of(self, tenant: str) -> frozenset[str]:
        """Return what was learnt about this tenant's upstreams; the store is asked once."""
        known = self._facts.get(tenant)
        if known is None:
            known = self._facts[tenant] = frozenset(await self.parts.store.facts(tenant))
        return known

    async def learn_refusal(self, compacted: Compacted) -> None:
        """Remember that the reading tool is refused: in this session's ledger, and for the tenant's other sessions."""
        tenant, fact = compacted.order.identity.tenant, refusal_fact(compacted.situation)
        self._facts[tenant] = self._facts.get(tenant, frozenset()) | {fact}
        try:
            await self.compactor.sessions.append_later(tenant, compacted.ledger, [Learnt(fact)])
            await self.parts.store.put_fact(tenant, fact, b"1")
        except StoreError as error:
            log.warning("fact_not_stored", fact=fact, error=error.message)


class _Job:
    """One request on its way through the gateway; also does what its turn asks for (`turn.Rounds`)."""

    def __init__(self, gateway: CompactingGateway, exchange: Exchange, responder: Responder) -> None:
        self._gateway = gateway
        self._parts = gateway.parts
        self._exchange = exchange
        self._responder = responder
        self._compacted: Compacted | None = None
        self._provider: Provider
        self._sends: Callable[..., UpstreamRequest]
        self.outcome = Outcome(body_bytes=len(exchange.body))

    async def run(self) -> None:
        """Serve the request."""
        settings = self._parts.settings()
        preset = choose_preset(self._exchange, settings)
        envelope = self._open_envelope()
        provider = self._parts.provider("" if envelope is None else _model(envelope))
        caller = identify(
            self._exchange.headers,
            self._parts.secret,
            provider.api_key,
            is_loopback=self._exchange.client_is_loopback,
        )
        self._provider = provider
        self._sends = _Sender(self._exchange, provider, caller).request
        if not preset.policies:
            await self._pass_on(await self._ask(self._exchange.body))
        elif envelope is None:
            await self._answer(await self._ask(self._exchange.body, readable=self._wants_stream(None)))
        else:
            self._compacted = await self._compact(envelope, caller, provider, preset)
            await self._converse(envelope)

    async def _converse(self, envelope: Envelope) -> None:
        compacted = self._compacted
        body = self._exchange.body if compacted is None else compacted.body
        readable = self._reader is not None or self._guard is not None or self._wants_stream(envelope)
        response = await self._ask(body, readable=readable)
        if compacted is None or self._reader is None or response.status not in _REFUSAL_STATUSES:
            await self._answer(response)
            return
        refusal = await response.read()
        if _TOOL_WORDS.search(refusal) and not _PAIRING_WORDS.search(refusal):
            await self._try_without_tool(compacted, readable=readable)
        else:
            await self._pass_on(response, refusal)

    @property
    def _sent(self) -> Compacted | None:
        """The compacted request, where that is what goes upstream."""
        if self._compacted is None or self.outcome.bypassed or self._compacted.order.preset.shadow:
            return None
        return self._compacted

    @property
    def _reader(self) -> str | None:
        """Name of the reading tool, where it is declared."""
        return self._sent.plan.reader if self._sent else None

    @property
    def _guard(self) -> Guard | None:
        """The stubs in the request, where there are any."""
        return self._gateway.compactor.guard(self._sent) if self._sent else None

    def _open_envelope(self) -> Envelope | None:
        try:
            return open_envelope(self._exchange.body)
        except NotAnEnvelope:
            self.outcome.bypassed = "body"
            return None

    async def _compact(
        self, envelope: Envelope, caller: Caller, provider: Provider, preset: Preset
    ) -> Compacted | None:
        """Return the compacted request; None, with the reason noted, when that is impossible (law f)."""
        began = time.perf_counter()
        try:
            asking = Asking(caller.tenant, asked_output(envelope.value))
            model, origin = _model(envelope), provider.target.origin
            order = Order(
                identity=Identity(caller.tenant, session_key(self._exchange, envelope)),
                envelope=envelope,
                preset=preset,
                takes_tools_with_json=provider.target.origin.endswith(_VETTED_HOSTS),
                facts=await self._gateway.facts_of(caller.tenant),
                room_tokens=self._gateway.budget.room(self._parts.settings(), preset, origin, model, asking),
                means=self._means(model, origin, preset, asking),
            )
            self.outcome.compacted = await self._gateway.compactor.compact(order)
        except StoreError as error:
            self.outcome.bypassed = error.code
            log.warning("bypassed", reason=error.code, error=error.message)
        except (NotAnEnvelope, RecursionError) as error:
            self.outcome.bypassed = "body"
            log.info("bypassed", reason="body", error=str(error))
        except Exception:
            # Whatever is wrong with us must not cost the client its answer.
            self.outcome.bypassed = "internal"
            log.exception("bypassed", reason="internal")
        self.outcome.compaction_seconds = time.perf_counter() - began
        return self.outcome.compacted

    def _means(self, model: str, origin: str, preset: Preset, asking: Asking) -> Means | None:
        """Return what compactions of this request go by; None where the preset makes none."""
        settings, budget = self._parts.settings(), self._gateway.budget
        bounds = budget.bounds(settings, preset, origin, model, asking)
        if bounds is None:
            return None

        async def ask(body: bytes) -> UpstreamResponse:
            return await self._parts.transport.open(self._sends(body, readable=True))

        return Means(bounds, ask, model, lambda name: budget.fitting(settings, origin, name))

    async def _ask(self, body: bytes, *, readable: bool = False) -> UpstreamResponse:
        began = time.perf_counter()
        response = await self._parts.transport.open(self._sends(body, readable=readable))
        self.outcome.upstream_seconds += time.perf_counter() - began
        return response

    async def _try_without_tool(self, compacted: Compacted, *, readable: bool) -> None:
        """Send the client's own body to an upstream that does not take the reading tool, and remember that."""
        response = await self._ask(self._exchange.body, readable=readable)
        self.outcome.bypassed = "tool_refused"
        if response.status in _OK:
            await self._gateway.learn_refusal(compacted)
        await self._answer(response)

    async def _answer(self, response: UpstreamResponse) -> None:
        """Relay an answer of the first round, through the interceptor where there is something to read or to splice."""
        guard = self._guard
        if response.status not in _OK or not (response.is_event_stream or self._reader or guard):
            await self._pass_on(response)
            return
        options = InterceptOptions(
            tool=self._reader,
            rounds=self._compacted.order.preset.rounds if self._compacted else 0,
            wants_usage=self._wants_usage(),
            streaming=response.is_event_stream,
            json_mode=self._compacted is not None and self._compacted.situation.is_json,
            guard=guard,
            salt=self._compacted.ledger.id.encode() if self._compacted else b"",
        )
        turn = Turn(Interceptor(options), self, self._responder)
        headers = [*response_headers(response.headers, response.status), *self.outcome.headers()]
        if response.is_event_stream:
            seconds = self._parts.settings().server.keepalive_seconds
            await turn.stream(response, headers, seconds)
        else:
            body = await response.read()
            if not self._is_ours(body, guard):
                await self._responder.start(response.status, headers)
                await self._responder.finish(body)
                self._learn(sum_usage([read_usage(body)]))
                return
            await turn.whole(response.status, body, headers)
        if self._compacted is not None:
            self._account(self._compacted, turn.summary)

    def _is_ours(self, body: bytes, guard: Guard | None) -> bool:
        """Say whether a whole answer may hold a call or a stub of ours; most do not, and need not be taken apart."""
        has_call = self._reader is not None and self._reader.encode() in body
        return has_call or (guard is not None and _STUB_START in body) or b"\\u" in body

    def _account(self, compacted: Compacted, summary: Summary) -> None:
        """Add what the turn came to to the session, and compare our estimate with what was reported."""
        if summary.reads:
            self._gateway.compactor.note_reads(compacted, summary.reads)
        elif summary.finished is not None:
            self._learn(summary.finished.usage)

    def _learn(self, usage: dict[str, object] | None) -> None:
        if self._compacted is not None:
            origin, model = self._provider.target.origin, self._compacted.situation.model
            self._gateway.budget.learn(origin, model, self._compacted.sent_tokens, usage)

    async def _pass_on(self, response: UpstreamResponse, body: bytes | None = None) -> None:
        """Relay an answer byte for byte: as it comes, or the body that was read already."""
        headers = response_headers(response.headers, response.status)
        await self._responder.start(response.status, [*headers, *self.outcome.headers()])
        if body is not None:
            await self._responder.finish(body)
            return
        try:
            async for data in response:
                await self._responder.send(data)
        finally:
            await response.close()
        await self._responder.finish()

    def _wants_stream(self, envelope: Envelope | None) -> bool:
        return envelope is None or envelope.value("stream") is True

    def _wants_usage(self) -> bool:
        if self._compacted is None:
            return False
        options = self._compacted.order.envelope.value("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    async def open(self, messages: tuple[bytes, ...], *, with_tool: bool) -> UpstreamResponse:
        """Open a hidden round: the same request with these messages behind its own."""
        compacted = self._required()
        body = compacted.body if with_tool else self._gateway.compactor.without_tool(compacted)
        return await self._ask(append_messages(open_envelope(body), messages), readable=True)

    async def answer(self, uses: tuple[ToolUse, ...]) -> tuple[str, ...]:
        """Answer calls of the reading tool."""
        compacted = self._required()
        scope = ReadScope(
            tenant=compacted.order.identity.tenant,
            ledger=compacted.ledger,
            history=compacted.history,
            plan=compacted.plan,
            read_tokens=compacted.order.preset.read_tokens,
        )
        return tuple(await asyncio.gather(*(self._gateway.reader.answer(use, scope) for use in uses)))

    async def remember(self, turn: HiddenTurn) -> None:
        """Write a hidden turn into the ledger; without it the next request loses a cached prefix, and no more."""
        compacted = self._required()
        match = self._gateway.compactor.messages.match_of(turn.visible)
        entry = Hidden(position=compacted.length, match=match, turn=turn)
        try:
            await self._gateway.compactor.sessions.append_later(
                compacted.order.identity.tenant, compacted.ledger, [entry]
            )
        except StoreError as error:
            log.warning("hidden_turn_not_stored", error=error.message)

    def _required(self) -> Compacted:
        if self._compacted is None:
            raise AssertionError("only a compacted request has hidden rounds")
        return self._compacted


class _Sender:
    """Makes the upstream requests of one exchange."""

    def __init__(self, exchange: Exchange, provider: Provider, caller: Caller) -> None:
        self._exchange = exchange
        self._target = provider.target
        self._caller = caller

    def request(self, body: bytes, *, readable: bool) -> UpstreamRequest:
        """Return a request; `readable` asks for an answer without a content coding."""
        is_changed = body is not self._exchange.body
        headers = request_headers(self._exchange.headers, changed=is_changed, readable=readable)
        return UpstreamRequest(
            target=self._target,
            method=self._exchange.method,
            path=self._exchange.path,
            headers=[*headers, *self._caller.credential],
            raw_query=self._exchange.raw_query,
            body=body,
        )


def _model(envelope: Envelope) -> str:
    model = envelope.value("model")
    return model if isinstance(model, str) else ""
