"""Offer the model a tool with which it asks for a compaction itself."""

from __future__ import annotations

from typing import ClassVar

from proxy.core.policy import CompactionPolicy


class OfferCompaction(CompactionPolicy, frozen=True, tag="offer_compaction"):
    """Declare `compact_conversation`: a model that has finished a part of its work can drop what led there.

    In no built-in preset: the tool costs tokens in every request, and most models never call it. A call is answered by
    the gateway; the compaction is made by the client's next request, and refused below half of the trigger.
    """

    summary: ClassVar[str] = "the model can ask for a compaction itself"
