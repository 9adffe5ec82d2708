"""One request from start to end: the only place where effects are put in sequence.

1 choose the preset        settings      header or default -> preset, 400; one without policies is a plain relay
2 identify the caller      tenants       credential -> tenant and what goes upstream, 401
3 compact                  compaction    body -> shorter body; whatever breaks here: the client's own body (law f)
4 ask the upstream         upstream      a refusal of the reading tool is answered by one try without it
5 relay, splice, remember  turn          answer -> client, reads answered in between
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import structlog

from proxy.access import Provider
from proxy.budget import Asking, Sent
from proxy.compaction import Compacted, Compactor, Order
from proxy.complaint import hear
from proxy.core.envelope import Envelope, NotAnEnvelope, open_envelope
from proxy.core.guard import Guard
from proxy.core.intercept import InterceptOptions, Interceptor
from proxy.core.overflow import Overflow
from proxy.core.stub import STUB_START
from proxy.core.usage import sum_usage
from proxy.core.wire.chat_body import read_usage
from proxy.counting import Counter
from proxy.directives import choose_preset, session_key
from proxy.errors import ProxyError, StoreError, error_body
from proxy.exchange import Exchange, Responder
from proxy.experience import Experience
from proxy.headers import response_headers
from proxy.hidden_rounds import HiddenRounds
from proxy.lessons import Place
from proxy.occasion import Means
from proxy.outcome import Outcome
from proxy.presets import Preset
from proxy.reader import Reader
from proxy.room import asked_output
from proxy.sender import Sender
from proxy.sessions import Identity
from proxy.settings import Settings
from proxy.shortening import Shortener
from proxy.store.base import Store, StoreOptions
from proxy.tenants import Caller, identify
from proxy.turn import Summary, Turn
from proxy.units import parse_size
from proxy.upstream import Transport, UpstreamRequest, UpstreamResponse

log = structlog.get_logger()

_OK = range(200, 300)
_READING_LIMIT = parse_size("85%")
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
    questions: Transport  # for what is asked of upstreams about themselves
    counter: Counter


class CompactingGateway:
    """Serves the compacting route."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.compactor = Compactor(parts.store, parts.secret, parts.counter, parts.store_options)
        self.reader = Reader(parts.store, self.compactor.adapter, parts.counter)
        self.experience = Experience(self.compactor.sessions, parts.counter, parts.questions)

    async def close(self) -> None:
        """Stop what runs in the background."""
        await self.experience.close()
        await self.compactor.close()

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


