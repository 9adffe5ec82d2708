"""The bytes of an object store: what lies in a blob, and how blobs are written and read.

The blob of an original is its bytes; a blob of a session is a list of entries or of recorded messages. Both are sealed
for what they belong to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from proxy.errors import StoreError, Unavailable
from proxy.store.base import LARGE_BYTES, Original
from proxy.store.objects_bucket import Bucket
from proxy.store.objects_index import place_of
from proxy.store.objects_log import blob_key, new_blob
from proxy.store.sealing import Codec, context_of

T = TypeVar("T")
Owner = tuple[str, str, str]
"""What a blob belongs to: "original" or "session", the tenant, the ref or ledger."""

_list_decoder = msgspec.msgpack.Decoder(list[bytes])


def join_messages(codec: Codec, owner: Owner, parts: Sequence[bytes]) -> bytes:
    """Return the blob of several values of a session."""
    return codec.seal(msgspec.msgpack.encode(list(parts)), context_of(*owner))


class Blobs:
    """Reads and writes blobs."""

    def __init__(self, bucket: Bucket, codec: Codec) -> None:
        self._bucket = bucket
        self._codec = codec

    async def put_originals(self, tenant: str, originals: Iterable[Original]) -> dict[str, bytes]:
        """Write the bytes of originals; returns the name of the blob of each ref. All or nothing."""
        wanted = list(originals)
        names = {o.ref: new_blob("original", tenant, o.ref) for o in wanted}
        sealed = await _apart(
            sum(len(o.data) for o in wanted),
            lambda: [self._codec.seal(o.data, context_of("original", tenant, o.ref)) for o in wanted],
        )
        await self._put(dict(zip(names.values(), sealed, strict=True)))
        return names

    async def put_entries(self, tenant: str, ledger: str, entries: Sequence[bytes]) -> bytes:
        """Write entries; returns the name of their blob, b"" for none."""
        if not entries:
            return b""
        owner = ("session", tenant, ledger)
        sealed = await _apart(sum(map(len, entries)), lambda: join_messages(self._codec, owner, entries))
        name = new_blob(*owner)
        await self._put({name: sealed})
        return name

    async def _put(self, blobs: Mapping[bytes, bytes]) -> None:
        try:
            await self._bucket.aput({blob_key(name): data for name, data in blobs.items()})
        except (StoreError, asyncio.CancelledError):
            await self.discard(blobs)
            raise

    async def discard(self, names: Iterable[bytes]) -> None:
        """Delete blobs that nothing refers to, as far as that is possible now."""
        await self._bucket.adelete([blob_key(name) for name in names])

    async def original(self, tenant: str, ref: str, name: bytes) -> bytes | None:
        """Return the bytes of an original; None if the blob is gone."""
        (stored,) = await self._bucket.aget([blob_key(name)])
        if stored is None:
            return None
        return await _apart(len(stored), lambda: self._codec.open(stored, context_of("original", tenant, ref)))

    async def values(self, tenant: str, ledger: str, rows: Sequence[bytes]) -> list[bytes] | None:
        """Return the values of a session that rows of the index stand for; None if a blob is gone."""
        places = [place_of(row) for row in rows]
        names = list(dict.fromkeys(name for name, _ in places))
        stored = await self._bucket.aget([blob_key(name) for name in names])
        there = [data for data in stored if data is not None]
        if len(there) < len(names):
            return None
        context = context_of("session", tenant, ledger)

        def unseal() -> list[bytes]:
            opened = [_list_decoder.decode(self._codec.open(data, context)) for data in there]
            contents = dict(zip(names, opened, strict=True))
            return [contents[name][at] for name, at in places]

        try:
            return await _apart(sum(map(len, there)), unseal)
        except (msgspec.MsgspecError, IndexError) as error:
            raise Unavailable("the store holds a damaged value") from error


async def _apart(size_bytes: int, work: Callable[[], T]) -> T:
    """Run something, in a thread if it is about many bytes."""
    return await asyncio.to_thread(work) if size_bytes > LARGE_BYTES else work()
