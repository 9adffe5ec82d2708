"""A request for which a compaction may be due, and what it may be made with."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from policies.summarise_history import SummariseHistory
from proxy.core.compaction import Bounds
from proxy.core.envelope import Envelope
from proxy.core.history import History
from proxy.core.ledger import Compacted
from proxy.presets import Preset
from proxy.sessions import Known
from proxy.summarise import Ask

_BEYOND_DOUBT = 2  # estimates are never so far off


class Means(msgspec.Struct, frozen=True):
    """What one request allows: its bounds in tokens as we count them, and who may be asked for a narrative."""

    bounds: Bounds
    ask: Ask
    model: str  # of the request
    window_of: Callable[[str], int]  # of a model, in tokens as we count them
    most_tokens: int = 1 << 40  # of a round in which something is read, however low the preset's limit is

    def at_limit(self) -> Means:
        """Return the means of a request that is compacted only where it would not fit."""
        bounds = msgspec.structs.replace(self.bounds, trigger_tokens=self.bounds.limit_tokens)
        return msgspec.structs.replace(self, bounds=bounds)

    def for_repeat(self) -> Means:
        """Return the means of a request that was answered before: it fits, whatever is thought of its size today.

        Only what another model can never take is compacted all the same.
        """
        most = _BEYOND_DOUBT * self.bounds.limit_tokens
        return msgspec.structs.replace(self, bounds=Bounds(most, most, self.bounds.target_tokens))

    def within(self, tokens: int) -> Means:
        """Return the means of a request that may have so many tokens at most."""
        bounds = self.bounds
        tight = Bounds(min(bounds.trigger_tokens, tokens), tokens, min(bounds.target_tokens, tokens))
        return msgspec.structs.replace(self, bounds=tight)


class Occasion(msgspec.Struct, frozen=True):
    """A request for which a compaction may be due."""

    history: History
    known: Known
    envelope: Envelope
    preset: Preset
    means: Means
    reader: str | None  # the reading tool, as it can be declared
    last_body: Callable[[], bytes]  # what the upstream got for the known part of the history, and may have cached

    @property
    def writer(self) -> SummariseHistory | None:
        """The policy that wants a narrative; None where the block does without, and in a rehearsal, which is free."""
        policy = summarise_policy(self.preset)
        return None if policy is None or not policy.narrates or self.preset.shadow else policy

    @property
    def folded(self) -> Compacted | None:
        """The block in force."""
        recognition = self.known.recognition
        return recognition.ledger.folded(self.history.length + recognition.shift)

    def position(self, index: int) -> int:
        """Return the position in the ledger's chain of a message of this request."""
        return index - self.history.leading + self.known.recognition.shift

    def index(self, position: int) -> int:
        """Return the index in this request of a message of the ledger's chain."""
        return position - self.known.recognition.shift + self.history.leading


def summarise_policy(preset: Preset) -> SummariseHistory | None:
    """Return the policy of a preset that folds old turns into a block."""
    return next((p for p in preset.policies if isinstance(p, SummariseHistory)), None)
