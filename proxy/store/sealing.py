r"""Encryption at rest: the bytes that a store keeps, compressed and then sealed with AES-256-GCM.

A sealed value is `\x02`, the id of the key (4 bytes), a nonce (12 bytes) and the ciphertext of the packed value. What
a value belongs to (its *context*: tenant, ref or ledger) goes into the key that seals it and into the associated data,
so a value that somebody moves to another tenant or under another name does not open. The first key seals, all open;
values from before the first key are plain packed ones and still open.

An object store seals all that it keeps. An embedded one and Redis seal originals, entries and the record; names,
figures, facts and the secret stay readable there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec

from msgspec import Struct

from proxy.errors import ConfigError, Unavailable
from proxy.store.codec import pack, unpack

SEALED = b"\x02"
KEY_BYTES = 32
ID_BYTES = 4
NONCE_BYTES = 12
SHORTEST_PASSPHRASE = 16
_HEAD = len(SEALED) + ID_BYTES + NONCE_BYTES
_HOW = (
    "a key is 32 random bytes in base64 (`openssl rand -base64 32` makes one), "
    f"or a passphrase of at least {SHORTEST_PASSPHRASE} characters, from which scrypt makes one"
)


class Key(Struct, frozen=True):
    """A key of the store: what names it in what it sealed, and its bytes."""

    id: bytes
    secret: bytes


class Codec:
    """Turns values into what lies in a store and back; without keys it only compresses."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        """Take keys as they are configured; raises ConfigError for what is none, or if the library is missing."""
        if keys and find_spec("cryptography") is None:
            message = "store.encryption_keys: encryption needs another package; install ullage[encryption]"
            raise ConfigError(message, param="store.encryption_keys")
        made = [_make_key(text) for text in keys]
        self._seals = made[0] if made else None
        self._opens = {key.id: key for key in made}

    def seal(self, data: bytes, context: bytes) -> bytes:
        """Return the stored form of a value."""
        packed = pack(data)
        if self._seals is None:
            return packed
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # of an extra

        nonce = os.urandom(NONCE_BYTES)
        sealed = AESGCM(_derive(self._seals, context)).encrypt(nonce, packed, context)
        return b"".join((SEALED, self._seals.id, nonce, sealed))

    def open(self, stored: bytes, context: bytes) -> bytes:
        """Return the value; raises Unavailable if its key is missing, or if it is damaged or not of this context."""
        if stored[:1] != SEALED:
            return unpack(stored)
        key = self._opens.get(stored[1 : 1 + ID_BYTES])
        if key is None:
            raise Unavailable(
                f"the store holds a value that was encrypted with the key {stored[1 : 1 + ID_BYTES].hex()}, which is "
                f"not in store.encryption_keys{_those_there(self._opens)}; add it behind the others"
            )
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # of an extra
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # of an extra

        try:
            packed = AESGCM(_derive(key, context)).decrypt(stored[_HEAD - NONCE_BYTES : _HEAD], stored[_HEAD:], context)
        except InvalidTag:
            raise Unavailable("the store holds an encrypted value that is damaged or was moved there") from None
        return unpack(packed)


def context_of(kind: str, tenant: str, name: str) -> bytes:
    """Return what a value belongs to, as bytes that no other kind, tenant and name give."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (kind, tenant, name)]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


@lru_cache(maxsize=64)
def _make_key(text: str) -> Key:
    secret = _decoded(text)
    if secret is None:
        if len(text) < SHORTEST_PASSPHRASE:
            message = f"store.encryption_keys: a key is too short; {_HOW}"
            raise ConfigError(message, param="store.encryption_keys")
        secret = hashlib.scrypt(text.encode("utf-8", "surrogatepass"), salt=b"ullage store", n=1 << 14, r=8, p=1)
        secret = secret[:KEY_BYTES]
    return Key(hashlib.blake2b(secret, digest_size=ID_BYTES, person=b"ullage key id").digest(), secret)


def _decoded(text: str) -> bytes | None:
    """Return the bytes of a key in base64, of either alphabet; None for any other text."""
    plain = text.strip().rstrip("=").replace("-", "+").replace("_", "/")
    try:
        secret = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (ValueError, binascii.Error):
        return None
    return secret if len(secret) == KEY_BYTES else None


def _derive(key: Key, context: bytes) -> bytes:
    """Return the key for one context: so no key seals so much that random nonces might meet."""
    return hashlib.blake2b(context, key=key.secret, digest_size=KEY_BYTES, person=b"ullage seal").digest()


def _those_there(keys: dict[bytes, Key]) -> str:
    return f" (there: {', '.join(sorted(known.hex() for known in keys))})" if keys else " (there is none)"
