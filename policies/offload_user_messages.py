"""Move large user texts out when they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from proxy.core.policy import Offload, Policy, View

_CHARACTERS_PER_TOKEN = 4


class OffloadUserMessages(Policy, frozen=True, tag="offload_user_messages"):
    """Offload user texts over a limit; images and other parts stay in place."""

    summary: ClassVar[str] = "large user texts leave the context when they arrive"

    over_tokens: int = 8000
    head_lines: int = 10
    tail_lines: int = 5
    counting: Literal["tokens", "characters"] = "tokens"  # characters: four are a token

    def edits(self, view: View) -> Iterator[Offload]:
        """Yield the user texts over the limit."""
        characters = self.over_tokens * _CHARACTERS_PER_TOKEN
        for text in view.texts("user"):
            if self.counting == "characters":
                is_over = text.size_bytes > characters and view.characters(text) > characters
            else:
                is_over = view.is_over(text, self.over_tokens)
            if is_over:
                yield Offload(text, "over_limit", self.head_lines, self.tail_lines)
