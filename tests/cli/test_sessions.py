"""`ullage sessions`."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from proxy.store import open_store
from proxy.store.base import Mark, SessionUse, StoreOptions
from tests.cli.command import run

SHAPE = {"id", "tenant", "key", "created", "last_used", "model", "format", "preset", "calls", "messages"}
SHAPE |= {"tokens", "edits", "compactions", "reads", "originals", "stored_bytes"}


async def fill(url: str) -> None:
    """Note three sessions."""
    store = open_store(url, StoreOptions())
    await store.open()
    for number in (1, 2, 3):
        use = SessionUse(
            f"s{number}", model="m", received_tokens=1000 * number, sent_tokens=10, messages=4, preset="deep"
        )
        store.note("t", use, [Mark(bytes([number]) * 16, 4)], [])
    await store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a configuration and a filled store."""
    anyio.run(fill, f"sqlite:///{tmp_path}/store.db")
    (tmp_path / "ullage.toml").write_text('[store]\nurl = "sqlite:///store.db"\n')
    return tmp_path


def test_list_as_a_table(folder: Path) -> None:
    """One line per session with what came in and what went out."""
    done = run(folder, "sessions", "list")
    head, *rows = done.stdout.splitlines()
    assert done.returncode == 0
    assert head.split()[:3] == ["id", "tenant", "model"]
    assert {row.split()[0] for row in rows} == {"s1", "s2", "s3"}
    assert next(row for row in rows if row.startswith("s3")).split()[6:8] == ["3000", "10"]


def test_list_as_json_in_pages(folder: Path) -> None:
    """The shape is that of the HTTP interface; `next` leads to the rest."""
    first = json.loads(run(folder, "sessions", "list", "--json", "--limit", "2").stdout)
    rest = json.loads(run(folder, "sessions", "list", "--json", "--cursor", first["next"]).stdout)
    assert {s["id"] for s in first["data"] + rest["data"]} == {"s1", "s2", "s3"}
    assert len(first["data"]) == 2
    assert rest["next"] is None
    assert set(first["data"][0]) == SHAPE
    assert set(first["data"][0]["tokens"]) == {"received", "sent"}
    assert first["data"][0]["created"].endswith("Z")


def test_a_longer_list_says_how_to_go_on(folder: Path) -> None:
    """The table shows a part, the hint goes to stderr."""
    done = run(folder, "sessions", "list", "--limit", "1")
    assert len(done.stdout.splitlines()) == 2
    assert "more: --cursor " in done.stderr


def test_a_wrong_cursor_is_exit_code_1(folder: Path) -> None:
    """A cursor that no list gave is told, without a traceback."""
    done = run(folder, "sessions", "list", "--cursor", "nonsense")
    assert done.returncode == 1
    assert done.stderr.startswith("ullage: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args", [("list",), ("list", "--json"), ("show", "s1")])
def test_a_store_that_is_none(folder: Path, args: tuple[str, ...]) -> None:
    """A damaged file is told once, on stderr; nothing but data is ever printed on stdout."""
    (folder / "store.db").write_bytes(b"garbage" * 1000)
    done = run(folder, "sessions", *args)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("ullage: ")
    assert len(done.stderr.splitlines()) == 1


def test_show(folder: Path) -> None:
    """One session, as a table and as JSON."""
    table = run(folder, "sessions", "show", "s2").stdout
    assert "tokens received  2000" in table
    assert json.loads(run(folder, "sessions", "show", "s2", "--json").stdout)["id"] == "s2"


def test_show_of_an_unknown_session_is_exit_code_1(folder: Path) -> None:
    """The message says how to find the right id."""
    done = run(folder, "sessions", "show", "nobody")
    assert done.returncode == 1
    assert "ullage sessions list" in done.stderr


def test_a_wish_for_a_compaction(folder: Path) -> None:
    """The session's next request makes it; the shape is that of the HTTP interface."""
    assert "next request" in run(folder, "sessions", "compact", "s1").stdout
    answer = json.loads(run(folder, "sessions", "compact", "s1", "--json").stdout)
    assert (answer["success"], answer["pending"], answer["strategy"]) == (True, True, "summarise")


def test_a_wish_for_an_unknown_session(folder: Path) -> None:
    """Exit code 1, and what to do."""
    done = run(folder, "sessions", "compact", "nobody")
    assert done.returncode == 1
    assert "ullage sessions list" in done.stderr
