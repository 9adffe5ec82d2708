"""What every store promises.

A store keeps, per tenant: *originals* (exact bytes that left a history, by ref), *ledgers* (append-only
decisions of one session, by id), *tips* (16-byte digests of known histories, each pointing into a ledger),
the *record* of a session's messages, a *session* row with counters, *facts*, and *locks* that end by
themselves. A session and its ledger share one id; the row comes into being with the first original, entry or
note of that id.

Rules that hold for every store and every call:

1. A call either did all that it says or raises `StoreError` having done nothing: `Unavailable` when the store
   cannot be used now, `Full` when quota or disk are used up, `Conflict` when somebody else appended first. No
   call hangs; one that gave up waiting raises Unavailable and may still take effect. A store that failed
   works again without a restart once the cause is gone.
2. *Confirmed* means: on return the change survives the death of this process, and every other process on the
   same place sees it. *Written behind* means: queued, confirmed about a tenth of a second later, and lost
   (and counted in `StoreStats.dropped`) if the process dies before or the store stays away for long.
3. Reads show what this process has written behind before, as well as everything confirmed anywhere.
4. Every query carries the tenant, and what one tenant stored is invisible to another. Tenant `None` is the
   administration and sees all.
5. What nobody used for `idle_ttl` is dropped: never earlier, and at most an eighth of it (plus the period of
   the background task) later. What counts as use is written on each call.
6. Quota and `stored_bytes` count bytes before compression, each original once per tenant, so that the figures
   do not depend on the store. Originals and entries come first: the record fills only what they leave, and
   yields first.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from proxy.errors import BadRequest

T = TypeVar("T")

Clock = Callable[[], float]
"""Seconds since the epoch; injected so that tests own the time."""

LARGE_BYTES = 64 * 1024
"""From this size on, compression and decompression leave the event loop."""

PAGE_LIMIT = 1000
"""The most items that one page holds, whatever was asked for."""


class Tip(Struct, frozen=True):
    """A known prefix of a history.

    `length` is how many chain messages of the ledger it covers, `version` how many entries the ledger holds
    now, and `newest` the greatest length of any mark that the ledger was ever given.
    """

    key: bytes
    ledger: str
    length: int
    version: int
    newest: int


class Mark(Struct, frozen=True):
    """A tip or an anchor to be written for a ledger."""

    key: bytes
    length: int


class Original(Struct, frozen=True):
    """Exact bytes that left a history, with what is shown about them; `data` is empty in listings.

    `ledger` is the session that first stored it and still lives; "" when only its own idle time keeps it.
    """

    ref: str
    ledger: str
    kind: str
    tool: str | None
    tokens: int
    lines: int
    size_bytes: int
    created: float
    data: bytes = b""


class Erased(Struct, frozen=True):
    """Stands where an original was that somebody erased on purpose; it does not come back."""

    ref: str


class SessionUse(Struct, frozen=True):
    """One request's contribution to its session.

    Counters (`received_tokens`, `sent_tokens`, `reads`, `calls`) are added up; everything else is the latest
    value.
    """

    ledger: str
    key: str | None = None
    model: str = ""
    format: str = ""
    preset: str = ""
    messages: int = 0
    received_tokens: int = 0
    sent_tokens: int = 0
    edits: int = 0
    compactions: int = 0
    reads: int = 0
    calls: int = 1


class Session(Struct, frozen=True):
    """What is known of one session; `originals` and `stored_bytes` count what it holds, shared originals included."""

    id: str
    tenant: str
    key: str | None
    created: float
    last_used: float
    model: str
    format: str
    preset: str
    calls: int
    messages: int
    received_tokens: int
    sent_tokens: int
    edits: int
    compactions: int
    reads: int
    originals: int
    stored_bytes: int


class Recorded(Struct, frozen=True):
    """One message of the record; `data` is the caller's and opaque here."""

    index: int
    data: bytes


class PageRequest(Struct, frozen=True):
    """Which part of a list is wanted: at most `limit` items after the place that `cursor` names."""

    limit: int = 100
    cursor: str | None = None

    @property
    def size(self) -> int:
        """The number of items to deliver, within bounds."""
        return min(max(self.limit, 1), PAGE_LIMIT)

    @property
    def position(self) -> int | None:
        """The number that the cursor stands for; raises BadRequest if it is none of ours."""
        return None if self.cursor is None else _decode_cursor(self.cursor)


class Page(Struct, Generic[T], frozen=True):
    """A part of a list, and the cursor of what follows (None: nothing)."""

    data: list[T]
    next: str | None = None


class StoreStats(Struct, frozen=True):
    """Totals over all tenants; `dropped` counts what this process could not write behind."""

    originals: int
    stored_bytes: int
    sessions: int
    dropped: int


class StoreOptions(Struct, frozen=True):
    """How a store is to behave: idle life in seconds, quota per tenant in bytes (None: none), record or not.

    The first of the keys encrypts what is written, all of them decrypt; none: nothing is encrypted.
    """

    idle_ttl: float = 30 * 86400.0
    stored_bytes: int | None = None
    record: bool = True
    encryption_keys: tuple[str, ...] = ()

    @property
    def slack(self) -> float:
        """How coarsely uses are written down, in seconds: within it a second use of one thing costs nothing."""
        return self.idle_ttl / 16

    @property
    def sweep_period(self) -> float:
        """Seconds between two runs of the background expiry."""
        return min(60.0, self.idle_ttl / 4)


