"""The benchmark runs; what it finds is for people to judge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cells import LARGE_BYTES, Cell, all_cells

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("cell", all_cells(), ids=lambda cell: cell.name)
def test_bodies_have_the_size_that_they_are_named_after(cell: Cell) -> None:
    """Within a few per cent, and with about 200 messages in the large ones; connections do not share a history."""
    body = cell.bodies(0)()
    messages = json.loads(body)["messages"]
    assert abs(len(body) - cell.size_bytes) < 0.05 * cell.size_bytes
    assert len(messages) in ((200, 202) if cell.size_bytes == LARGE_BYTES else (4,))
    assert cell.bodies(1)() != body


def test_a_growing_history_begins_with_the_one_before() -> None:
    """Each request adds a step, as an agent does."""
    following = Cell(LARGE_BYTES, streamed=False, kind="growing").bodies(0)
    first, second = following(), following()
    assert second.startswith(first.removesuffix(b"]}"))
    assert len(json.loads(second)["messages"]) == len(json.loads(first)["messages"]) + 2


@pytest.mark.e2e
def test_a_short_run_measures_gateway_and_relay() -> None:
    """One round of the 2 KB cells: CPU time of both, and the gateway did what each cell is about."""
    command = [sys.executable, "-m", "bench", "--only", "2 KB whole", "--rounds", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    measured = {one["name"]: one for one in json.loads(done.stdout)}
    assert set(measured) == {"2 KB whole plain", "2 KB whole tools", "2 KB whole compacted"}
    for one in measured.values():
        assert one["gateway"]["cpu_ms"] > 0
        assert one["relay"]["cpu_ms"] > 0
        assert one["gateway"]["peak_bytes"] > 10_000_000


def test_a_cell_that_is_not_there_is_exit_code_2() -> None:
    """The message lists what there is."""
    command = [sys.executable, "-m", "bench", "--only", "3 KB"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert "400 KB streamed growing" in done.stderr
