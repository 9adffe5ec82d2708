"""Encryption at rest: what is sealed opens for its context and with its key alone."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ConfigError, Unavailable
from proxy.store.base import Mark, Recorded, SessionUse, StoreOptions
from proxy.store.codec import pack
from proxy.store.sealing import Codec, context_of
from proxy.store.sqlite import SqliteStore
from tests.store.machine import check_against_model
from tests.store.places import EncryptedFilePlace, EncryptedFolderPlace
from tests.store.redis_servers import PASSPHRASE
from tests.store.suite import Clock, Place, SharedLaws, original

pytestmark = pytest.mark.anyio

OLD = base64.b64encode(bytes(range(32))).decode()
NEW = base64.urlsafe_b64encode(b"\xfb\xff" * 16).decode().rstrip("=")
HERE = context_of("original", "t", "r")
PLANTED = b"the text that nobody may find in a file"


@given(st.binary(max_size=600) | st.integers(0, 5000).map(lambda n: b"text " * n))
def test_a_value_comes_back(data: bytes) -> None:
    """Opening gives the bytes that were sealed, and equal bytes are sealed differently each time."""
    codec = Codec([OLD])
    stored = codec.seal(data, HERE)
    assert codec.open(stored, HERE) == data
    assert stored != codec.seal(data, HERE)
    assert len(stored) <= len(data) + 40


@given(st.lists(st.text(max_size=3), min_size=3, max_size=3), st.lists(st.text(max_size=3), min_size=3, max_size=3))
def test_contexts_differ(one: list[str], other: list[str]) -> None:
    """No two kinds, tenants and names make one context, however their texts run together."""
    assert (context_of(*one) == context_of(*other)) == (one == other)


@pytest.mark.parametrize("where", [("original", "u", "r"), ("original", "t", "s"), ("entry", "t", "r")])
def test_a_moved_value_does_not_open(where: tuple[str, str, str]) -> None:
    """A value under another tenant, name or kind is refused."""
    with pytest.raises(Unavailable, match="damaged or was moved"):
        Codec([OLD]).open(Codec([OLD]).seal(PLANTED, HERE), context_of(*where))


@pytest.mark.parametrize("at", [8, 20, -1])
def test_damage_is_noticed(at: int) -> None:
    """A changed byte of nonce, value or tag is never served."""
    stored = bytearray(Codec([OLD]).seal(PLANTED, HERE))
    stored[at] ^= 1
    with pytest.raises(Unavailable, match="damaged"):
        Codec([OLD]).open(bytes(stored), HERE)


def test_keys_rotate() -> None:
    """The first key seals, the others still open; without the right one the message names it."""
    old = Codec([OLD]).seal(PLANTED, HERE)
    both = Codec([NEW, OLD])
    assert both.open(old, HERE) == PLANTED
    new = both.seal(PLANTED, HERE)
    assert Codec([NEW]).open(new, HERE) == PLANTED
    name = old[1:5].hex()
    assert new[1:5].hex() != name
    with pytest.raises(Unavailable, match=rf"with the key {name}, which is not in store\.encryption_keys \(there: "):
        Codec([NEW]).open(old, HERE)
    with pytest.raises(Unavailable, match=rf"with the key {name}.* \(there is none\)"):
        Codec().open(old, HERE)


def test_what_was_there_before_still_opens() -> None:
    """Values from before the first key are read, with and without keys."""
    for codec in (Codec(), Codec([OLD])):
        assert codec.open(pack(PLANTED * 50), HERE) == PLANTED * 50


def test_forms_of_a_key() -> None:
    """32 bytes in either alphabet are one key, a passphrase makes another, and what is too short is refused."""
    secret = bytes(range(200, 232))
    forms = [base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode().rstrip("=")]
    sealed = Codec(forms[:1]).seal(PLANTED, HERE)
    assert Codec(forms[1:]).open(sealed, HERE) == PLANTED
    assert Codec([PASSPHRASE]).open(Codec([PASSPHRASE]).seal(PLANTED, HERE), HERE) == PLANTED
    for short in ("", "short", base64.b64encode(b"x" * 8).decode()):
        with pytest.raises(ConfigError, match=re.escape("store.encryption_keys: a key is too short; a key is 32")):
            Codec([short])


def test_any_calls_on_an_encrypted_file() -> None:
    """Calls in any order leave the store in the state of the model."""
    check_against_model(EncryptedFilePlace, share=10, steps=40)


class TestLawsOnAnEncryptedFile(SharedLaws):
    """The laws of every store that outlives its process."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        """Give each test a place of its own."""
        place = EncryptedFilePlace()
        yield place
        place.discard()


class TestLawsInAnEncryptedFolder(SharedLaws):
    """The laws of every store that outlives its process."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        """Give each test a place of its own."""
        place = EncryptedFolderPlace()
        yield place
        place.discard()


@pytest.mark.parametrize("make_place", [EncryptedFilePlace, EncryptedFolderPlace])
async def test_no_text_is_in_any_file(make_place: type[EncryptedFilePlace | EncryptedFolderPlace]) -> None:
    """Originals, entries and the record lie encrypted: neither they nor their refs are found in a folder of objects."""
    place = make_place()
    store = place.store(StoreOptions(), Clock())
    await store.open()
    await store.put_originals("t", [original("r", "a", PLANTED)])
    await store.append_ledger("t", "a", 0, [PLANTED], [Mark(b"k" * 16, 1)])
    store.note("t", SessionUse("a"), [], [Recorded(0, PLANTED)])
    await store.stats()
    found = b"".join(file.read_bytes() for file in place.folder.rglob("*") if file.is_file())
    assert PLANTED not in found
    await store.close()
    place.discard()


async def test_a_file_from_before_encryption_is_read_on(tmp_path: Path) -> None:
    """With a key, an old file is read, what is written is encrypted, and without the key only that is lost."""
    for keys, ref in ((), "old"), ((OLD,), "new"), ((NEW, OLD), "newer"):
        store = SqliteStore(tmp_path / "store.db", StoreOptions(encryption_keys=keys), Clock())
        await store.open()
        await store.put_originals("t", [original(ref, "a", os.urandom(8) + ref.encode())])
        await store.append_ledger("t", "a", ["old", "new", "newer"].index(ref), [ref.encode()], [])
        await store.close()
    store = SqliteStore(tmp_path / "store.db", StoreOptions(encryption_keys=(NEW,)), Clock())
    await store.open()
    assert await store.get_original("t", "old") is not None
    assert await store.get_original("t", "newer") is not None
    with pytest.raises(Unavailable, match=r"not in store\.encryption_keys"):
        await store.get_original("t", "new")
    with pytest.raises(Unavailable, match=r"not in store\.encryption_keys"):
        await store.load_ledger("t", "a")
    await store.close()
