"""What is written behind: notes and renewals that wait for the next commit, and the tips that they make findable now.

A *batch* gathers what came since the last commit. The writer takes it whole and either settles it (committed)
or puts it back (failed, to be tried again), so nothing is lost between the two. All state is guarded by one
lock that is held for a few dictionary operations only, because notes come from the event loop while a thread
writes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from msgspec import Struct, structs

from proxy.store.base import Mark, Recorded, SessionUse

MOST_NOTES = 10_000
MOST_BYTES = 64 * 1024 * 1024
MOST_RENEWALS = 100_000
NEVER = float("-inf")


class Note(Struct, frozen=True):
    """One call of `Store.note`, with the time at which it came."""

    tenant: str
    use: SessionUse
    marks: tuple[Mark, ...]
    record: tuple[Recorded, ...]
    at: float


class Batch(Struct):
    """What one commit will write."""

    notes: list[Note] = []
    touches: dict[tuple[str, str], float] = {}  # (tenant, ref) -> when it was used
    tips: dict[tuple[str, bytes], dict[str, int]] = {}  # (tenant, key) -> length by ledger, the first one first
    newest: dict[tuple[str, str], int] = {}  # (tenant, ledger) -> greatest length marked
    size_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.notes or self.touches)

    def add(self, note: Note) -> None:
        """Take in a note."""
        self.notes.append(note)
        self.size_bytes += sum(len(message.data) for message in note.record)
        ledger = note.use.ledger
        for mark in note.marks:
            self.tips.setdefault((note.tenant, mark.key), {})[ledger] = mark.length
            owner = (note.tenant, ledger)
            self.newest[owner] = max(mark.length, self.newest.get(owner, 0))


class Backlog:
    """The batch that fills and the one that is being written."""

    def __init__(self, slack: float) -> None:
        self.dropped = 0
        self._slack = slack
        self._filling = Batch()
        self._flying: Batch | None = None
        self._renewed: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._filling) or self._flying is not None

    def add(self, note: Note) -> bool:
        """Queue a note, or drop and count it if too much waits already; True if it is the first to wait."""
        with self._lock:
            batch = self._filling
            if len(batch.notes) >= MOST_NOTES or batch.size_bytes >= MOST_BYTES:
                self.dropped += 1
                return False
            first = not batch
            batch.add(note)
            return first

    def touch(self, tenant: str, refs: Sequence[str], now: float) -> bool:
        """Queue renewals that are due; True if they are the first to wait."""
        with self._lock:
            batch = self._filling
            first = not batch
            for ref in refs:
                key = (tenant, ref)
                if now - self._renewed.get(key, NEVER) > self._slack and len(batch.touches) < MOST_RENEWALS:
                    self._renew(key, now)
                    batch.touches[key] = now
            return first and bool(batch)

    def _renew(self, key: tuple[str, str], now: float) -> None:
        if len(self._renewed) >= MOST_RENEWALS:
            self._renewed.clear()
        self._renewed[key] = now

    def find(self, tenant: str, keys: Sequence[bytes]) -> dict[bytes, dict[str, int]]:
        """Return for those keys that wait to be written the length by ledger, the ledger that marked it first first.

        A key belongs to that one, unless it belongs to another one already.
        """
        found: dict[bytes, dict[str, int]] = {}
        with self._lock:
            for batch in self._batches():
                for key in keys:
                    hit = batch.tips.get((tenant, key))
                    if hit is not None:
                        found.setdefault(key, {}).update(hit)
        return found

    def newest(self, tenant: str, ledger: str) -> int:
        """Return the greatest length that waits to be written for a ledger."""
        with self._lock:
            return max(batch.newest.get((tenant, ledger), 0) for batch in self._batches())

    def _batches(self) -> Iterator[Batch]:
        """Yield the batches, oldest first."""
        if self._flying is not None:
            yield self._flying
        yield self._filling

    def take(self) -> Batch:
        """Hand out what waits; it stays findable until it is settled or put back."""
        with self._lock:
            batch, self._filling = self._filling, Batch()
            self._flying = batch
            return batch

    def settle(self) -> None:
        """Forget the batch taken last: it is committed."""
        with self._lock:
            self._flying = None

    def put_back(self) -> None:
        """Let the batch taken last wait again, before what came in the meantime."""
        with self._lock:
            batch, later = self._flying, self._filling
            if batch is None:
                return
            for note in later.notes:
                batch.add(note)
            batch.touches.update(later.touches)
            self._flying, self._filling = None, batch

    def discard(self) -> None:
        """Drop and count all that waits: the store is being closed and did not take it."""
        with self._lock:
            self.dropped += len(self._filling.notes) + (len(self._flying.notes) if self._flying else 0)
            self._flying, self._filling = None, Batch()


def merged(notes: Sequence[Note]) -> list[Note]:
    """Join the notes of each session into one that has the same effect as all of them in order.

    Where two ledgers mark one key the order of all notes counts, so they stay as they are.
    """
    owners: dict[tuple[str, bytes], str] = {}
    for note in notes:
        for mark in note.marks:
            if owners.setdefault((note.tenant, mark.key), note.use.ledger) != note.use.ledger:
                return list(notes)
    groups: dict[tuple[str, str], list[Note]] = {}
    for note in notes:
        groups.setdefault((note.tenant, note.use.ledger), []).append(note)
    return [_join(group) for group in groups.values()]


def sum_uses(uses: Sequence[SessionUse]) -> SessionUse:
    """Return the use that has the same effect as several in order: counters summed, the rest as it was last."""
    return structs.replace(
        uses[-1],
        received_tokens=sum(use.received_tokens for use in uses),
        sent_tokens=sum(use.sent_tokens for use in uses),
        reads=sum(use.reads for use in uses),
        calls=sum(use.calls for use in uses),
    )


def _join(notes: list[Note]) -> Note:
    last = notes[-1]
    if len(notes) == 1:
        return last
    marks = tuple(mark for note in notes for mark in note.marks)
    record = {message.index: message for note in notes for message in note.record}
    use = sum_uses([note.use for note in notes])
    return structs.replace(last, use=use, marks=marks, record=tuple(record.values()))
