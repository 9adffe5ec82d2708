"""`ullage store`: look after the place where the gateway remembers."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import rich_click as click

from proxy.cli.options import config_option, json_option, load_settings
from proxy.cli.output import print_json, print_table
from proxy.errors import StoreError

if TYPE_CHECKING:
    from proxy.settings import Settings
    from proxy.store.moving import AnyPiece


class Unsound(StoreError):
    """Something that live sessions need is not there, or not what it was."""

    code = "store_unsound"


@click.group("store")
def command() -> None:
    """Check, clean, copy or move the store."""


@command.command()
@config_option
@json_option
def check(config_path: Path | None, *, as_json: bool) -> None:
    """Look whether every original that a live session needs is there and is what it was.

    Exit code 1 if not. Lost originals come back with the client's next request that still carries them.
    """
    found = anyio.run(_check, load_settings(config_path).settings)
    if as_json:
        print_json(found)
    else:
        counts = {name: len(value) if isinstance(value, list) else value for name, value in found.items()}
        print_table(("what", "count"), [{"what": name, "count": value} for name, value in counts.items()])
        for flaw in found["flaws"]:
            click.echo(f"{flaw['tenant']} {flaw['session']} {flaw['ref'] or 'ledger'}: {flaw['what']}", err=True)
    if found["flaws"]:
        raise Unsound("the store is not sound; lost originals come back with a request that still carries them")


@command.command()
@config_option
@json_option
def gc(config_path: Path | None, *, as_json: bool) -> None:
    """Drop now what was idle for longer than store.idle_ttl, in small steps; the gateway may go on meanwhile."""
    dropped = anyio.run(_gc, load_settings(config_path).settings)
    _tell({"dropped": dropped}, as_json=as_json)


@command.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@config_option
@json_option
def export_all(file: Path, config_path: Path | None, *, as_json: bool) -> None:
    """Write all that the store holds to FILE (JSON Lines in zstd), decrypted, the secret included: keep it safe."""
    count = anyio.run(_export, load_settings(config_path).settings, file)
    _tell({"pieces": count}, as_json=as_json)


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@config_option
@json_option
def import_all(file: Path, config_path: Path | None, *, as_json: bool) -> None:
    """Take an export into the store, which is created if there is none. Begun again after an end, it goes on."""
    count = anyio.run(_import, load_settings(config_path).settings, file)
    _tell({"pieces": count}, as_json=as_json)


@command.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@config_option
@json_option
def migrate(source: str, target: str, config_path: Path | None, *, as_json: bool) -> None:
    """Copy one store, named by its URL, into another one, and read everything back there.

    Stop the gateway first. Begun again after an end, it goes on; sessions that differ are refused. Encryption keys are
    those of the configuration, for both.
    """
    done = anyio.run(_migrate, load_settings(config_path).settings, source, target)
    _tell(done, as_json=as_json)


async def _check(settings: Settings) -> dict[str, Any]:
    import msgspec

    from proxy.cli.storage import opened_store
    from proxy.soundness import Soundness, check_store

    result = Soundness()
    async with opened_store(settings) as store:
        total = (await store.stats()).sessions
        with _progress("sessions", total) as advance:
            async for so_far in check_store(store):
                result = so_far
                advance()
    plain: dict[str, Any] = msgspec.to_builtins(result)
    return plain


async def _gc(settings: Settings) -> int:
    from proxy.cli.storage import opened_store

    async with opened_store(settings) as store:
        return await store.expire(time.time())


async def _export(settings: Settings, file: Path) -> int:
    from proxy.cli.storage import opened_store
    from proxy.store.codec import zstd
    from proxy.store.moving import encode_piece, pieces_of

    partial = file.with_name(f"{file.name}.part")
    count = 0
    async with opened_store(settings) as store:
        total = (await store.stats()).originals
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it holds the secret
        with (
            os.fdopen(descriptor, "wb") as raw,
            zstd.open(raw, "wb") as packed,
            _progress("originals", total) as advance,
        ):
            async for piece in pieces_of(store):
                packed.write(encode_piece(piece))
                advance(_originals_in(piece))
                count += 1
    partial.replace(file)
    return count


async def _import(settings: Settings, file: Path) -> int:
    from proxy.cli.storage import opened_store
    from proxy.store.codec import zstd
    from proxy.store.moving import End, MoveFailed, Taker, decode_piece

    piece: AnyPiece | None = None
    async with opened_store(settings, create=True) as store:
        taker = Taker(store)
        try:
            with zstd.open(file, "rb") as packed, _progress("originals", None) as advance:
                for line in packed:
                    piece = decode_piece(line)
                    await taker.take(piece)
                    advance(_originals_in(piece))
        except (zstd.ZstdError, EOFError) as error:
            raise MoveFailed(f"{file} is no export of ullage, or a damaged one: {error}") from error
    if not isinstance(piece, End):
        raise MoveFailed(f"{file} ends before its end; what it holds is imported")
    return taker.pieces


async def _migrate(settings: Settings, source: str, target: str) -> dict[str, int]:
    import msgspec

    from proxy.cli.storage import opened_store
    from proxy.store.moving import Taker, pieces_of

    def placed(url: str) -> Settings:
        return msgspec.structs.replace(settings, store=msgspec.structs.replace(settings.store, url=url))

    async with opened_store(placed(source)) as old, opened_store(placed(target), create=True) as new:

        async def is_wanted(tenant: str, ref: str) -> bool:
            return bool(await new.missing_originals(tenant, [ref]))

        taker = Taker(new)
        with _progress("originals", (await old.stats()).originals) as advance:
            async for piece in _stepping(pieces_of(old, is_wanted), advance):
                await taker.take(piece)
        before, after = await old.stats(), await new.stats()
    return {
        "sessions": before.sessions,
        "originals": before.originals,
        "copied": taker.originals,
        "there": after.originals,
    }


async def _stepping(pieces: AsyncIterator[AnyPiece], advance: Callable[[int], None]) -> AsyncIterator[AnyPiece]:
    async for piece in pieces:
        yield piece
        advance(_originals_in(piece))


def _originals_in(piece: AnyPiece) -> int:
    from proxy.store.moving import Kept

    return int(isinstance(piece, Kept))


@contextlib.contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Yield what advances a bar on stderr; without a terminal there is none."""
    if not sys.stderr.isatty() or total == 0:
        yield lambda _=1: None
        return
    with click.progressbar(length=total or 1, label=what, file=sys.stderr, show_pos=True) as bar:
        yield lambda steps=1: bar.update(steps)


def _tell(counts: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        print_json(counts)
    else:
        print_table(("what", "count"), [{"what": name, "count": value} for name, value in counts.items()])
