"""`ullage demo`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rich_click as click
from click.testing import CliRunner

from proxy.cli.demo import present
from proxy.demo.recording import Recording
from proxy.demo.replay import Finding, Outcome
from tests.cli.command import run


@pytest.mark.e2e
def test_it_shows_what_was_compacted_and_recovered(tmp_path: Path) -> None:
    """Exit code 0, a line for each call and each original, nothing wrong, and nothing left behind."""
    done = run(tmp_path, "demo", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert done.stdout.count("\nok     ") == 4
    assert "2 results offloaded" in done.stdout
    assert "read_offloaded: 2 pages" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.e2e
def test_the_same_for_programs(tmp_path: Path) -> None:
    """With --json the facts: fewer tokens sent than received, every original exact."""
    done = run(tmp_path, "demo", "--json")
    facts = json.loads(done.stdout)
    assert facts["ok"]
    assert facts["session"]["licence"] == "MIT"
    assert len(facts["calls"]) == 7
    assert sum(call["sent"] for call in facts["calls"]) < 0.5 * sum(call["received"] for call in facts["calls"])
    assert [original["exact"] for original in facts["originals"]] == [True, True]


def test_a_mismatch_is_exit_code_1() -> None:
    """What was found wrong is marked, and no success is claimed."""
    outcome = Outcome([], [], [Finding("the answers are the same", ok=True), Finding("so are the bytes", ok=False)])

    @click.command()
    def show() -> None:
        present(Recording("r", [], source="a/b file", licence="MIT"), outcome, as_json=False)

    done = CliRunner().invoke(show)
    assert done.exit_code == 1
    assert "WRONG  so are the bytes" in done.output
    assert "nothing lost" not in done.output
