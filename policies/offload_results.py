"""Move large tool results out when they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from proxy.core.policy import Candidate, Offload, Policy, View

Natural = Annotated[int, Meta(ge=0)]

_CHARACTERS_PER_TOKEN = 4


class OffloadResults(Policy, frozen=True, tag="offload_results"):
    """Offload tool results over a limit, and the largest of parallel ones that are too large together."""

    summary: ClassVar[str] = "large tool results leave the context when they arrive"

    over_tokens: Natural = 8000
    per_turn_tokens: Natural | None = 16_000  # answers of one assistant message together; unset: no limit
    head_lines: Natural = 10
    tail_lines: Natural = 5
    exclude_tools: tuple[str, ...] = ()
    counting: Literal["tokens", "characters"] = "tokens"  # characters: four are a token

    def edits(self, view: View) -> Iterator[Offload]:
        """Yield single results over the limit, then the largest of blocks over theirs."""
        for result in view.texts("result"):
            if not self._is_excluded(result) and self._is_over(view, result):
                yield Offload(result, "over_limit", self.head_lines, self.tail_lines)
        if self.per_turn_tokens is not None:
            limit = max(self.per_turn_tokens, self.over_tokens)  # one result within its limit is never too much
            for block in view.blocks():
                yield from self._largest(view, block, limit)

    def _largest(self, view: View, block: list[Candidate], limit: int) -> Iterator[Offload]:
        """Yield the largest results of a block until the rest is within the limit."""
        if sum(r.size_bytes for r in block) <= limit:
            return
        tokens = {r.exact: view.tokens(r) for r in block}
        total = sum(tokens[r.exact] for r in block)
        for result in sorted(block, key=lambda r: (-tokens[r.exact], r.message, r.at)):
            if total <= limit:
                return
            if not self._is_excluded(result):
                total -= tokens[result.exact]
                yield Offload(result, "per_turn_limit", self.head_lines, self.tail_lines)

    def _is_over(self, view: View, result: Candidate) -> bool:
        if self.counting == "characters":
            limit = self.over_tokens * _CHARACTERS_PER_TOKEN
            return result.size_bytes > limit and view.characters(result) > limit
        return view.is_over(result, self.over_tokens)

    def _is_excluded(self, result: Candidate) -> bool:
        return result.tool is not None and any(fnmatchcase(result.tool, p) for p in self.exclude_tools)