class _Job:
    """One request on its way through the gateway."""

    def __init__(self, gateway: CompactingGateway, exchange: Exchange, responder: Responder) -> None:
        self._gateway = gateway
        self._experience = gateway.experience
        self._parts = gateway.parts
        self._exchange = exchange
        self._responder = responder
        self._compacted: Compacted | None = None
        self._provider: Provider
        self._sender: Sender
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
        self._sender = Sender(self._exchange, provider, caller)
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
        response = response if compacted is None else await self._heeded(compacted, response)
        await self._answer(response)
        if self._sent is not None and response.status in _OK:
            self._gateway.compactor.begin_narrative(self._sent)

    async def _heeded(self, compacted: Compacted, response: UpstreamResponse) -> UpstreamResponse:
        """Return the answer to relay: what can be mended is mended and asked for once more."""
        complaint = await hear(response, compacted.sent_tokens)
        if complaint.overflow is not None:
            return await self._try_shorter(compacted, response, complaint.overflow)
        if complaint.names_tool and self._reader is not None:
            return await self._try_without_tool(compacted, response)
        return response

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
    def _others(self) -> tuple[str, ...]:
        """Names of our other tools, which are declared with the reading tool alone."""
        return (self._sent.plan.offer,) if self._sent and self._sent.plan.offer else ()

    @property
    def _guard(self) -> Guard | None:
        """The stubs in the request, where there are any."""
        return self._gateway.compactor.guard(self._sent) if self._sent else None

    @property
    def _rounds(self) -> HiddenRounds | None:
        if self._compacted is None:
            return None
        gateway = self._gateway
        return HiddenRounds(self._compacted, gateway.compactor, gateway.reader, self._shortener, self._ask_again)

    @property
    def _shortener(self) -> Shortener:
        gateway, origin = self._gateway, self._provider.target.origin
        return Shortener(gateway.compactor, gateway.experience, origin, self._parts.settings)

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
                facts=await self._experience.facts_of(caller.tenant),
                room_tokens=self._experience.budget.room(self._parts.settings(), preset, origin, model, asking),
                output_tokens=asking.output.tokens or 0,
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
        settings, budget = self._parts.settings(), self._experience.budget
        bounds = budget.bounds(settings, preset, origin, model, asking)
        if bounds is None:
            return None

        async def ask(body: bytes, wanted: str) -> UpstreamResponse:
            sender = self._sender if wanted == model else self._sender.towards(self._parts.provider(wanted))
            return await self._parts.transport.open(sender.further(body))

        def window_of(wanted: str) -> int:
            return budget.fitting(settings, self._parts.provider(wanted).target.origin, wanted)

        roomy = msgspec.structs.replace(preset, limit=_READING_LIMIT)
        return Means(bounds, ask, model, window_of, budget.room(settings, roomy, origin, model, asking))

    async def _ask(self, body: bytes, *, readable: bool = False) -> UpstreamResponse:
        return await self._open(self._sender.first(body, readable=readable))

    async def _ask_again(self, body: bytes) -> UpstreamResponse:
        return await self._open(self._sender.further(body))

    async def _open(self, request: UpstreamRequest) -> UpstreamResponse:
        began = time.perf_counter()
        response = await self._parts.transport.open(request)
        self.outcome.upstream_seconds += time.perf_counter() - began
        if response.status in _OK and self._wants_window:
            self._experience.served(request, self._model)
        return response

    @property
    def _wants_window(self) -> bool:
        """Whether the window of the model matters, and nobody has set it."""
        compacts = self._compacted is not None and self._compacted.order.means is not None
        return compacts and self._parts.settings().window_for(self._model) is None

    async def _try_without_tool(self, compacted: Compacted, refused: UpstreamResponse) -> UpstreamResponse:
        """Send the client's own body to an upstream that does not take the reading tool, and remember that."""
        await refused.close()
        response = await self._ask_again(self._exchange.body)
        self.outcome.bypassed = "tool_refused"
        if response.status in _OK:
            await self._experience.refuses_tool(compacted)
        return response

    async def _try_shorter(
        self, refused: Compacted, response: UpstreamResponse, overflow: Overflow
    ) -> UpstreamResponse:
        """Compact harder a prompt that was too long and ask again; where that is in vain, the refusal stands."""
        room = await self._shortener.room(refused, overflow)
        if self._sent is None or room is None:
            return response
        shorter = await self._shortener.shorten(refused, room)
        if shorter is None:
            return response
        second = await self._ask_again(shorter.body)
        complaint = await hear(second, shorter.sent_tokens)
        if complaint.overflow is not None:
            await self._shortener.room(shorter, complaint.overflow)
            await second.close()
            return response
        await response.close()
        self._compacted = self.outcome.compacted = shorter
        return second

    async def _answer(self, response: UpstreamResponse) -> None:
        """Relay an answer of the first round, through the interceptor where there is something to read or to splice."""
        guard = self._guard
        if response.status not in _OK or not (response.is_event_stream or self._sent):
            await self._pass_on(response)
            return
        options = InterceptOptions(
            tool=self._reader,
            rounds=self._compacted.order.preset.rounds if self._compacted else 0,
            wants_usage=self._wants_usage(),
            streaming=response.is_event_stream,
            json_mode=self._compacted is not None and self._compacted.situation.is_json,
            guard=guard,
            others=self._others,
            salt=self._compacted.ledger.id.encode() if self._compacted else b"",
        )
        turn = Turn(Interceptor(options), self._rounds, self._responder)
        headers = [*response_headers(response.headers, response.status), *self.outcome.headers()]
        if response.is_event_stream:
            seconds = self._parts.settings().server.keepalive_seconds
            await turn.stream(response, headers, seconds)
        else:
            body = await response.read()
            if not self._is_ours(body, guard):
                await self._responder.start(response.status, headers)
                await self._responder.finish(body)
                await self._learn(sum_usage([read_usage(body)]))
                return
            await turn.whole(response.status, body, headers)
        if self._compacted is not None:
            await self._account(self._compacted, turn.summary)

    def _is_ours(self, body: bytes, guard: Guard | None) -> bool:
        """Say whether a whole answer may hold a call or a stub of ours; most do not, and need not be taken apart."""
        has_call = self._reader is not None and any(name.encode() in body for name in (self._reader, *self._others))
        return has_call or (guard is not None and _STUB_START in body) or b"\\u" in body

    async def _account(self, compacted: Compacted, summary: Summary) -> None:
        """Add what the turn came to to the session, and compare our estimate with what was reported."""
        if summary.reads:
            self._gateway.compactor.note_reads(compacted, summary.reads)
        elif summary.finished is not None:
            await self._learn(summary.finished.usage)

    async def _learn(self, usage: dict[str, object] | None) -> None:
        compacted = self._compacted
        if compacted is not None:
            sent = Sent(compacted.body, compacted.weight, is_counted=compacted.counted_tokens is not None)
            await self._experience.reported(self._place(compacted), sent, usage)

    @property
    def _model(self) -> str:
        return self._compacted.situation.model if self._compacted is not None else ""

    def _place(self, compacted: Compacted) -> Place:
        return Place(compacted.order.identity.tenant, self._provider.target.origin, compacted.situation.model)

    async def _pass_on(self, response: UpstreamResponse) -> None:
        """Relay an answer byte for byte, as it comes."""
        headers = response_headers(response.headers, response.status)
        await self._responder.start(response.status, [*headers, *self.outcome.headers()])
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


def _model(envelope: Envelope) -> str:
    model = envelope.value("model")
    return model if isinstance(model, str) else ""
