"""A process's own copy of the index, brought up to date from the log and written to through it.

A commit is made like this: apply the changes to the copy inside a transaction, put the commit under the next number if
there is none, then commit the transaction; who loses the race for a number rolls back, applies what the others wrote,
and tries again. So the log is the truth and every copy is as of one of its numbers.

Old commits are folded into snapshots. A number is never used twice although folded commits are deleted: that happens
`GRACE` after their snapshot was written, by the clock of the object store, and who has not looked for so long as
`STALE` looks for a newer snapshot first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import msgspec

from proxy.errors import ConfigError, Unavailable
from proxy.store.objects_bucket import Bucket, Found
from proxy.store.objects_index import Applier, connect, position, set_position
from proxy.store.objects_log import (
    SCHEMA,
    AnyChange,
    Commit,
    commit_key,
    newer,
    pack_commit,
    snapshot_key,
    unpack_commit,
)
from proxy.store.sealing import Codec, context_of
from proxy.store.sqlite_schema import begin

SNAPSHOT_EVERY = 256  # commits
GRACE = timedelta(days=1)
STALE = 3600.0  # seconds
READ_AHEAD = 16  # commits that are asked for at once
MOST_ATTEMPTS = 50  # races that one commit may lose

Perform = Callable[[sqlite3.Connection], Sequence[AnyChange]]


class Replica:
    """The copy; everything here runs in one thread, apart from `write_snapshot`."""

    def __init__(self, bucket: Bucket, codec: Codec) -> None:
        self.path = Path("nowhere")
        self.generation = 0  # grows with every copy that is made anew, so that readers follow
        self.seen: set[bytes] = set()  # ids of the commits applied since somebody cleared this
        self._bucket = bucket
        self._codec = codec
        self._applier = Applier()
        self._folder: Path | None = None
        self._db: sqlite3.Connection | None = None
        self._checked = 0.0
        self._is_ours = False
        self._ahead = ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="store-log")

    def close(self) -> None:
        """Let go of the copy."""
        self._forget()
        self._ahead.shutdown(wait=False, cancel_futures=True)

    def check_schema(self) -> None:
        """Refuse a place of a later version, or mark a new one as ours."""
        if self._is_ours:
            return
        mark = b'{"store": "ullage", "schema": %d}' % SCHEMA
        found = self._bucket.get("ullage.json")
        if found is None:
            self._bucket.create("ullage.json", mark)
        elif _schema_in(found) > SCHEMA:
            raise ConfigError(f"store.url: {newer(_schema_in(found))}, or choose another prefix", param="store.url")
        self._is_ours = True

    def catch_up(self) -> sqlite3.Connection:
        """Apply what others wrote and return the copy. Raises Unavailable."""
        try:
            self.check_schema()
            if self._db is None or time.monotonic() - self._checked > STALE:
                self._look_for_snapshot()
            db = self._db or self._open(None)
            self._follow(db)
        except (sqlite3.Error, OSError) as error:
            self._forget()
            raise Unavailable(f"the store cannot keep its index in {tempfile.gettempdir()}: {error}") from error
        self._checked = time.monotonic()
        return db

    def _follow(self, db: sqlite3.Connection) -> None:
        """Apply commits until there are no more, asking for more at once the more there are."""
        ahead = 1
        while True:
            first = position(db) + 1
            keys = [commit_key(number) for number in range(first, first + ahead)]
            found = list(self._ahead.map(self._bucket.get, keys)) if ahead > 1 else [self._bucket.get(keys[0])]
            for number, stored in enumerate(found, first):
                if stored is None:
                    return
                self._apply(db, number, stored)
            ahead = min(2 * ahead, READ_AHEAD)

    def _apply(self, db: sqlite3.Connection, number: int, stored: bytes) -> None:
        commit = unpack_commit(self._codec, number, stored)
        begin(db)
        try:
            for change in commit.changes:
                self._applier.apply(db, change)
            set_position(db, number)
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
        self.seen.add(commit.id)

    def commit(self, perform: Perform, attempt: bytes) -> bool:
        """Make a commit of the changes that `perform` applies; False if it applies none. Raises Unavailable.

        `perform` runs again after each lost race. The commit gets the id `attempt`; after Unavailable it may still have
        been made, and if so a later `catch_up` adds that id to `seen`.
        """
        for _ in range(MOST_ATTEMPTS):
            db = self.catch_up()
            begin(db)
            try:
                changes = list(perform(db))
                number = position(db) + 1
                if not changes:
                    return False
                stored = pack_commit(self._codec, number, Commit(SCHEMA, attempt, changes))
                if self._publish(number, attempt, stored):
                    set_position(db, number)
                    db.execute("COMMIT")
                    return True
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        raise Unavailable("the store is written to by too many others at once; give them prefixes of their own")

    def _publish(self, number: int, attempt: bytes, stored: bytes) -> bool:
        """Put a commit under its number; False if that is another's."""
        if self._bucket.create(commit_key(number), stored):
            return True
        found = self._bucket.get(commit_key(number))  # a put that was repeated after a lost answer meets itself
        return found is not None and unpack_commit(self._codec, number, found).id == attempt

    # -- snapshots

    def _look_for_snapshot(self) -> None:
        """Start from the newest snapshot, if that is newer than the copy."""
        newest = max(self._snapshots(), key=lambda found: found.key, default=None)
        if newest is None:
            return
        number = _number(newest)
        if self._db is None or number > position(self._db):
            stored = self._bucket.get(newest.key)
            if stored is None:
                raise Unavailable("the store's snapshot was replaced meanwhile")
            self._open(self._codec.open(stored, context_of("snapshot", "", str(number))))

    def _snapshots(self) -> list[Found]:
        return [found for part in self._bucket.walk("snapshots") for found in part]

    def _open(self, content: bytes | None) -> sqlite3.Connection:
        """Make the copy anew, from a snapshot or empty."""
        self._forget()
        self._folder = Path(tempfile.mkdtemp(prefix="ullage-"))
        self.path = self._folder / "index.db"
        if content is not None:
            self.path.write_bytes(content)
        self._db = connect(self.path, fresh=content is None)
        self.generation += 1
        return self._db

    def _forget(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def verify(self) -> None:
        """Start anew if the log is no longer the one that the copy was made from: somebody emptied the place."""
        if self._db is None or (number := position(self._db)) == 0:
            return
        if self._bucket.get(commit_key(number)) is None and not any(_number(f) >= number for f in self._snapshots()):
            self._forget()

    def is_snapshot_due(self) -> bool:
        """Whether the last commit was one after which a snapshot is written."""
        return self._db is not None and position(self._db) % SNAPSHOT_EVERY == 0

    def write_snapshot(self) -> None:
        """Write the index as it is now, and delete what is folded into an older snapshot; in any thread."""
        with tempfile.TemporaryDirectory(prefix="ullage-") as folder:
            target = Path(folder) / "snapshot.db"
            source = sqlite3.connect(self.path)
            try:
                source.execute("VACUUM INTO ?", (os.fspath(target),))
            finally:
                source.close()
            copy = sqlite3.connect(target)
            try:
                number = position(copy)
            finally:
                copy.close()
            sealed = self._codec.seal(target.read_bytes(), context_of("snapshot", "", str(number)))
        self._bucket.put(snapshot_key(number), sealed)
        self._trim()

    def _trim(self) -> None:
        """Delete the commits and snapshots before the last snapshot that is old enough."""
        snapshots = sorted(self._snapshots(), key=lambda found: found.key)
        old = [found for found in snapshots if snapshots[-1].modified - found.modified > GRACE]
        if not old:
            return
        last = commit_key(_number(old[-1]))
        for part in self._bucket.walk("log"):
            keys = [found.key for found in part if found.key <= last]
            self._bucket.delete(keys)
            if not keys:
                break
        self._bucket.delete([found.key for found in old[:-1]])


def _number(found: Found) -> int:
    return int(found.key.rpartition("/")[2])


def _schema_in(mark: bytes) -> int:
    try:
        return int(msgspec.json.decode(mark)["schema"])
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        raise ConfigError(
            "store.url: the place holds something else than a store of ullage; choose another prefix", param="store.url"
        ) from None
