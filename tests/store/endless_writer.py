"""A process that writes to a store until it is killed, and tells what was confirmed: `URL NAME` are its arguments."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from proxy.errors import Conflict, Unavailable
from proxy.store import StoreOptions, open_store
from proxy.store.base import Mark, Recorded, SessionUse, Store
from tests.store.suite import key, original

T = TypeVar("T")

SHARED = "shared"


async def write(store: Store, name: str) -> None:
    """Write of everything something, for ever."""
    version, number = 0, 0
    secret = await insist(lambda: store.secret(lambda: os.urandom(16)))
    say(f"secret {secret.hex()}")
    while True:
        ref = f"{name}{number}"
        await insist(partial(store.put_originals, "t", [original(ref, name, text_of(ref))]))
        say(f"original {ref}")
        marks = [Mark(key(ref), number)]
        version = await insist(partial(store.append_ledger, "t", name, version, [ref.encode()], marks))
        say(f"entry {ref}")
        await append_somewhere(store, ref)
        say(f"shared {ref}")
        store.note("t", SessionUse(name), [Mark(key(f"n{ref}"), number)], [Recorded(number, ref.encode())])
        if number % 5 == 4:
            await insist(partial(store.get_session, "t", name))  # settles what is written behind
            say(f"notes {number}")
        number += 1


async def append_somewhere(store: Store, ref: str) -> None:
    """Append to the ledger for which all processes compete."""
    at = 0
    while True:
        try:
            await insist(partial(store.append_ledger, "t", SHARED, at, [ref.encode()], []))
        except Conflict as conflict:
            at = conflict.version
        else:
            return


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Try until the store has time for it: two processes that write without a pause are more than it must bear."""
    while True:
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.01)


def text_of(ref: str) -> bytes:
    """Return the bytes of the original with that ref."""
    return f"line of {ref}\n".encode() * (1 + len(ref) * 37 % 400)


def say(what: str) -> None:
    """Tell what was confirmed."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def main(url: str, name: str) -> None:
    """Open the store and write."""
    store = open_store(url, StoreOptions())
    await store.open()
    await write(store, name)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
