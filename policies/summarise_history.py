"""Replace the oldest turns by one block, at a compaction."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from proxy.core.duration import Seconds
from proxy.core.policy import CompactionPolicy

_Text = Annotated[str, Meta(min_length=1)]


class SummariseHistory(CompactionPolicy, frozen=True, tag="summarise_history"):
    """At a compaction, put the oldest turns into one block: what the user said verbatim, what was done, a summary.

    `summarise` has a model write the summary, `mechanical` does without. `selective` keeps the best steps of what is
    replaced verbatim behind the block, chosen by code, and asks no model; `hybrid` does so and has a summary as well.

    `ratio` is the share of what is replaced, in tokens, that may stay. Steps are kept up to it while the request
    remains within the preset's target; a summary longer than it, than half of the target, or than a quarter of it
    beside steps, is cut at the ends of its longest sections. What code puts into the block counts against the target
    alone: the user's words, what was done, how to read it back.
    """

    summary: ClassVar[str] = "the oldest turns become one block at a compaction"

    strategy: Literal["summarise", "selective", "hybrid", "mechanical"] = "summarise"
    keep_steps: Annotated[int, Meta(ge=0, description="Newest steps that stay verbatim.")] = 3
    keep_messages: Annotated[int, Meta(ge=0, description="Or newest messages; the larger wins.")] = 0
    ratio: Annotated[float, Meta(gt=0, le=1, description="How much of what is replaced may stay.")] = 0.3
    model: Annotated[_Text | None, Meta(description="Unset: the request's own model.")] = None
    wait_seconds: Annotated[Seconds, Meta(description="How long a request at the limit waits.")] = 20.0
    prompt: Annotated[_Text | None, Meta(description="Instructions instead of the built-in ones.")] = None

    @property
    def narrates(self) -> bool:
        """Whether a model writes a summary."""
        return self.strategy in ("summarise", "hybrid")

    @property
    def selects(self) -> bool:
        """Whether the best steps stay."""
        return self.strategy in ("selective", "hybrid")
