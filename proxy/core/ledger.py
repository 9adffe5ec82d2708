"""The ledger: everything that was decided about one session, append-only.

What holds, and why:

- A decision is made when a text is first seen and kept for the life of the conversation, because a provider charges a
  tenth for an unchanged prefix. So entries are only ever appended, and what goes upstream is a pure function of the
  history, the tenant's secret, the root and the ledger.
- A decision is keyed by the *exact* digest of the text and counts from the position at which it was made: the same
  text at an earlier position was sent raw and stays raw.
- Positions count messages of the chain of the ledger (leading system messages are outside). A client that trims its
  front shifts its indices against these positions; the shift comes from the tip or the anchor that was recognised.
- Hidden turns are kept with the visible assistant message they belong to: by its position and its match digest, so that
  a regenerated answer does not inherit them.
- A branch is a new ledger that starts with the entries of the common part and keeps their root, so that references
  stay what they were.

Entries are msgpack of tagged structs, stored one row each; the version of a ledger is the number of its entries, and
an append names the version it saw. Unknown tags from a newer neighbour are skipped, so two versions can share a store.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from proxy.core.history import Kind, digest

ROOT_BYTES = 16
_ID_LENGTH = 26
Reason = Literal["over_limit", "per_turn_limit", "compaction", "over_window"]


class HiddenTurn(msgspec.Struct, frozen=True):
    """The rounds of one turn that the gateway answered itself, exactly as the upstream saw them.

    `rounds` are raw messages in order (assistant, tool, tool, assistant, …). `visible` is the assistant message as the
    client will send it back, and `shown` says which beginning of its string fields came from hidden rounds. In a mixed
    last round `calls` are the gateway's own calls (position among all calls, raw JSON) and `answers` their messages.
    """

    rounds: tuple[bytes, ...]
    visible: bytes
    shown: dict[str, str] = {}
    calls: tuple[tuple[int, bytes], ...] = ()
    answers: tuple[bytes, ...] = ()


class Entry(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of all entries."""


class Began(Entry, frozen=True, tag="began"):
    """First entry: the root that all references of this ledger are made from."""

    root: bytes


class Offloaded(Entry, frozen=True, tag="offloaded"):
    """A text was moved out; with its bytes this is all that its stub is made from."""

    exact: bytes
    since: int
    ref: str
    kind: Kind
    policy: str
    reason: Reason
    tokens: int
    lines: int
    head_lines: int
    tail_lines: int
    reader: str  # name of the reading tool, as the stub gives it; "": it cannot be read
    tool: str | None = None
    first_line: str = ""
    made_at: int = 0  # applies to histories of at least so many messages: a compaction leaves shorter ones alone
    until: int | None = None  # a compaction is about one message: what comes again is as good as new

    def holds_at(self, position: int) -> bool:
        """Say whether the text leaves at this position of the chain, too."""
        return self.since <= position and (self.until is None or position < self.until)


class Hidden(Entry, frozen=True, tag="hidden"):
    """A turn in which the gateway answered reads itself, to be put back before the visible message."""

    position: int
    match: bytes
    turn: HiddenTurn


class Narrated(Entry, frozen=True, tag="narrated"):
    """A narrative was written of the messages up to `cut`; those before `start` it knows from an earlier one.

    The numbers are tokens that it cost: of the prompt, of these from cache, and of the answer.
    """

    start: int
    cut: int
    text: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Compacted(Entry, frozen=True, tag="compacted"):
    """A declared break of the prefix: from this length on, the messages before `cut` stand in one block.

    Without a cut only texts left (their entries have the same `made_at`). Pins are no part of it: they are rendered
    from the present request.
    """

    made_at: int
    cut: int | None = None
    narrative: str = ""
    trail: str = ""
    tag: str = ""
    pin_tokens: int = 1000
    pins_from: int = 0  # words of the user before this position are not shown: they would not fit
    chosen: tuple[int, ...] = ()  # positions in front of the cut that stay verbatim, behind the block
    bare: int = 0  # assistant messages in front of this position are sent without their reasoning
    before_tokens: int = 0  # of the request, about, without the compaction and with it; 0: nobody counted
    tokens: int = 0


class Wished(Entry, frozen=True, tag="wished"):
    """Somebody asked for a compaction, which the session's next request makes if there is anything to gain."""

    by: str  # "api" or "model"


class Declined(Entry, frozen=True, tag="declined"):
    """The compaction that was asked for would gain nothing for a history of this length."""

    length: int


class Learnt(Entry, frozen=True, tag="learnt"):
    """A fact about this session's upstream, e.g. that it refuses the reading tool."""

    fact: str


AnyEntry = Began | Offloaded | Hidden | Narrated | Compacted | Wished | Declined | Learnt
_DECODER = msgspec.msgpack.Decoder(AnyEntry)
_ENCODER = msgspec.msgpack.Encoder()


