"""What a policy sees and says: a view of texts that nothing was decided about yet, and the edits it asks for.

A policy *is* its configuration: a frozen Struct whose tag is its name in the config file. It is pure and sees only
candidates, so it cannot touch what is pinned, already decided or not its kind. Policies run in the order of their
preset; each sees which candidates the earlier ones took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import msgspec

from proxy.core.history import Kind
from proxy.core.ledger import Reason


class Candidate(msgspec.Struct, frozen=True):
    """One text that may be moved out: where it is, what it is, how large."""

    message: int
    at: int
    kind: Kind
    exact: bytes
    size_bytes: int
    tool: str | None = None
    block: int | None = None  # index of the assistant message whose calls are answered together


class Offload(msgspec.Struct, frozen=True):
    """Asks for a text to be stored and replaced by a stub with this many lines of preview."""

    candidate: Candidate
    reason: Reason
    head_lines: int
    tail_lines: int


class View:
    """The undecided texts of a history. `count` gives exact tokens, `characters` the length of the text."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        count: Callable[[Candidate], int],
        characters: Callable[[Candidate], int],
    ) -> None:
        self._candidates = candidates
        self._count = count
        self._characters = characters
        self.taken: set[tuple[int, int]] = set()

    def texts(self, kind: Kind) -> Iterator[Candidate]:
        """Yield the candidates of a kind that no policy has taken yet, oldest first."""
        for candidate in self._candidates:
            if candidate.kind == kind and (candidate.message, candidate.at) not in self.taken:
                yield candidate

    def blocks(self) -> Iterator[list[Candidate]]:
        """Yield the results that answer one assistant message together, taken ones left out."""
        groups: dict[int, list[Candidate]] = {}
        for candidate in self.texts("result"):
            if candidate.block is not None:
                groups.setdefault(candidate.block, []).append(candidate)
        yield from groups.values()

    def tokens(self, candidate: Candidate) -> int:
        """Return the exact o200k tokens of a candidate."""
        return self._count(candidate)

    def is_over(self, candidate: Candidate, limit_tokens: int) -> bool:
        """Say whether the text has more tokens than the limit; a token is a byte at least, so few bytes tell."""
        return candidate.size_bytes > limit_tokens and self._count(candidate) > limit_tokens

    def characters(self, candidate: Candidate) -> int:
        """Return the length of the text in characters."""
        return self._characters(candidate)


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="policy"):
    """Base of all policies."""

    summary: ClassVar[str] = ""

    @classmethod
    def name(cls) -> str:
        """Return the name of the policy in the config file."""
        return str(cls.__struct_config__.tag)

    def edits(self, view: View) -> Iterator[Offload]:
        """Yield what should be moved out."""
        raise NotImplementedError


class CompactionPolicy(Policy, frozen=True, kw_only=True):
    """Base of policies that act at a compaction: they ask for nothing when a text arrives."""

    def edits(self, _view: View) -> Iterator[Offload]:
        """Yield nothing."""
        yield from ()
