"""The object store keeps the laws of every store, in a folder and on a server, and what it promises about failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from proxy.errors import StoreError, Unavailable
from proxy.store import objects_bucket, objects_writer
from proxy.store.base import Erased, Mark, PageRequest, Recorded, SessionUse, StoreOptions
from proxy.store.objects import ObjectsStore
from tests.fakes.s3 import S3Server, Troublemaker
from tests.store.killing import check_killed_writers
from tests.store.machine import check_against_model
from tests.store.places import FolderPlace, ServerPlace
from tests.store.suite import Clock, Place, SharedLaws, key, original, until

pytestmark = pytest.mark.anyio

PLANTED = b"a sentence that somebody wants to be gone for good"


def test_any_calls_in_a_folder() -> None:
    """Calls in any order leave the store in the state of the model."""
    check_against_model(FolderPlace, share=6)


def test_any_calls_on_a_server(s3: S3Server) -> None:
    """Calls in any order leave the store in the state of the model."""
    check_against_model(lambda: ServerPlace(s3.place()), share=20, steps=20)


class TestLawsInAFolder(SharedLaws):
    """The laws of every store that outlives its process."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        """Give each test a place of its own."""
        place = FolderPlace()
        yield place
        place.discard()


class TestLawsOnAServer(SharedLaws):
    """The laws of every store that outlives its process."""

    @pytest.fixture
    def place(self, s3: S3Server) -> Place:
        """Give each test a place of its own."""
        return ServerPlace(s3.place())


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ObjectsStore]:
    """Open a store in a folder."""
    store = await opened(f"file://{tmp_path}")
    yield store
    await store.close()


async def opened(url: str, options: StoreOptions | None = None) -> ObjectsStore:
    """Open a store."""
    store = ObjectsStore(url, options or StoreOptions(), Clock())
    await store.open()
    return store


def bytes_below(folder: Path) -> bytes:
    """Return all names and contents below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return b"".join(str(path.relative_to(folder)).encode() + path.read_bytes() for path in files)


# -- what lies there


async def test_erased_bytes_are_gone(store: ObjectsStore, tmp_path: Path) -> None:
    """When an erasure returns, no object holds a byte of the text, not even of an attempt that failed before."""
    await store.put_originals("t", [original("r", "a", PLANTED), original("s", "a", b"another text")])
    await store._blobs.put_originals("t", [original("r", "a", PLANTED)])  # as if the process had died then
    assert bytes_below(tmp_path).count(PLANTED) == 2
    assert await store.erase_original(None, "r")
    assert PLANTED not in bytes_below(tmp_path)
    assert await store.get_original("t", "s") == original("s", "a", b"another text")


async def test_a_deleted_session_leaves_no_bytes(store: ObjectsStore, tmp_path: Path) -> None:
    """Entries and record of a session go with it, at once."""
    await store.append_ledger("t", "a", 0, [PLANTED], [Mark(key("k"), 1)])
    store.note("t", SessionUse("a"), [], [Recorded(0, PLANTED)])
    await store.stats()
    assert bytes_below(tmp_path).count(PLANTED) == 2
    await store.delete_session("t", "a")
    assert PLANTED not in bytes_below(tmp_path)


async def test_no_name_tells_anything(store: ObjectsStore, tmp_path: Path) -> None:
    """Neither tenants nor refs nor sessions become parts of keys: dots and slashes in them lead nowhere."""
    tenant, ref, session = "../../tenant", "../ref/./x", "..\\session\x00"
    await store.put_originals(tenant, [original(ref, session, b"bytes")])
    await store.append_ledger(tenant, session, 0, [b"e"], [])
    assert await store.get_original(tenant, ref) == original(ref, session, b"bytes")
    names = {part for path in tmp_path.rglob("*") for part in path.relative_to(tmp_path).parts}
    assert not [name for name in names if "tenant" in name or "ref" in name or "session" in name]
    assert {path.name for path in tmp_path.iterdir()} == {"ullage.json", "log", "blobs"}


