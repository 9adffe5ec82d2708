"""What the Redis store writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from proxy.errors import Conflict
from proxy.store.backlog import Note
from proxy.store.base import Mark, Recorded, SessionUse, StoreOptions
from proxy.store.redis_address import parse_address
from proxy.store.redis_changes import LARGEST, Changes, encode_note
from proxy.store.redis_connection import Connection
from proxy.store.sealing import Codec
from tests.store.redis_servers import Server, running
from tests.store.suite import Clock, key, original

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[Server]:
    """Run a server."""
    with running() as server:
        yield server


@pytest.fixture
async def changes(server: Server) -> AsyncIterator[Changes]:
    """Give changes to it."""
    connection = Connection(parse_address(server.url))
    yield Changes(connection, StoreOptions(), Clock())
    await connection.close()


@pytest.mark.redis
async def test_a_tenant_is_listed_with_its_first_write(server: Server, changes: Changes) -> None:
    """Each kind of first write puts the tenant on the list of all, and later ones do not do it again."""
    await changes.put_originals("a", [original("r", "s")], [b"\x00data"])
    await changes.append("b", "s", 0, [b"e"], [])
    await changes.claim("c", "lock", 1.0)
    await changes.note("d", ("store", 1), [1, *(encode_note(Note("d", SessionUse("s"), (), (), 0.0), Codec()) or [])])
    assert server.client.smembers("ullage:tenants") == {b"a", b"b", b"c", b"d"}
    server.client.delete("ullage:tenants")
    await changes.append("b", "s", 1, [b"e"], [])
    assert not server.client.exists("ullage:tenants")


@pytest.mark.redis
async def test_a_refused_append_writes_nothing(server: Server, changes: Changes) -> None:
    """A conflict says how long the ledger is, and leaves no trace."""
    await changes.append("t", "s", 0, [b"e", b"f"], [Mark(key("k"), 1)])
    before = {name: server.client.dump(name) for name in server.client.scan_iter()}
    with pytest.raises(Conflict) as caught:
        await changes.append("t", "s", 1, [b"g"], [Mark(key("l"), 9)])
    assert caught.value.version == 2
    assert {name: server.client.dump(name) for name in server.client.scan_iter()} == before


@pytest.mark.redis
async def test_a_batch_is_written_once(changes: Changes) -> None:
    """The same number of the same store is written once, and answered alike; another store has numbers of its own."""
    note = Note("t", SessionUse("s"), (), (Recorded(0, b"x" * 10),), 0.0)
    parts = [1, *(encode_note(note, Codec()) or [])]
    narrow = Changes(changes._connection, StoreOptions(stored_bytes=5), Clock())
    assert [await narrow.note("t", ("one", 1), parts) for _ in range(3)] == [1, 1, 1]
    assert await narrow.note("t", ("other", 1), parts) == 1
    root = changes._keys.root("t")
    assert await changes._connection.command(root, "HGET", f"{root}:l:s", "calls") == b"2"


@pytest.mark.parametrize("number", [LARGEST + 1, -LARGEST - 1])
def test_what_cannot_be_counted_is_no_note(number: int) -> None:
    """Numbers that scripts cannot hold exactly are found out before they are sent."""
    assert encode_note(Note("t", SessionUse("a", reads=number), (), (), 0.0), Codec()) is None
    assert encode_note(Note("t", SessionUse("a"), (Mark(key("k"), number),), (), 0.0), Codec()) is None
    assert (
        encode_note(Note("t", SessionUse("a", reads=LARGEST), (Mark(key("k"), LARGEST),), (), 0.0), Codec()) is not None
    )
