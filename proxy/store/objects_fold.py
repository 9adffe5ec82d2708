"""The joining of small blobs: a session that goes on for long has one for each append and each note.

Once a session has `LOOSE` of them of one kind, they become one, so that reading a ledger or a record takes few requests
and each byte is written twice at most. Rows that changed meanwhile keep what they refer to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from proxy.errors import Unavailable
from proxy.store.objects_bucket import Bucket
from proxy.store.objects_index import ENTRIES, RECORD, place_of
from proxy.store.objects_log import Fold, blob_key, new_blob
from proxy.store.sealing import Codec, context_of
from proxy.store.sqlite_schema import SLOT_BITS

LOOSE = 32
MOST_FOLDS = 8  # sessions in one go

_CROWDED = """
SELECT p.ledger, p.kind, t.name, l.name FROM piece p JOIN ledger l ON l.id = p.ledger JOIN tenant t ON t.id = l.tenant
WHERE p.is_loose GROUP BY p.ledger, p.kind HAVING count(*) >= ? LIMIT ?
"""
_ROWS = {
    ENTRIES: "SELECT slot, data FROM entry WHERE slot BETWEEN ? AND ? ORDER BY slot",
    RECORD: "SELECT slot, data FROM record WHERE slot BETWEEN ? AND ? ORDER BY slot",
}
_list_decoder = msgspec.msgpack.Decoder(list[bytes])


class Crowd(Struct, frozen=True):
    """Loose blobs of one session and one kind."""

    ledger: int
    kind: int
    tenant: str
    name: str


def crowds(connection: sqlite3.Connection) -> list[Crowd]:
    """Return some sessions that have many loose blobs."""
    return [Crowd(*row) for row in connection.execute(_CROWDED, (LOOSE, MOST_FOLDS))]


def fold(connection: sqlite3.Connection, bucket: Bucket, codec: Codec, crowd: Crowd) -> tuple[Fold, dict[str, bytes]]:
    """Return the change that joins the blobs of a crowd, and the object to be put before it.

    Raises Unavailable if one of them cannot be read now.
    """
    query = "SELECT blob FROM piece WHERE ledger = ? AND kind = ? AND is_loose"
    loose = {blob for (blob,) in connection.execute(query, (crowd.ledger, crowd.kind))}
    span = (crowd.ledger << SLOT_BITS, ((crowd.ledger + 1) << SLOT_BITS) - 1)
    rows = [(s, data) for s, data in connection.execute(_ROWS[crowd.kind], span) if place_of(data)[0] in loose]
    owner = ("session", crowd.tenant, crowd.name)
    contents = _contents(bucket, codec, owner, loose)
    values = [contents[place_of(data)[0]][place_of(data)[1]] for _, data in rows]
    blob = new_blob(*owner)
    joined = codec.seal(msgspec.msgpack.encode(values), context_of(*owner))
    change = Fold(crowd.ledger, crowd.kind, tuple(rows), tuple(sorted(loose)), blob)
    return change, {blob_key(blob): joined}


def _contents(
    bucket: Bucket, codec: Codec, owner: tuple[str, str, str], blobs: set[bytes]
) -> Mapping[bytes, list[bytes]]:
    found = dict(zip(blobs, bucket.get_all([blob_key(blob) for blob in blobs]), strict=True))
    there = {blob: data for blob, data in found.items() if data is not None}
    if len(there) < len(found):
        raise Unavailable("a blob went away meanwhile")
    return {blob: _list_decoder.decode(codec.open(data, context_of(*owner))) for blob, data in there.items()}
