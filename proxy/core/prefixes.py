"""Reading the messages of a body, without reading again what an earlier request held already.

Clients send the whole history each time, so almost every body begins with bytes that were read before. The bytes of the
list are hashed in blocks, each hash standing for everything up to its end; the longest known one gives the messages
that lie whole in front of it, with their places, facts and links of the chain. Only the rest is taken apart.

A hash stands for exact bytes and what is kept for it is a pure function of them, so nothing here depends on who sent
them, and nothing of the texts themselves is kept.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from proxy.core.envelope import Envelope, locate, split_list
from proxy.core.history import DIGEST_BYTES, Adapter, Facts, FactsMemo, History, RawMessages, count_leading, link
from proxy.core.memo import Memo

BLOCK_BYTES = 16_384
_CAPACITY_MESSAGES = 250_000


class _Prefix(NamedTuple):
    """What is known of the messages in front of the end of a block; places count from the start of the list."""

    starts: array[int]
    stops: array[int]
    facts: tuple[Facts, ...]
    links: bytes


class Reader:
    """Reads the messages of bodies of one wire format."""

    def __init__(self, adapter: Adapter, block_bytes: int = BLOCK_BYTES) -> None:
        self._facts = FactsMemo(adapter)
        self._block = block_bytes
        self._known: Memo[bytes, _Prefix] = Memo(_CAPACITY_MESSAGES)

    def read(self, envelope: Envelope) -> History:
        """Return the history of a body; raises NotAnEnvelope when its list cannot be split."""
        begin, end = envelope.spans["messages"]
        digests = self._digests(envelope.body, begin, end)
        known, blocks = self._longest(digests)
        whole = self._extend(envelope, known)
        if blocks < len(digests):
            self._keep(digests[-1], whole, len(digests) * self._block)
        return History(RawMessages(envelope.body, begin, whole.starts, whole.stops), whole.facts, whole.links)

    def match_of(self, raw: bytes) -> bytes:
        """Return the match digest of one raw message."""
        return self._facts.look_up([raw])[0].match

    def _digests(self, body: bytes, begin: int, end: int) -> list[bytes]:
        """Return a hash for the bytes from the start of the list up to the end of each whole block."""
        state, view = hashlib.sha256(), memoryview(body)
        out: list[bytes] = []
        for at in range(begin, end - self._block + 1, self._block):
            state.update(view[at : at + self._block])
            out.append(state.digest())
        return out

    def _longest(self, digests: Sequence[bytes]) -> tuple[_Prefix, int]:
        """Return the longest known prefix and how many blocks it has."""
        for blocks in range(len(digests), 0, -1):
            known = self._known.get(digests[blocks - 1])
            if known is not None:
                return known, blocks
        return _NOTHING, 0

    def _extend(self, envelope: Envelope, known: _Prefix) -> _Prefix:
        """Return the prefix with all that follows it in this body."""
        begin, end = envelope.spans["messages"]
        if known.stops:
            rest = envelope.body[begin + known.stops[-1] : end].lstrip().removeprefix(b",")
            raws, at = split_list(b"[" + rest), end - len(rest)
        else:
            raws, at = split_list(envelope.fields["messages"]), begin + 1
        spans = locate(envelope.body, at, raws)
        facts = (*known.facts, *self._facts.look_up(raws))
        starts, stops = known.starts[:], known.stops[:]
        starts.extend(span.start - begin for span in spans)
        stops.extend(span.stop - begin for span in spans)
        return _Prefix(starts, stops, facts, _links(known, facts))

    def _keep(self, digest: bytes, whole: _Prefix, limit: int) -> None:
        """Remember the messages that lie whole in front of a place."""
        count = bisect_right(whole.stops, limit)
        if count:
            links = whole.links[: DIGEST_BYTES * (max(0, count - count_leading(whole.facts)) + 1)]
            kept = _Prefix(whole.starts[:count], whole.stops[:count], whole.facts[:count], links)
            self._known.put(digest, kept, weight=count)


_NOTHING = _Prefix(array("q"), array("q"), (), b"")


def _links(known: _Prefix, facts: Sequence[Facts]) -> bytes:
    """Return the links of the chain: the one of the empty chain, then one for each message of the chain."""
    leading = count_leading(facts)
    first = known.links or bytes(DIGEST_BYTES)
    done = len(first) // DIGEST_BYTES - 1 + leading
    chain = accumulate((f.match for f in facts[done:]), link, initial=first[-DIGEST_BYTES:])
    next(chain)
    return b"".join([first, *chain])
