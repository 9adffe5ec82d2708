"""Prints what was measured: one line for each cell, or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bench.rounds import Measured

_COLUMNS = ("", "gateway", "relay", "ratio", "p50 +ms", "p99 +ms", "gateway MB", "relay MB")
_MEGABYTE = 1_000_000


def as_table(measured: Sequence[Measured]) -> str:
    """Return the table: CPU milliseconds per request, latency added to the upstream's own, peak memory."""
    rows = [_COLUMNS, *map(_row, measured)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(_cells(row, widths)).rstrip() for row in rows)
    return "\n".join(["CPU ms per request, latency added, peak memory\n", *lines])


def as_json(measured: Sequence[Measured]) -> bytes:
    """Return the same facts, and the upstream's own latency, for programs."""
    plain = [{"name": one.cell.name, "ratio": one.ratio, **msgspec.to_builtins(one)} for one in measured]
    return msgspec.json.format(msgspec.json.encode(plain))


def _row(one: Measured) -> tuple[str, ...]:
    return (
        one.cell.name,
        f"{one.gateway.cpu_ms:.2f}",
        f"{one.relay.cpu_ms:.2f}",
        f"{one.ratio:.2f}",
        f"{one.gateway.p50_ms - one.direct.p50_ms:.2f}",
        f"{one.gateway.p99_ms - one.direct.p99_ms:.2f}",
        f"{one.gateway.peak_bytes / _MEGABYTE:.0f}",
        f"{one.relay.peak_bytes / _MEGABYTE:.0f}",
    )


def _cells(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    yield row[0].ljust(widths[0])
    for text, width in zip(row[1:], widths[1:], strict=True):
        yield text.rjust(width)
