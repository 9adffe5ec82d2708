"""A store as a sequence of pieces: complete, in order, and taken in as often as one likes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.store.base import Mark, Movable, Recorded, SessionUse, StoreOptions
from proxy.store.memory import MemoryStore
from proxy.store.moving import Entries, Header, Messages, MoveFailed, Taker, decode_piece, encode_piece, pieces_of
from proxy.store.objects import ObjectsStore
from proxy.store.sqlite import SqliteStore
from tests.store.redis_servers import RedisPlace
from tests.store.suite import Clock, key, original

pytestmark = pytest.mark.anyio

MAKERS: dict[str, Callable[[Path, Clock], Movable]] = {
    "memory": lambda folder, clock: MemoryStore(StoreOptions(), clock),
    "sqlite": lambda folder, clock: SqliteStore(folder / "store.db", StoreOptions(), clock),
    "objects": lambda folder, clock: ObjectsStore(f"file://{folder}/objects", StoreOptions(), clock),
}

KINDS = [*MAKERS, pytest.param("redis", marks=pytest.mark.redis)]


def make(kind: str, folder: Path, clock: Clock, request: pytest.FixtureRequest) -> Movable:
    """Make an empty store of some kind."""
    if kind != "redis":
        return MAKERS[kind](folder, clock)
    place = RedisPlace(request.getfixturevalue("redis_url"))
    request.addfinalizer(place.discard)
    return place.store(StoreOptions(), clock)


async def fill(store: Movable, clock: Clock) -> None:
    """Store something of each kind, over some time."""
    await store.secret(lambda: b"secret")
    for number, name in enumerate("abc"):
        clock.now += 1
        await store.append_ledger("t", name, 0, [b"%d" % number, b""], [Mark(key(name), number + 1)])
        await store.put_originals("t", [original(f"r{i}", name, b"bytes" * i) for i in range(number, 4)])
    clock.now += 1
    store.note("t", SessionUse("b", model="m", reads=3), [Mark(key("a"), 50)], [Recorded(i, b"m") for i in range(250)])
    store.note("u", SessionUse("a"), [], [])
    await store.put_originals("u", [original("r1", "a", b"of another"), original("gone", "a")])
    await store.erase_original("u", "gone")
    await store.put_fact("u", "f", b"\x00")
    await store.delete_session("t", "a")


async def lines_of(store: Movable) -> list[bytes]:
    """Return all pieces as lines."""
    return [encode_piece(piece) async for piece in pieces_of(store)]


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
async def test_any_store_becomes_any_other(
    tmp_path: Path, source: str, target: str, request: pytest.FixtureRequest
) -> None:
    """All that one holds another takes in, once or twice, and then gives the same pieces."""
    clock = Clock()
    old, new = make(source, tmp_path / "old", clock, request), make(target, tmp_path / "new", clock, request)
    await old.open()
    await new.open()
    await fill(old, clock)
    lines = await lines_of(old)
    clock.now += 100
    for _ in range(2):
        taker = Taker(new)
        for line in lines:
            await taker.take(decode_piece(line))
        assert await lines_of(new) == lines
    await old.close()
    await new.close()


async def test_what_contradicts_is_refused() -> None:
    """Another secret, another history of a session, and a wrong version each end a move with a reason."""
    old, new = (MemoryStore(StoreOptions(), Clock()) for _ in range(2))
    await old.append_ledger("t", "a", 0, [b"one"], [])
    await new.append_ledger("t", "a", 0, [b"other"], [])
    taker = Taker(new)
    (entries,) = [piece async for piece in pieces_of(old) if isinstance(piece, Entries)]
    with pytest.raises(MoveFailed, match="differs; delete it there first"):
        await taker.take(entries)
    with pytest.raises(MoveFailed, match="version 99"):
        await taker.take(Header(99))
    with pytest.raises(MoveFailed, match="no export of ullage"):
        decode_piece(b"{}")


async def test_a_record_that_does_not_fit_is_noticed() -> None:
    """What is written behind is looked at before the move goes on."""
    old, new = MemoryStore(StoreOptions(), Clock()), MemoryStore(StoreOptions(stored_bytes=3), Clock())
    old.note("t", SessionUse("a"), [], [Recorded(0, b"too large")])
    (messages,) = [piece async for piece in pieces_of(old) if isinstance(piece, Messages)]
    with pytest.raises(MoveFailed, match="is there room for it"):
        await Taker(new).take(messages)


async def test_no_secret_is_made_by_looking() -> None:
    """A store without a secret has none after its pieces were made."""
    store = MemoryStore(StoreOptions(), Clock())
    assert len(await lines_of(store)) == 2
    assert await store.secret(lambda: b"first") == b"first"
