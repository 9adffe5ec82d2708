"""Commits of the log, and the names of what lies in a place."""

from __future__ import annotations

import msgspec
import pytest

from proxy.errors import Unavailable
from proxy.store.base import Mark, SessionUse
from proxy.store.objects_log import (
    SCHEMA,
    AnyChange,
    Append,
    Commit,
    Use,
    blob_folder,
    blob_key,
    commit_key,
    new_blob,
    pack_commit,
    unpack_commit,
)
from proxy.store.sealing import Codec

CHANGES: list[AnyChange] = [
    Append("t", "a", 3, (10, 0), b"b" * 32, (Mark(b"\x00\xff" * 8, 5),), 1.5),
    Use("t", SessionUse("a", key=None, model="größer"), (), ((0, 3),), b"c" * 32, 2.5, 60.0),
]


def test_a_commit_comes_back() -> None:
    """All that a commit holds is read again, under its own number only when it is sealed."""
    commit = Commit(SCHEMA, b"id", CHANGES)
    for codec in (Codec(), Codec(["a passphrase for a test"])):
        assert unpack_commit(codec, 7, pack_commit(codec, 7, commit)) == commit
    with pytest.raises(Unavailable, match="moved there"):
        unpack_commit(codec, 8, pack_commit(codec, 7, commit))


def test_a_later_version_is_told_from_damage() -> None:
    """A commit of a newer schema asks for the newer version, junk for a backup."""
    codec = Codec()
    newer = codec.seal(msgspec.msgpack.encode({"schema": SCHEMA + 1, "id": b"", "changes": [["New", 1]]}), b"")
    with pytest.raises(Unavailable, match="start the newer ullage"):
        unpack_commit(codec, 1, newer)
    with pytest.raises(Unavailable, match="damaged at log/0000000000000001"):
        unpack_commit(codec, 1, codec.seal(b"junk", b""))


def test_names() -> None:
    """Numbers sort as text; blobs of one thing share a folder, and no two have one name."""
    assert commit_key(9) < commit_key(10) < commit_key(123456789)
    one, other = new_blob("original", "t", "../r"), new_blob("original", "t", "../r")
    assert one != other
    assert blob_key(one).rpartition("/")[0] == blob_folder("original", "t", "../r")
    assert blob_folder("original", "t", "r") != blob_folder("session", "t", "r") != blob_folder("session", "tr", "")
