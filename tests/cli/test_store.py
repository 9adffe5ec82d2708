"""`ullage store`: check, gc, export, import and migrate, by the real command on real stores."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy.core.history import digest
from proxy.core.ledger import Began, Offloaded, encode_entry
from proxy.core.stub import make_ref
from proxy.store import StoreOptions, open_store
from proxy.store.base import Erased, Mark, Movable, Original, PageRequest, Recorded, SessionUse
from proxy.store.moving import encode_piece, pieces_of
from tests.cli.command import run

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

SECRET = b"s" * 32
ROOT = b"r" * 16
TEXTS = {"one": b"the text of one\n" * 30, "two": "zwei, größer\n".encode() * 900}
KEY = "correct horse battery staple"


def ref_of(name: str) -> str:
    """Return the ref of a text."""
    return make_ref(SECRET, ROOT, TEXTS[name])


def entry_of(name: str) -> bytes:
    """Return the decision to move a text out."""
    entry = Offloaded(
        exact=digest(TEXTS[name]), since=1, ref=ref_of(name), kind="result", policy="p", reason="over_limit", tokens=1,
        lines=1, head_lines=1, tail_lines=1, reader="read_offloaded",
    )  # fmt: skip
    return encode_entry(entry)


def original_of(name: str, ledger: str) -> Original:
    """Return a text as it is stored."""
    data = TEXTS[name]
    return Original(ref_of(name), ledger, "result", "grep", 1, data.count(b"\n"), len(data), 1.5, data)


async def fill(store: Movable) -> None:
    """Store two sessions of one tenant that share an original, one of another, a tombstone and a fact."""
    await store.secret(lambda: SECRET)
    await store.put_originals("t", [original_of("one", "a"), original_of("two", "a")])
    await store.append_ledger("t", "a", 0, [encode_entry(Began(ROOT)), entry_of("one"), entry_of("two")], [])
    await store.put_originals("t", [original_of("two", "b")])
    await store.append_ledger("t", "b", 0, [encode_entry(Began(ROOT)), entry_of("two")], [Mark(b"k" * 16, 4)])
    store.note("t", SessionUse("b", key="key", reads=2), [Mark(b"l" * 16, 9)], [Recorded(3, b"\x00m")])
    await store.put_originals("u", [original_of("one", "c")])
    await store.erase_original("u", ref_of("one"))
    await store.put_fact("t", "fact", b"\xff")


async def everything(store: Movable) -> list[bytes]:
    """Return all that a store holds."""
    return [encode_piece(piece) async for piece in pieces_of(store)]


async def contents(url: str, options: StoreOptions | None = None) -> list[bytes]:
    """Return all that the store at a URL holds."""
    store = open_store(url, options or StoreOptions())
    await store.open()
    try:
        return await everything(store)
    finally:
        await store.close()


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """Fill a store in a file."""
    url = f"sqlite:///{tmp_path}/store.db"
    store = open_store(url, StoreOptions())
    await store.open()
    await fill(store)
    await store.close()
    return url


async def test_a_sound_store(url: str, tmp_path: Path) -> None:
    """What is there and right is counted; nothing is on stderr, where no terminal is."""
    done = run(tmp_path, "store", "check", "--json", ULLAGE_STORE=url)
    found = {"sessions": 3, "entries": 5, "originals": 3, "erased": 0, "flaws": []}
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, found, "")


async def test_an_unsound_store(url: str, tmp_path: Path) -> None:
    """A lost and a changed original are named, and the exit code is 1."""
    with closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
        db.execute("DELETE FROM original WHERE ref = ?", (ref_of("one"),))
        db.execute(
            "UPDATE body SET data = ? WHERE original = (SELECT id FROM original WHERE ref = ?)",
            (b"\x00forged", ref_of("two")),
        )
    done = run(tmp_path, "store", "check", ULLAGE_STORE=url)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"t b {ref_of('two')}: damaged",
        f"t a {ref_of('one')}: missing",
        f"t a {ref_of('two')}: damaged",
        "ullage: the store is not sound; lost originals come back with a request that still carries them",
    ]
    assert [
        flaw["what"] for flaw in json.loads(run(tmp_path, "store", "check", "--json", ULLAGE_STORE=url).stdout)["flaws"]
    ]


async def test_an_export_comes_back(url: str, tmp_path: Path) -> None:
    """An export taken in elsewhere, twice, makes the same store; the file is for nobody else's eyes."""
    assert run(tmp_path, "store", "export", "all.ullage", ULLAGE_STORE=url).returncode == 0
    assert (tmp_path / "all.ullage").stat().st_mode & 0o077 == 0
    other = f"sqlite:///{tmp_path}/other.db"
    for _ in range(2):
        done = run(tmp_path, "store", "import", "all.ullage", "--json", ULLAGE_STORE=other)
        assert (done.returncode, done.stderr) == (0, "")
        assert await contents(other) == await contents(url)
    assert json.loads(done.stdout)["pieces"] == len(await contents(url))


