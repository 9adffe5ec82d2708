"""Programs that are measured: started here, their CPU time and memory read from /proc."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_FORGET_PEAK = "5"  # what /proc/PID/clear_refs takes


class Target(Struct, frozen=True):
    """Where requests go; without a process id nothing is measured there."""

    name: str
    port: int
    pid: int = 0

    def cpu_seconds(self) -> float:
        """Return what the process and its children have used so far, user and system together."""
        return sum(_ticks(pid) for pid in _family(self.pid)) * _TICK_SECONDS if self.pid else 0.0

    def peak_bytes(self) -> int:
        """Return the most memory that the processes had at once since `forget_peak`, added up."""
        return sum(_peak(pid) for pid in _family(self.pid)) if self.pid else 0

    def forget_peak(self) -> None:
        """Measure the peak from now on."""
        for pid in _family(self.pid) if self.pid else ():
            Path(f"/proc/{pid}/clear_refs").write_text(_FORGET_PEAK, "ascii")


@contextmanager
def running(module: str, *arguments: str) -> Iterator[Target]:
    """Run a program that prints its port; end it with the context."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)  # noqa: S603  # ours
    try:
        assert process.stdout is not None  # noqa: S101  # a pipe was asked for
        word, _, port = process.stdout.readline().partition(" ")
        if word != "port":
            raise RuntimeError(f"{module} did not start")
        yield Target(module, int(port), process.pid)
    finally:
        process.terminate()
        process.communicate()


def _family(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text("ascii").split():
            yield from _family(int(child))


def _ticks(pid: int) -> int:
    """Return user and system time, those of children that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(") ")[2].split()
    return sum(map(int, fields[11:15]))


def _peak(pid: int) -> int:
    found = _PEAK.search(Path(f"/proc/{pid}/status").read_text("utf-8"))
    return int(found[1]) * 1024 if found else 0
