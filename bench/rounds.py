"""Measures one cell: gateway, bare relay and the upstream alone in turns, so that a busy machine slows all alike."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

from msgspec import Struct

from bench.cells import SMALL_BYTES, Cell
from bench.load import Failed, Load
from bench.process import Target

_PER_ROUND = {True: 300, False: 60}  # requests; by whether the body is small
_SETTLE_SECONDS = 0.3  # the store writes behind


class Targets(Struct, frozen=True):
    """Where the same requests go."""

    gateway: Target
    relay: Target
    direct: Target  # the upstream itself


class Cost(Struct, frozen=True):
    """What one target did with a cell; times in milliseconds."""

    cpu_ms: float
    p50_ms: float
    p99_ms: float
    peak_bytes: int


class Measured(Struct, frozen=True):
    """One line of the table."""

    cell: Cell
    requests: int
    gateway: Cost
    relay: Cost
    direct: Cost

    @property
    def ratio(self) -> float:
        """CPU time of the gateway by that of the relay."""
        return self.gateway.cpu_ms / self.relay.cpu_ms if self.relay.cpu_ms else float("nan")


class _Runner:
    """One target during a cell."""

    def __init__(self, target: Target, cell: Cell) -> None:
        self._target = target
        self._load = Load(target.port, cell)
        self._times: list[float] = []
        self._cpu = 0.0

    async def begin(self, warm_up: int) -> int:
        """Connect, warm up, and measure from now on; returns how many edits are told of."""
        await self._load.open()
        await self._load.run(warm_up)
        await asyncio.sleep(_SETTLE_SECONDS)
        self._target.forget_peak()
        self._cpu = self._target.cpu_seconds()
        return self._load.edits()

    async def run(self, count: int) -> None:
        self._times += await self._load.run(count)

    def end(self) -> Cost:
        self._load.close()
        seconds = self._target.cpu_seconds() - self._cpu
        percentiles = statistics.quantiles(self._times, n=100)
        return Cost(
            cpu_ms=1000 * seconds / len(self._times),
            p50_ms=1000 * percentiles[49],
            p99_ms=1000 * percentiles[98],
            peak_bytes=self._target.peak_bytes(),
        )


async def measure(cell: Cell, targets: Targets, rounds: int) -> Measured:
    """Measure a cell; raises Failed when the gateway did not do what the cell is about."""
    count = _PER_ROUND[cell.size_bytes == SMALL_BYTES]
    runners = [_Runner(target, cell) for target in (targets.gateway, targets.relay, targets.direct)]
    edits = [await runner.begin(count // 4) for runner in runners]
    if edits[0] != cell.edits:
        raise Failed(f"{cell.name}: the gateway tells of {edits[0]} edits")
    for _ in range(rounds):
        for runner in runners:
            await runner.run(count)
    await asyncio.sleep(_SETTLE_SECONDS)
    gateway, relay, direct = (runner.end() for runner in runners)
    return Measured(cell, rounds * count, gateway, relay, direct)


async def measure_all(cells: Sequence[Cell], targets: Targets, rounds: int) -> list[Measured]:
    """Measure cells one after the other."""
    return [await measure(cell, targets, rounds) for cell in cells]
