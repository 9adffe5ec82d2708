"""Drop the reasoning of old turns, at a compaction."""

from __future__ import annotations

from typing import ClassVar

from proxy.core.policy import CompactionPolicy


class ClearReasoning(CompactionPolicy, frozen=True, tag="clear_reasoning"):
    """At a compaction that is made anyway, leave out what assistant messages in front of the kept steps have thought.

    Never of the turn that is going on: what comes behind the newest user message keeps it, since models that think
    between their calls refuse a turn without it, and signatures bind it. Turns with hidden reads keep it, too. Where a
    provider wants the field to be there in a message with calls (`reasoning_content`) it stays, empty. Signatures of
    calls stay. The record has every message whole.
    """

    summary: ClassVar[str] = "reasoning of old turns leaves at a compaction"
