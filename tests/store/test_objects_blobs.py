"""Blobs: what was put into one is got out of it, or said to be gone."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from proxy.errors import Unavailable
from proxy.store.objects_blobs import Blobs
from proxy.store.objects_bucket import Bucket
from proxy.store.objects_log import blob_key
from proxy.store.sealing import Codec
from tests.store.suite import original

pytestmark = pytest.mark.anyio


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    """Give the blobs of an empty folder, encrypted."""
    return Blobs(Bucket(f"file://{tmp_path}"), Codec(["a passphrase for a test"]))


def row(name: bytes, at: int) -> bytes:
    """Return what the index holds in place of a value."""
    return struct.pack("<32sI", name, at)


async def test_originals(blobs: Blobs, tmp_path: Path) -> None:
    """Each original has a blob of its own, which opens for it alone."""
    data = {"r": b"small", "s": b"large " * 50_000}
    names = await blobs.put_originals("t", [original(ref, "a", text) for ref, text in data.items()])
    assert {ref: await blobs.original("t", ref, name) for ref, name in names.items()} == data
    with pytest.raises(Unavailable, match="moved there"):
        await blobs.original("u", "r", names["r"])
    await blobs.discard([names["r"]])
    assert await blobs.original("t", "r", names["r"]) is None
    assert (tmp_path / blob_key(names["s"])).is_file()


async def test_values_of_a_session(blobs: Blobs) -> None:
    """Values come from several blobs in the order asked for; a lost blob is told, a wrong position is damage."""
    one = await blobs.put_entries("t", "a", [b"0", b"1"])
    other = await blobs.put_entries("t", "a", [b"2" * 100_000])
    rows = [row(one, 1), row(other, 0), row(one, 0)]
    assert await blobs.values("t", "a", rows) == [b"1", b"2" * 100_000, b"0"]
    assert await blobs.values("t", "a", []) == []
    assert await blobs.put_entries("t", "a", []) == b""
    with pytest.raises(Unavailable, match="damaged value"):
        await blobs.values("t", "a", [row(one, 2)])
    await blobs.discard([other])
    assert await blobs.values("t", "a", rows) is None
