"""Processes that are killed while they write, and what has to be there afterwards; for stores that several share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from proxy.store import open_store
from proxy.store.base import Recorded, Store, StoreOptions
from tests.store.endless_writer import SHARED, text_of
from tests.store.suite import key, original

ROOT = Path(__file__).parents[2]


async def check_killed_writers(url: str, writers: int) -> None:
    """Kill one or two writers in the middle, and find all that any of them was told is stored, whole."""
    names = ["a", "b"][:writers]
    processes = [start_writer(url, name) for name in names]
    try:
        said = [read_until(process, "notes 14") for process in processes]
    finally:
        for process in processes:
            process.kill()
        rests = [process.communicate()[0] for process in processes]
    for lines, rest in zip(said, rests, strict=True):
        lines += [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    store = open_store(url, StoreOptions())
    await store.open()
    for name, lines in zip(names, said, strict=True):
        await check_confirmed(store, name, [line.split() for line in lines])
    shared = await store.load_ledger("t", SHARED)
    assert len(shared) == len(set(shared))
    await store.close()


def start_writer(url: str, name: str) -> subprocess.Popen[str]:
    """Start a process that writes until it is killed."""
    command = [sys.executable, "-m", "tests.store.endless_writer", url, name]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def read_until(process: subprocess.Popen[str], last: str) -> list[str]:
    """Return what a process says up to a line."""
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if line.strip() == last:
            return lines
    pytest.fail(f"the writer ended by itself after {lines[-1:]}")


async def check_confirmed(store: Store, name: str, said: list[list[str]]) -> None:
    """Check that a store holds all that a writer was told."""
    told: dict[str, list[str]] = {}
    for what, value in said:
        told.setdefault(what, []).append(value)
    assert await store.secret(lambda: b"") == bytes.fromhex(told["secret"][0])
    for ref in told["original"]:
        assert await store.get_original("t", ref) == original(ref, name, text_of(ref))
    entries = await store.load_ledger("t", name)
    assert entries[: len(told["entry"])] == [ref.encode() for ref in told["entry"]]
    tips = await store.find_tips("t", [key(ref) for ref in told["entry"]])
    assert [tip.length for tip in tips] == list(range(len(told["entry"])))
    assert set(told["shared"]) <= {entry.decode() for entry in await store.load_ledger("t", SHARED)}
    count = int(told["notes"][-1]) + 1
    expected = [Recorded(i, f"{name}{i}".encode()) for i in range(count)]
    assert await store.load_record("t", name, 0, count) == expected
    assert len(await store.find_tips("t", [key(f"n{name}{i}") for i in range(count)])) == count
