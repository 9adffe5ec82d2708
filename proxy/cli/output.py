"""How commands print: aligned columns for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import rich_click as click


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def print_table(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows below their column names, never cut; numbers stand on the right."""
    rows = list(rows)
    cells = [[_text(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    right = [all(isinstance(row[column], int | float | None) for row in rows) for column in columns]
    for line in (columns, *cells):
        parts = (
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, right, strict=True)
        )
        click.echo("  ".join(parts).rstrip())


def _text(value: object) -> str:
    return "-" if value is None else str(value)
