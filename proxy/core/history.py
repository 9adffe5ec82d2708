"""The neutral history: what decisions need to know about each message, whatever wire format it came in.

A wire adapter turns raw messages into `Facts`. Facts are a pure function of the raw bytes, so they are memoised by the
hash of these bytes and a known message is never parsed twice. Two digests per message:

- *match*: by meaning and lenient, so that a client that re-serialises, drops fields or re-escapes is recognised. It
  finds tips, anchors and hidden turns.
- *exact*: of each text that may be moved out, byte for byte. It keys originals and edits.

The chain of match digests starts after the leading system and developer messages: these may hold a clock, are never
edited, and are no part of a conversation's identity. Pairing of calls and answers is by position, since ids repeat.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from proxy.core.memo import Memo

DIGEST_BYTES = 16
Role = Literal["system", "user", "assistant", "tool", "other"]
Kind = Literal["result", "user", "input"]


def digest(*pieces: bytes, key: bytes = b"") -> bytes:
    """Return 16 bytes that stand for these pieces in this order; their borders count."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES, key=key)
    for piece in pieces:
        state.update(len(piece).to_bytes(8, "little"))
        state.update(piece)
    return state.digest()


def text_bytes(text: str) -> bytes:
    """Return the exact bytes of a text; lone surrogates, which JSON can spell, included."""
    return text.encode("utf-8", "surrogatepass")


class Slot(msgspec.Struct, frozen=True):
    """A text of a message that a policy may move out."""

    at: int  # which text of the message, as its adapter numbers them
    kind: Kind
    exact: bytes
    size_bytes: int
    call_id: str | None = None  # of the call that a result answers


class CallFact(msgspec.Struct, frozen=True):
    """One tool call of an assistant message."""

    id: str | None
    name: str


class Facts(msgspec.Struct, frozen=True):
    """What is known of one message."""

    key: bytes  # hash of the raw bytes
    role: Role
    match: bytes
    slots: tuple[Slot, ...] = ()
    calls: tuple[CallFact, ...] = ()
    call_id: str | None = None  # of the call that a tool message answers
    estimated_tokens: int = 0  # bytes / 4, images by their size
    reasoning_bytes: int = 0  # how much shorter an assistant message is without its reasoning


class Adapter(Protocol):
    """One wire format: reads raw messages and writes changed ones."""

    format: str

    def facts(self, raw: bytes, key: bytes) -> Facts:
        """Return what is known of a raw message with this hash; never raises on valid JSON."""
        ...

    def text(self, raw: bytes, at: int) -> str:
        """Return the text of a slot."""
        ...

    def replace_texts(self, raw: bytes, texts: dict[int, str]) -> bytes:
        """Return the message with these slots changed and the container shape kept."""
        ...

    def reasoning(self, raw: bytes) -> str:
        """Return the reasoning that an assistant message tells in fields of its own."""
        ...

    def without_reasoning(self, raw: bytes) -> bytes:
        """Return an assistant message without its reasoning; all else keeps its bytes."""
        ...


class FactsMemo:
    """Facts by the hash of the raw bytes, bounded."""

    def __init__(self, adapter: Adapter, capacity: int = 32_768) -> None:
        self.adapter = adapter
        self._memo: Memo[bytes, Facts] = Memo(capacity)

    def look_up(self, messages: Sequence[bytes]) -> list[Facts]:
        """Return the facts of each raw message."""
        memo, sha256 = self._memo, hashlib.sha256
        out: list[Facts] = []
        for raw in messages:
            key = sha256(raw).digest()
            facts = memo.get(key)
            if facts is None:
                facts = self.adapter.facts(raw, key)
                memo.put(key, facts)
            out.append(facts)
        return out


class Block(msgspec.Struct, frozen=True):
    """An assistant message with all its answers, as indices into the history: [start, stop)."""

    start: int
    stop: int


