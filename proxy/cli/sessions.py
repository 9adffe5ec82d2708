"""`ullage sessions`: what the gateway remembers of conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec
import rich_click as click

from proxy.cli.options import config_option, json_option, load_settings
from proxy.cli.output import print_json, print_table
from proxy.errors import NotFound
from proxy.settings import Settings

_COLUMNS = ("id", "tenant", "model", "last_used", "calls", "messages", "received", "sent", "edits", "reads")


@click.group("sessions")
def command() -> None:
    """List sessions, show one, or have one compacted."""


@command.command("list")
@config_option
@json_option
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many.")
@click.option("--cursor", help="Go on after an earlier list: the `next` that it gave.")
def list_all(config_path: Path | None, *, as_json: bool, limit: int, cursor: str | None) -> None:
    """List sessions, the newest first: tokens received from the client, tokens sent upstream."""
    page = anyio.run(_list, load_settings(config_path).settings, limit, cursor)
    if as_json:
        print_json(page)
        return
    print_table(_COLUMNS, [session | session["tokens"] for session in page["data"]])
    if page["next"] is not None:
        click.echo(f"more: --cursor {page['next']}", err=True)


@command.command()
@click.argument("session")
@config_option
@json_option
def show(session: str, config_path: Path | None, *, as_json: bool) -> None:
    """Show one session. Exit code 1 if there is none of that id."""
    found = anyio.run(_show, load_settings(config_path).settings, session)
    if as_json:
        print_json(found)
        return
    flat = {f"tokens {side}": count for side, count in found.pop("tokens").items()}
    print_table(("field", "value"), [{"field": k, "value": v} for k, v in (found | flat).items()])


@command.command()
@click.argument("session")
@config_option
@json_option
def compact(session: str, config_path: Path | None, *, as_json: bool) -> None:
    """Have a session compacted by its next request. Exit code 1 if there is none, or its preset never compacts."""
    answer = anyio.run(_compact, load_settings(config_path).settings, session)
    if as_json:
        print_json(answer)
        return
    click.echo(f"{session}: its next request is compacted, if anything is to be gained (strategy {answer['strategy']})")


async def _compact(settings: Settings, session: str) -> dict[str, Any]:
    from proxy.cli.storage import opened_store
    from proxy.routes.shapes import pending_compaction
    from proxy.sessions import Sessions
    from proxy.wish import wish

    async with opened_store(settings) as store:
        found = await store.get_session(None, session)
        if found is None:
            raise _no_session(session)
        strategy = await wish(Sessions(store, b""), found, settings.presets)
    return _plain(pending_compaction(strategy))


def _no_session(session: str) -> NotFound:
    return NotFound(f"{session}: no such session here; `ullage sessions list` shows them", param="session")


async def _list(settings: Settings, limit: int, cursor: str | None) -> dict[str, Any]:
    from proxy.cli.storage import opened_store
    from proxy.routes.shapes import list_sessions
    from proxy.store.base import PageRequest

    async with opened_store(settings) as store:
        page = await store.list_sessions(None, PageRequest(limit, cursor))
    return _plain(list_sessions(page))


async def _show(settings: Settings, session: str) -> dict[str, Any]:
    from proxy.cli.storage import opened_store
    from proxy.routes.shapes import show_session

    async with opened_store(settings) as store:
        found = await store.get_session(None, session)
    if found is None:
        raise _no_session(session)
    return _plain(show_session(found))


def _plain(shape: msgspec.Struct) -> dict[str, Any]:
    """Return what the HTTP interface answers as plain data."""
    plain: dict[str, Any] = msgspec.to_builtins(shape)
    return plain
