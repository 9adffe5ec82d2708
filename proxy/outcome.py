"""What the answer says of the gateway's own work: the `x-ullage-*` headers and `server-timing`."""

from __future__ import annotations

import time

import msgspec

from proxy.compaction import Compacted as CompactedRequest
from proxy.core.ledger import Compacted, Offloaded
from proxy.headers import Headers

_BYTES_PER_TOKEN = 4


class Outcome(msgspec.Struct):
    """What became of one request; filled in on the way."""

    body_bytes: int
    started: float = msgspec.field(default_factory=time.perf_counter)
    compacted: CompactedRequest | None = None
    bypassed: str | None = None  # the reason word
    compaction_seconds: float = 0.0
    upstream_seconds: float = 0.0

    def headers(self) -> Headers:
        """Return the headers for the client."""
        out: Headers = [
            (b"x-ullage-compaction", self._compaction().encode()),
            (b"x-ullage-tokens", b"received=%d, sent=%d" % self._tokens()),
            (b"server-timing", self._timing().encode()),
        ]
        if self.compacted is not None:
            out.append((b"x-ullage-session", self.compacted.ledger.id.encode()))
        return out

    def _compaction(self) -> str:
        if self.bypassed is not None:
            return f"bypassed; reason={self.bypassed}"
        if self.compacted is None:
            return "none"
        made = self.compacted
        new = sum(isinstance(entry, Offloaded | Compacted) for entry in made.plan.entries)
        if made.plan.is_over and not new:  # a break of the prefix is declared all the same
            return "bypassed; reason=over_limit"
        if not made.edits and not made.compactions:
            return "none"
        state = "shadow" if made.order.preset.shadow else "applied"
        return f"{state}; edits={made.edits}; new={new}; compactions={made.compactions}"

    def _tokens(self) -> tuple[int, int]:
        if self.compacted is None:
            estimate = self.body_bytes // _BYTES_PER_TOKEN
            return estimate, estimate
        received = self.compacted.received_tokens
        return received, received if self.bypassed else self.compacted.sent_tokens

    def _timing(self) -> str:
        return f"plan;dur={self.compaction_seconds * 1000:.1f}, upstream;dur={self.upstream_seconds * 1000:.1f}"
