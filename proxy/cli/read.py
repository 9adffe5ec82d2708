"""`ullage read REF`: the exact bytes of an original."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import rich_click as click

from proxy.cli.options import config_option, load_settings
from proxy.errors import NotFound
from proxy.settings import Settings


@click.command("read")
@click.argument("ref")
@config_option
def command(ref: str, config_path: Path | None) -> None:
    """Print the original that a ref (off_…) stands for, byte for byte.

    It is found whoever's it is: the command line is the administrator's. Exit code 1 if there is none.
    """
    data = anyio.run(_find, ref, load_settings(config_path).settings)
    sys.stdout.buffer.write(data)


async def _find(ref: str, settings: Settings) -> bytes:
    from proxy.cli.storage import opened_store
    from proxy.store.base import Erased

    async with opened_store(settings) as store:
        original = await store.get_original(None, ref)
    if original is None:
        raise NotFound(f"{ref}: no such original here; it may have expired (see store.idle_ttl)", param="ref")
    if isinstance(original, Erased):
        raise NotFound(f"{ref}: was erased for good", param="ref")
    return original.data
