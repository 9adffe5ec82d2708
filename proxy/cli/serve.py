"""`ullage serve`: run the gateway."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import rich_click as click

from proxy.cli.options import config_option
from proxy.own_address import refuse_own_address
from proxy.settings_loader import Loaded, load

_HELP = """
Run the gateway until SIGTERM or Ctrl-C; SIGHUP reads the configuration again.

Flags win over ULLAGE_* variables, those over the file, and that over OPENAI_BASE_URL and OPENAI_API_KEY.

\b
    ullage serve --upstream http://127.0.0.1:8000/v1 --store memory:
"""

_EPILOG = """
Variables: ULLAGE_CONFIG, ULLAGE_HOST, ULLAGE_PORT, ULLAGE_UPSTREAM, ULLAGE_STORE, ULLAGE_PRESET, ULLAGE_SECRET,
ULLAGE_ADMIN_KEY, ULLAGE_WORKERS; every other single key of [server], [upstream], [store] and [defaults] as
ULLAGE_TABLE__KEY, like ULLAGE_UPSTREAM__TIMEOUT__READ=60. LOG_LEVEL: debug, info, warning or error.
"""


@click.command("serve", help=_HELP, epilog=_EPILOG)
@config_option
@click.option("--host", metavar="H", help="Address to listen on. Default: 127.0.0.1.")
@click.option("--port", metavar="P", type=click.IntRange(0, 65535), help="Port to listen on. Default: 4410.")
@click.option("--upstream", metavar="URL", help="OpenAI base URL of the provider, with or without /v1.")
@click.option("--store", "stores", metavar="URL", multiple=True, help="sqlite:///PATH or memory:.")
@click.option("--workers", metavar="N", type=click.IntRange(1, 256), help="Processes. Default: 1.")
def command(config_path: Path | None, stores: tuple[str, ...], **given: str | int | None) -> None:
    """Run the gateway until it is told to end."""
    flags: dict[str, object] = {f"--{name}": value for name, value in given.items()}
    flags["--store"] = stores[0] if len(stores) == 1 else stores or None
    settings = partial(_load, config_path, flags)
    settings()  # wrong configuration is told before anything is imported or bound

    from proxy.composition import run

    run(settings)


def _load(config_path: Path | None, flags: dict[str, object]) -> Loaded:
    loaded = load(config_path, os.environ, flags)
    refuse_own_address(loaded)
    return loaded