async def test_a_damaged_export_is_refused(url: str, tmp_path: Path) -> None:
    """A file that was cut off, or is something else, is told from a whole one."""
    run(tmp_path, "store", "export", "all.ullage", ULLAGE_STORE=url)
    whole = (tmp_path / "all.ullage").read_bytes()
    for damaged in (whole[:-40], b"something else", b""):
        (tmp_path / "damaged").write_bytes(damaged)
        done = run(tmp_path, "store", "import", "damaged", ULLAGE_STORE=f"sqlite:///{tmp_path}/other.db")
        assert done.returncode == 1
        assert "damaged" in done.stderr


async def test_a_migration(url: str, tmp_path: Path) -> None:
    """A store moves into a folder of encrypted objects and back, lossless; broken off, it goes on."""
    folder, back = f"file://{tmp_path}/objects", f"sqlite:///{tmp_path}/back.db"
    (tmp_path / "ullage.toml").write_text(f'[store]\nencryption_keys = ["{KEY}"]\n')
    store = open_store(folder, StoreOptions(encryption_keys=(KEY,)))
    await store.open()
    await store.put_originals("t", [original_of("one", "a")])  # all that an earlier attempt has done
    await store.close()
    done = run(tmp_path, "store", "migrate", url, folder, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"sessions": 3, "originals": 2, "copied": 1, "there": 2}
    assert run(tmp_path, "store", "migrate", folder, back).returncode == 0
    keys = StoreOptions(encryption_keys=(KEY,))
    assert await contents(url) == await contents(folder, keys) == await contents(back, keys)
    raw = b"".join(file.read_bytes() for file in (tmp_path / "objects").rglob("*") if file.is_file())
    assert b"the text of one" not in raw


async def test_a_place_in_use_is_not_written_over(url: str, tmp_path: Path) -> None:
    """A place with a secret of its own, or with a session that went on differently, is refused."""
    other = open_store(f"sqlite:///{tmp_path}/other.db", StoreOptions())
    await other.open()
    await other.secret(lambda: b"other")
    await other.close()
    done = run(tmp_path, "store", "migrate", url, f"sqlite:///{tmp_path}/other.db")
    assert (done.returncode, "a secret of its own" in done.stderr) == (1, True)


async def test_garbage_goes_at_once(url: str, tmp_path: Path) -> None:
    """What was idle for long is dropped, what is in use is not."""
    with closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
        db.execute("UPDATE ledger SET renewed = 1 WHERE name = 'a'")
    done = run(tmp_path, "store", "gc", "--json", ULLAGE_STORE=url)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"dropped": 1})
    store = open_store(url, StoreOptions())
    await store.open()
    assert {session.id for session in (await store.list_sessions(None, PageRequest())).data} == {"b", "c"}
    assert await store.get_original("u", ref_of("one")) == Erased(ref_of("one"))
    await store.close()


def test_no_store_is_made_by_looking(tmp_path: Path) -> None:
    """Where no store is, only import and migrate make one."""
    for url in ("sqlite:///none.db", f"file://{tmp_path}/none"):
        for words in (["check"], ["gc"], ["export", "x"]):
            done = run(tmp_path, "store", *words, ULLAGE_STORE=url)
            assert (done.returncode, "there is no store" in done.stderr) == (1, True)
    assert not os.listdir(tmp_path)  # noqa: PTH208  # one look at a folder, in a test