class Store(Protocol):
    """Where the gateway remembers; see the rules on top of this module for what holds everywhere."""

    async def open(self) -> None:
        """Connect and check the schema.

        Raises ConfigError for a place that this version must not touch, and Unavailable for one that cannot
        be used now; after Unavailable the store may be used all the same and tries again with every call.
        """

    async def close(self) -> None:
        """Write what is written behind, as far as the store allows, and let go of everything."""

    async def ping(self) -> None:
        """Prove that the store takes writes now; raises Unavailable or Full."""

    async def secret(self, create: Callable[[], bytes]) -> bytes:
        """Return the secret of this place, the same for everybody; `create` makes it if there is none. Confirmed."""

    async def put_originals(self, tenant: str, originals: Sequence[Original]) -> frozenset[str]:
        """Store originals for their ledgers; confirmed, all or nothing. Returns the refs refused because erased.

        Known refs keep their bytes and gain the ledger as one more holder ("": none). A use of the originals and
        the ledgers. Raises Full if the new ones do not fit the tenant's quota.
        """

    async def get_original(self, tenant: str | None, ref: str) -> Original | Erased | None:
        """Return an original with its bytes, or Erased, or None if there is no such thing (any more). A use."""

    async def missing_originals(self, tenant: str, refs: Sequence[str]) -> frozenset[str]:
        """Return which of the refs are neither stored nor erased, so that they can be put again. No use."""

    async def erase_original(self, tenant: str | None, ref: str) -> bool:
        """Drop an original for good: its ref is refused from now on. Confirmed; False if there was none."""

    async def list_originals(self, tenant: str | None, ledger: str | None, page: PageRequest) -> Page[Original]:
        """List originals, last stored first; of one ledger, all that it holds, each with that ledger's id."""

    async def touch_originals(self, tenant: str, refs: Sequence[str]) -> None:
        """Renew the life of originals. Written behind; never raises."""

    async def find_tips(self, tenant: str, keys: Sequence[bytes]) -> list[Tip]:
        """Return the known ones of some keys, in the order given, in one round trip.

        A key belongs to the first ledger that it was marked for, as long as that lives. No use.
        """

    async def load_ledger(self, tenant: str, ledger: str, after: int = 0) -> list[bytes]:
        """Return a ledger's entries from position `after` on; [] if there are none."""

    async def append_ledger(
        self, tenant: str, ledger: str, at: int, entries: Sequence[bytes], marks: Sequence[Mark]
    ) -> int:
        """Append entries and set marks if the ledger holds exactly `at` entries; confirmed. Returns the new number.

        Raises Conflict with the number that it holds otherwise. A use of the ledger. Not bound by the quota.
        """

    def note(self, tenant: str, use: SessionUse, marks: Sequence[Mark], record: Sequence[Recorded]) -> None:
        """Count a request, set marks and record messages. Written behind; never blocks, never raises.

        The marks are found at once in this process. A recorded message replaces an older one of the same
        index. A use of the ledger with all that belongs to it.
        """

    async def load_record(self, tenant: str, ledger: str, start: int, stop: int) -> list[Recorded]:
        """Return the recorded messages with start <= index < stop, in order."""

    async def list_sessions(self, tenant: str | None, page: PageRequest) -> Page[Session]:
        """List sessions, last created first (an order that use does not change)."""

    async def get_session(self, tenant: str | None, session: str) -> Session | None:
        """Return a session, or None."""

    async def delete_session(self, tenant: str | None, session: str) -> bool:
        """Drop a session with its tips, entries, record and the originals that it alone holds; confirmed."""

    async def claim(self, tenant: str, name: str, seconds: float) -> int | None:
        """Take the lock of that name for so many seconds; confirmed. None: it is held, by whomever.

        Returns a fencing token, greater than every one before it for that name, so that what it protects can
        refuse somebody who held the lock for longer than it was given.
        """

    async def release(self, tenant: str, name: str, token: int) -> None:
        """Let go of a lock, if it is still held with that token; confirmed."""

    async def put_fact(self, tenant: str, key: str, value: bytes) -> None:
        """Remember something learnt, in place of what was known under that key; confirmed."""

    async def facts(self, tenant: str) -> dict[str, bytes]:
        """Return all that was learnt for a tenant."""

    async def expire(self, now: float) -> int:
        """Drop what was idle for too long at `now`; returns how many sessions and originals went.

        An original outlives its sessions while it is used itself. Also run by the store in the background.
        """

    async def stats(self) -> StoreStats:
        """Return the totals."""


@runtime_checkable
class Movable(Store, Protocol):
    """What a store offers beyond daily work: walking through all that it holds, and making the same elsewhere."""

    async def tenants(self) -> list[str]:
        """Return the names of all tenants that ever stored something, in any order."""

    async def list_tips(self, tenant: str, ledgers: Sequence[str]) -> list[Tip]:
        """Return all tips of some ledgers, in any order. May read through all tips of the store."""

    async def list_erased(self, tenant: str) -> list[str]:
        """Return the refs that are refused because somebody erased them, in any order."""

    async def put_erased(self, tenant: str, refs: Sequence[str]) -> None:
        """Refuse refs from now on, dropping what is stored under them; confirmed."""

    async def put_session(self, session: Session, newest: int) -> None:
        """Give a session the figures and times of another store, and at least its greatest marked length; confirmed.

        What it holds is not touched. A new session is the last created one in lists, whatever its times are.
        """


def encode_cursor(position: int) -> str:
    """Return the opaque cursor that stands for a position."""
    return base64.urlsafe_b64encode(b"p%d" % position).decode().rstrip("=")


def _decode_cursor(cursor: str) -> int:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        position = int(text[1:]) if text[:1] == b"p" else -1
    except (ValueError, binascii.Error):
        position = -1
    if not 0 <= position < 1 << 63:
        raise BadRequest("cursor is not one that a list has given", param="cursor")
    return position
