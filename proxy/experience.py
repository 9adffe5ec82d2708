"""What the gateway learns of upstreams on the way: which refuse its tool, how large windows are, how far it is off.

What matters after a restart and on other replicas is kept as a fact of the tenant.
"""

from __future__ import annotations

import structlog

from proxy.budget import Budget, Sent
from proxy.compaction import Compacted, refusal_fact
from proxy.core.ledger import Learnt
from proxy.counting import Counter
from proxy.discovery import Discovery
from proxy.errors import StoreError
from proxy.lessons import Place, Refusal
from proxy.sessions import Sessions
from proxy.upstream import Transport, UpstreamRequest

log = structlog.get_logger()


class Experience:
    """Gathers lessons and says what is known."""

    def __init__(self, sessions: Sessions, counter: Counter, questions: Transport) -> None:
        self.budget = Budget()
        self._sessions = sessions
        self._counter = counter
        self._facts: dict[str, frozenset[str]] = {}
        self._discovery = Discovery(questions, self.budget.windows)

    async def close(self) -> None:
        """Stop asking."""
        await self._discovery.close()

    async def facts_of(self, tenant: str) -> frozenset[str]:
        """Return what was learnt about this tenant's upstreams; the store is asked once."""
        known = self._facts.get(tenant)
        if known is None:
            facts = await self._sessions.store.facts(tenant)
            self.budget.lessons.recall(tenant, facts)
            known = self._facts[tenant] = frozenset(facts)
        return known

    def served(self, request: UpstreamRequest, model: str) -> None:
        """Take in that an upstream serves a model: it may be asked for the window."""
        self._discovery.notice(request.target, request.headers, model)

    async def refuses_tool(self, compacted: Compacted) -> None:
        """Remember that the reading tool is refused: in this session's ledger, and for the tenant's other sessions."""
        tenant, fact = compacted.order.identity.tenant, refusal_fact(compacted.situation)
        self._facts[tenant] = self._facts.get(tenant, frozenset()) | {fact}
        try:
            await self._sessions.append_later(tenant, compacted.ledger, [Learnt(fact)])
        except StoreError as error:
            log.warning("fact_not_stored", fact=fact, error=error.message)
        await self._keep(tenant, fact, b"1")

    async def refuses_length(self, place: Place, refusal: Refusal) -> None:
        """Remember how much did not fit."""
        fact, value = self.budget.refused(place, refusal)
        log.info("prompt_too_long", upstream=place.upstream, model=place.model, sent_tokens=refusal.sent_tokens)
        await self._keep(place.tenant, fact, value)

    async def reported(self, place: Place, sent: Sent, usage: dict[str, object] | None) -> None:
        """Compare our estimate with what an upstream reports; a report that is far too low is looked into."""
        is_counted = sent.is_counted
        if self.budget.learn(place.upstream, place.model, sent.estimate_tokens, usage, is_counted=is_counted):
            await self.budget.examine(self._counter, place, sent, usage)

    async def _keep(self, tenant: str, fact: str, value: bytes) -> None:
        try:
            await self._sessions.store.put_fact(tenant, fact, value)
        except StoreError as error:
            log.warning("fact_not_stored", fact=fact, error=error.message)
