"""The search for blobs that no commit ever mentioned: what processes left that died, or lost the place, in between."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta

from proxy.store.objects_bucket import Bucket, Found
from proxy.store.objects_log import NAME_BYTES
from proxy.store.sqlite_reader import Reader

AGE = timedelta(days=1)
"""How much older than the newest object of the place a blob has to be: nobody waits so long between blob and commit."""


async def sweep_blobs(bucket: Bucket, reader: Reader) -> None:
    """Delete the blobs that nothing refers to and that are old."""
    now = await asyncio.to_thread(_stamp, bucket)
    candidates = await asyncio.to_thread(_old_blobs, bucket, now)
    if candidates:
        unused = await reader.read(lambda db: _unused(db, candidates))
        await asyncio.to_thread(bucket.delete, unused)


def _stamp(bucket: Bucket) -> datetime:
    """Return the time by the clock of the object store."""
    bucket.put("stamps/now", b"ullage")
    return max(found.modified for part in bucket.walk("stamps") for found in part)


def _old_blobs(bucket: Bucket, now: datetime) -> list[str]:
    return [found.key for part in bucket.walk("blobs") for found in part if _is_old(found, now)]


def _is_old(found: Found, now: datetime) -> bool:
    return now - found.modified > AGE


def _unused(connection: sqlite3.Connection, keys: Sequence[str]) -> list[str]:
    """Return those of many keys that the index does not know."""
    used = {blob for (blob,) in connection.execute("SELECT blob FROM piece UNION ALL SELECT data FROM body")}
    used |= {blob for (blob,) in connection.execute("SELECT blob FROM garbage")}
    names = {key: _name(key) for key in keys}
    return [key for key, name in names.items() if name is not None and name not in used]


def _name(key: str) -> bytes | None:
    """Return the name of the blob at a key, None if it is no blob of ours."""
    try:
        name = bytes.fromhex("".join(key.split("/")[-2:]))
    except ValueError:
        return None
    return name if len(name) == 2 * NAME_BYTES else None
