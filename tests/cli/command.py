"""Runs the real command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = (sys.executable, "-m", "proxy")
ROOT = Path(__file__).parents[2]


def environ(**more: str) -> dict[str, str]:
    """Return the environment without what would configure the command, and with what a test sets."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ULLAGE_", "OPENAI_"))}
    return {**kept, "NO_COLOR": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "100", **more}


def run(folder: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `ullage ARGS` in a folder."""
    return subprocess.run(
        [*COMMAND, *args],
        cwd=folder,
        env=environ(**more),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        stdin=subprocess.DEVNULL,
    )
