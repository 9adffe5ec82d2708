"""Move long inputs of old tool calls out, at a compaction."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from proxy.core.policy import CompactionPolicy


class TruncateInputs(CompactionPolicy, frozen=True, tag="truncate_inputs"):
    """At a compaction, replace long texts in the inputs of old tool calls by references; they stay valid JSON."""

    summary: ClassVar[str] = "long inputs of old tool calls become references at a compaction"

    over_chars: Annotated[int, Meta(ge=1, description="Texts in inputs over this leave.")] = 2000
