"""What the log of an object store consists of: numbered commits, each a list of changes that was decided on.

A change holds all that its effect depends on (times, names of blobs, which messages fit), so that every process that
applies the same commits to the same index gets the same index.
"""

from __future__ import annotations

import hashlib
import os

import msgspec
from msgspec import Struct

from proxy.errors import Unavailable
from proxy.store.base import Mark, Original, Session, SessionUse
from proxy.store.sealing import Codec, context_of

SCHEMA = 1
NAME_BYTES = 16


class Change(Struct, frozen=True, tag=True, array_like=True):
    """Base of all changes."""


class PutSecret(Change, frozen=True):
    """The secret of the place, unless it has one."""

    value: bytes


class PutOriginals(Change, frozen=True):
    """Originals without bytes, and for each ref the blob where these are; b"": the ref is known."""

    tenant: str
    originals: tuple[Original, ...]
    blobs: dict[str, bytes]
    at: float


class Erase(Change, frozen=True):
    """An original that is gone for good, of one tenant or of all."""

    tenant: str | None
    ref: str
    at: float


class Refuse(Change, frozen=True):
    """Refs that are refused from now on."""

    tenant: str
    refs: tuple[str, ...]
    at: float


class Append(Change, frozen=True):
    """Entries at the end of a ledger: their sizes, and the blob where they are in order."""

    tenant: str
    ledger: str
    position: int
    sizes: tuple[int, ...]
    blob: bytes
    marks: tuple[Mark, ...]
    at: float


class Use(Change, frozen=True):
    """A note; its messages as (index, size), in the order in which they are in the blob."""

    tenant: str
    use: SessionUse
    marks: tuple[Mark, ...]
    messages: tuple[tuple[int, int], ...]
    blob: bytes
    at: float
    slack: float


class Fold(Change, frozen=True):
    """Values of a session, by number, that moved into one blob: rows as (slot, what they held), and the old blobs."""

    ledger: int
    kind: int
    rows: tuple[tuple[int, bytes], ...]
    old: tuple[bytes, ...]
    blob: bytes


class Touch(Change, frozen=True):
    """Uses of originals: (tenant, ref, time)."""

    uses: tuple[tuple[str, str, float], ...]


class PutSession(Change, frozen=True):
    """The figures of a session."""

    session: Session
    newest: int


class Delete(Change, frozen=True):
    """A session that goes, of one tenant or of all."""

    tenant: str | None
    session: str


class Drop(Change, frozen=True):
    """Ledgers and originals that were idle, by number."""

    ledgers: tuple[int, ...]
    originals: tuple[int, ...]


class PutFact(Change, frozen=True):
    """Something learnt."""

    tenant: str
    key: str
    value: bytes


class Claim(Change, frozen=True):
    """A lock that was free."""

    tenant: str
    name: str
    at: float
    seconds: float


class Release(Change, frozen=True):
    """A lock that is given back."""

    tenant: str
    name: str
    token: int


class Collected(Change, frozen=True):
    """Blobs that nothing referred to any more and that are deleted now."""

    blobs: tuple[bytes, ...]


AnyChange = (
    PutSecret
    | PutOriginals
    | Erase
    | Refuse
    | Append
    | Use
    | Fold
    | Touch
    | PutSession
    | Delete
    | Drop
    | PutFact
    | Claim
    | Release
    | Collected
)


class Commit(Struct, frozen=True):
    """Changes that became true together; `id` tells whose attempt it was."""

    schema: int
    id: bytes
    changes: list[AnyChange]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Commit)
_header = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def encode(change: AnyChange) -> bytes:
    """Return a change as bytes; raises what its values make impossible."""
    return _encoder.encode(change)


def commit_key(number: int) -> str:
    """Return where a commit lies; keys sort as numbers do."""
    return f"log/{number:016d}"


def snapshot_key(number: int) -> str:
    """Return where the index as of a commit lies."""
    return f"snapshots/{number:016d}"


def blob_key(name: bytes) -> str:
    """Return where a blob lies."""
    return f"{_folder(name[:NAME_BYTES])}/{name[NAME_BYTES:].hex()}"


def blob_folder(kind: str, tenant: str, name: str) -> str:
    """Return where all blobs of one original or one session lie."""
    return _folder(_owner(kind, tenant, name))


def new_blob(kind: str, tenant: str, name: str) -> bytes:
    """Return a name that no other blob has: what it belongs to, hashed, and something random."""
    return _owner(kind, tenant, name) + os.urandom(NAME_BYTES)


def _folder(owner: bytes) -> str:
    return f"blobs/{owner.hex()}"


def _owner(kind: str, tenant: str, name: str) -> bytes:
    return hashlib.blake2b(context_of(kind, tenant, name), digest_size=NAME_BYTES).digest()


def pack_commit(codec: Codec, number: int, commit: Commit) -> bytes:
    """Return a commit as it lies in the store."""
    return codec.seal(_encoder.encode(commit), context_of("log", "", str(number)))


def unpack_commit(codec: Codec, number: int, stored: bytes) -> Commit:
    """Return a commit; raises Unavailable if it is damaged or of a later version."""
    plain = codec.open(stored, context_of("log", "", str(number)))
    try:
        schema = msgspec.msgpack.decode(_header.decode(plain)["schema"], type=int)
        if schema > SCHEMA:
            raise Unavailable(newer(schema))
        return _decoder.decode(plain)
    except (msgspec.MsgspecError, KeyError) as error:
        raise Unavailable(f"the store's log is damaged at {commit_key(number)}; restore it from a backup") from error


def newer(schema: int) -> str:
    """Return what to do about a place that a later version wrote."""
    return f"the store has schema {schema}, this version knows {SCHEMA}; start the newer ullage that wrote it"
