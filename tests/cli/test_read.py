"""`ullage read`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import anyio
import pytest

from proxy.store import open_store
from proxy.store.base import Original, StoreOptions
from tests.cli.command import COMMAND, environ, run

REF = "off_" + "a" * 26
ERASED = "off_" + "b" * 26
DATA = b"first\r\n\x00\xff no newline at the end"


def original(ref: str, data: bytes) -> Original:
    """Return an original with these bytes."""
    return Original(ref, "s1", "result", "search", 5, 2, len(data), 1.0e9, data)


async def fill(url: str) -> None:
    """Store an original, and erase another."""
    store = open_store(url, StoreOptions(idle_ttl=1e12))
    await store.open()
    await store.put_originals("t", [original(REF, DATA), original(ERASED, b"x")])
    await store.erase_original("t", ERASED)
    await store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a configuration and a filled store."""
    anyio.run(fill, f"sqlite:///{tmp_path}/store.db")
    (tmp_path / "ullage.toml").write_text('[store]\nurl = "sqlite:///store.db"\nidle_ttl = "30000d"\n')
    return tmp_path


def test_the_exact_bytes_are_printed(folder: Path) -> None:
    """No newline, no decoding: what was stored comes out."""
    done = subprocess.run(
        [*COMMAND, "read", REF], cwd=folder, env=environ(), capture_output=True, timeout=30, check=True
    )
    assert done.stdout == DATA


@pytest.mark.parametrize(("ref", "why"), [("off_nothing", "no such original here"), (ERASED, "erased for good")])
def test_what_is_not_there_is_exit_code_1(folder: Path, ref: str, why: str) -> None:
    """The message says which of the reasons it is; nothing is printed on stdout."""
    done = run(folder, "read", ref)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"ullage: {ref}: " in done.stderr
    assert why in done.stderr


def test_a_store_in_memory_is_exit_code_1(folder: Path) -> None:
    """The command says who can be asked instead."""
    done = run(folder, "read", REF, ULLAGE_STORE="memory:")
    assert done.returncode == 1
    assert "/ullage/v1/" in done.stderr
