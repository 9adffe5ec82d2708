"""Options that several commands share, and the settings that they lead to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import rich_click as click

from proxy.settings_loader import Loaded, load

F = TypeVar("F", bound=Callable[..., object])


def config_option(function: F) -> F:
    """Add --config."""
    return click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Configuration file. Default: ULLAGE_CONFIG, else ./ullage.toml if it is there.",
    )(function)


def json_option(function: F) -> F:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(function)


def load_settings(config_path: Path | None) -> Loaded:
    """Return the settings of a command that has no flags for them. Raises ConfigError."""
    return load(config_path, os.environ)