def encode_entry(entry: AnyEntry) -> bytes:
    """Return the stored form of an entry."""
    return _ENCODER.encode(entry)


def decode_entry(data: bytes) -> AnyEntry | None:
    """Return the entry, None when its tag is of a newer version."""
    try:
        return _DECODER.decode(data)
    except msgspec.ValidationError:
        return None


class Ledger:
    """The decisions of one session, read from its entries; never changed in place.

    `stored` is how many of the entries the store is known to hold: all, except in a branch that was made just now.
    """

    def __init__(self, identity: str, entries: Sequence[AnyEntry | None] = (), stored: int | None = None) -> None:
        self.id = identity
        self.entries: tuple[AnyEntry | None, ...] = tuple(entries)
        self.stored = len(self.entries) if stored is None else stored
        self.root = b""
        self.reader: str | None = None  # name of the reading tool since the first stub
        self.facts: set[str] = set()
        self.offloads: dict[tuple[Kind, bytes], tuple[Offloaded, ...]] = {}
        self.refs: dict[str, Offloaded] = {}
        self.hidden: dict[int, list[Hidden]] = {}
        self.narratives: list[Narrated] = []
        self.compactions: list[Compacted] = []
        self.is_wished = False  # a compaction was asked for, and not made since
        for entry in self.entries:
            self._take(entry)

    @property
    def version(self) -> int:
        """How many entries the ledger holds."""
        return len(self.entries)

    def _take(self, entry: AnyEntry | None) -> None:
        match entry:
            case Began():
                self.root = entry.root
            case Offloaded():
                key = (entry.kind, entry.exact)
                self.offloads[key] = (*self.offloads.get(key, ()), entry)
                self.refs[entry.ref] = entry
                self.reader = self.reader or entry.reader
            case Hidden():
                self.hidden.setdefault(entry.position, []).append(entry)
            case Narrated():
                self.narratives.append(entry)
            case Compacted():
                self.compactions.append(entry)
                self.is_wished = False
            case Wished() | Declined():
                self.is_wished = isinstance(entry, Wished)
            case Learnt():
                self.facts.add(entry.fact)
            case None:
                pass

    def extend(self, entries: Iterable[AnyEntry | None]) -> Ledger:
        """Return the ledger with further entries, all of them stored."""
        return Ledger(self.id, (*self.entries, *entries))

    def branch(self, identity: str, length: int) -> Ledger:
        """Return a new ledger that shares what was decided about the first `length` messages."""
        return Ledger(identity, [e for e in self.entries if _belongs(e, length)], stored=0)

    def folded(self, length: int) -> Compacted | None:
        """Return the block that is in force for a history of this length."""
        return next((c for c in reversed(self.compactions) if c.cut is not None and c.made_at <= length), None)

    def bare(self, length: int) -> int:
        """Return the position up to which a history of this length is sent without its reasoning."""
        return max((c.bare for c in self.compactions if c.made_at <= length), default=0)

    def hidden_at(self, position: int, match: bytes) -> HiddenTurn | None:
        """Return the hidden turn that belongs to this visible message, if there is one."""
        return next((h.turn for h in self.hidden.get(position, ()) if h.match == match), None)


def _belongs(entry: AnyEntry | None, length: int) -> bool:
    match entry:
        case Offloaded():
            return entry.since < length and entry.made_at <= length
        case Narrated():
            return entry.cut <= length
        case Compacted():
            return entry.made_at <= length
        case Hidden():
            return entry.position <= length  # the answer right behind the common part, told by its digest
        case None:
            return False
        case _:
            return True


def in_force(entries: Sequence[Offloaded], position: int, length: int) -> Offloaded | None:
    """Return the newest of the decisions about one text that counts at a position of a history of this length."""
    return next((e for e in reversed(entries) if e.made_at <= length and e.holds_at(position)), None)


def make_root(secret: bytes, tenant: str, session_key: str | None, opening: bytes) -> bytes:
    """Return what a session begins with: tenant and explicit key, else tenant and first user message."""
    if session_key is not None:
        return digest(b"root-key", tenant.encode(), session_key.encode("utf-8", "surrogatepass"), key=secret)
    return digest(b"root", tenant.encode(), opening, key=secret)


def make_ledger_id(secret: bytes, prefix: bytes) -> str:
    """Return the id of the session that begins at this prefix; the same on every replica."""
    raw = digest(b"ledger", prefix, key=secret) + b"\0"
    return "ses_" + base64.b32encode(raw).decode().lower()[:_ID_LENGTH]


class Recognition(msgspec.Struct, frozen=True):
    """How a history is known: the ledger holds its messages before index `known`; position = index + `shift`."""

    ledger: Ledger
    known: int
    shift: int
    anchored: bool = False
