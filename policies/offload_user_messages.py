"""Move large user texts out when they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from proxy.core.policy import Offload, Policy, View

Natural = Annotated[int, Meta(ge=0)]

_CHARACTERS_PER_TOKEN = 4


class OffloadUserMessages(Policy, frozen=True, tag="offload_user_messages"):
    """Offload user texts over a limit; images and other parts stay in place."""

    summary: ClassVar[str] = "large user texts leave the context when they arrive"

    over_tokens: Natural = 8000
    head_lines: Natural = 10
    tail_lines: Natural = 5
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