async def test_equal_content_of_two_tenants_is_stored_twice(store: ObjectsStore, tmp_path: Path) -> None:
    """Nothing is shared between tenants, not even the knowledge that one has it already."""
    for tenant in ("t", "u"):
        await store.put_originals(tenant, [original("r", "a", PLANTED)])
    assert bytes_below(tmp_path).count(PLANTED) == 2


# -- several processes, and long logs


async def test_who_asks_for_a_held_lock_writes_nothing(store: ObjectsStore, tmp_path: Path) -> None:
    """So that many may ask often."""
    assert await store.claim("t", "lock", 60.0) is not None
    before = bytes_below(tmp_path)
    assert [await store.claim("t", "lock", 60.0) for _ in range(5)] == [None] * 5
    assert bytes_below(tmp_path) == before


@pytest.mark.parametrize("where", ["folder", "server"])
async def test_a_killed_process_loses_nothing_that_was_confirmed(s3: S3Server, tmp_path: Path, where: str) -> None:
    """After kill -9 in the middle of writes, all that any process was told is stored is there and whole."""
    await check_killed_writers(f"file://{tmp_path}/place" if where == "folder" else s3.place(), 2)


# -- a server in trouble


@pytest.fixture
def trouble(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Troublemaker]:
    """Give something that makes trouble in front of the server, and a store little patience."""
    if not s3.endpoint:
        pytest.skip("a server elsewhere is not made trouble with")
    monkeypatch.setattr(objects_bucket, "REQUEST", timedelta(seconds=0.4))
    monkeypatch.setattr(objects_bucket, "ANSWER", 1.0)
    monkeypatch.setattr(objects_writer, "ANSWER", 1.0)
    monkeypatch.setitem(objects_bucket._RETRY, "max_retries", 0)
    with Troublemaker(s3.endpoint) as troublemaker:
        yield troublemaker


Call = Callable[[ObjectsStore], object]
CALLS: dict[str, Call] = {
    "ping": lambda s: s.ping(),
    "put": lambda s: s.put_originals("t", [original("new", "a", b"x" * 500)]),
    "get": lambda s: s.get_original("t", "r"),
    "append": lambda s: s.append_ledger("t", "a", 1, [b"f"], []),
    "load": lambda s: s.load_ledger("t", "a"),
    "find": lambda s: s.find_tips("t", [key("k")]),
    "list": lambda s: s.list_sessions("t", PageRequest()),
    "erase": lambda s: s.erase_original("t", "r"),
    "facts": lambda s: s.facts("t"),
}


@pytest.mark.parametrize(
    ("kind", "what"), [("500", "failed to"), ("403", "access is denied"), ("silent", "in time"), ("cut", "failed to")]
)
async def test_trouble_is_told_and_passes(s3: S3Server, trouble: Troublemaker, kind: str, what: str) -> None:
    """Each call says what is wrong instead of hanging, and works again once the cause is gone; nothing is lost."""
    store = await opened(s3.place(trouble.endpoint))
    await store.put_originals("t", [original("r", "a")])
    await store.append_ledger("t", "a", 0, [b"e"], [Mark(key("k"), 1)])
    trouble.trouble = kind
    told = []
    for call in CALLS.values():
        with pytest.raises(Unavailable) as caught:
            await call(store)  # type: ignore[misc]  # each returns something else
        told.append(caught.value.message)
    assert any(what in message for message in told), told
    store.note("t", SessionUse("a", reads=1), [Mark(key("l"), 2)], [Recorded(0, b"m")])
    assert (await store.stats()).dropped == 0
    trouble.trouble = ""
    await until(partial(answers, store), bool)
    assert [tip.length for tip in await store.find_tips("t", [key("k"), key("l")])] == [1, 2]
    session = await store.get_session("t", "a")
    assert session is not None
    assert (session.calls, session.reads) == (1, 1)
    assert await store.load_record("t", "a", 0, 9) == [Recorded(0, b"m")]
    assert await store.get_original("t", "r") in (original("r", "a"), Erased("r"))
    await store.close()


async def answers(store: ObjectsStore) -> bool:
    """Whether a store answers."""
    try:
        await store.ping()
    except StoreError:
        return False
    return True