class RawMessages(Sequence[bytes]):
    """The raw messages of a body, cut out when they are asked for."""

    def __init__(self, body: bytes, begin: int, starts: Sequence[int], stops: Sequence[int]) -> None:
        self._body = body
        self._begin = begin
        self._starts = starts
        self._stops = stops

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override] # nobody asks for slices
        start, stop = self.span(index)
        return self._body[start:stop]

    def span(self, index: int) -> tuple[int, int]:
        """Return where a message lies in the body."""
        return self._begin + self._starts[index], self._begin + self._stops[index]

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages, without what separates them."""
        return sum(self._stops) - sum(self._starts)


class History:
    """The messages of one request with their facts, digests and pairing."""

    def __init__(self, messages: RawMessages, facts: Sequence[Facts], links: bytes) -> None:
        self.messages = messages
        self.facts = facts
        self.leading = count_leading(facts)
        self._links = links

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def estimated_tokens(self) -> int:
        """Tokens of all messages, estimated."""
        return sum(f.estimated_tokens for f in self.facts)

    @property
    def opening(self) -> bytes:
        """Match digest of the first user message, else of the first message of the chain, else nothing."""
        chain = self.facts[self.leading :]
        first = next((f for f in chain if f.role == "user"), chain[0] if chain else None)
        return first.match if first else b""

    @property
    def length(self) -> int:
        """How many messages the chain has."""
        return len(self.facts) - self.leading

    def prefix(self, root: bytes, length: int) -> bytes:
        """Return the digest that stands, under a root, for the first messages of the chain."""
        return link(root, self._links[DIGEST_BYTES * length : DIGEST_BYTES * (length + 1)])

    def block_at(self, index: int) -> Block | None:
        """Return the block that holds the message at `index`: an assistant message, or a tool message behind one."""
        start = index
        while start > self.leading and self.facts[start].role == "tool":
            start -= 1
        if start < self.leading or self.facts[start].role != "assistant":
            return None
        stop = start + 1
        while stop < len(self.facts) and self.facts[stop].role == "tool":
            stop += 1
        return Block(start, stop)

    def newest_blocks(self, most: int) -> list[Block]:
        """Return the last blocks, in order."""
        out: list[Block] = []
        stop = len(self.facts)
        for index in range(len(self.facts) - 1, self.leading - 1, -1):
            role = self.facts[index].role
            if role == "assistant":
                out.append(Block(index, stop))
                if len(out) == most:
                    break
            if role != "tool":
                stop = index
        return out[::-1]

    def anchors(self, key: bytes, most: int) -> list[tuple[bytes, int]]:
        """Return (digest, index behind the block) for the last blocks that can identify this history, oldest first.

        An anchor covers its block and everything back to the block before it, so that neither short common answers
        ("ok") nor the same first step under another task join strangers.
        """
        out: list[tuple[bytes, int]] = []
        for before, block in itertools.pairwise(self.newest_blocks(most + 1)):
            covered = b"".join([f.match for f in self.facts[before.start : block.stop]])
            out.append((digest(b"anchor", covered, key=key), block.stop))
        return out

    def tool_of(self, index: int) -> str | None:
        """Return the name of the tool that the message at `index` answers: by id inside its block, else by place."""
        block = self.block_at(index)
        if block is None:
            return None
        calls = list(self.facts[block.start].calls)
        for place in range(block.start + 1, index + 1):
            wanted = self.facts[place].call_id
            call = next((c for c in calls if c.id == wanted), calls[0] if calls else None)
            if call is None:
                return None
            if place == index:
                return call.name
            calls.remove(call)
        return None


def link(before: bytes, match: bytes) -> bytes:
    """Return the next link of a chain of digests."""
    return hashlib.blake2b(before + match, digest_size=DIGEST_BYTES).digest()


def count_leading(facts: Sequence[Facts]) -> int:
    """Return how many system and developer messages come first."""
    for index, fact in enumerate(facts):
        if fact.role != "system":
            return index
    return len(facts)
