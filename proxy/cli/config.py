"""`ullage config`: check the configuration, show what is in force, print its schema."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from proxy.cli.options import config_option, json_option, load_settings
from proxy.cli.output import print_json
from proxy.own_address import refuse_own_address
from proxy.settings_view import effective, schema, to_toml


@click.group("config")
def command() -> None:
    """Check the configuration, or show what is in force and why."""


@command.command()
@config_option
def check(config_path: Path | None) -> None:
    """Say whether the configuration is right; if not, name file, key and mend, and exit with 2."""
    loaded = load_settings(config_path)
    refuse_own_address(loaded)
    for doubt in loaded.doubts:
        click.echo(f"warning: {doubt}", err=True)
    preset = loaded.settings.defaults.preset
    source = loaded.file or "no file, so environment and defaults"
    click.echo(f"{source}: fine (preset {preset}, upstream {loaded.settings.upstream.base_url})")


@command.command()
@config_option
@json_option
@click.option("--origin", "with_origin", is_flag=True, help="Say where each value came from.")
def show(config_path: Path | None, *, as_json: bool, with_origin: bool) -> None:
    """Print every value in force as TOML, credentials hidden."""
    lines = effective(load_settings(config_path))
    if as_json:
        print_json(lines)
        return
    for line in lines:
        click.echo(to_toml(line, with_origin=with_origin))


@command.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of the file, for editors that complete and check TOML."""
    print_json(schema())
