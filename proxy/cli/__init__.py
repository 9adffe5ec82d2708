"""The command line. Each command lives in a module of its own, imported only when it is asked for or listed.

Exit codes: 0 fine, 1 what was asked for failed, 2 wrong use or wrong configuration.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import rich_click as click

from proxy import __version__
from proxy.errors import ConfigError, ProxyError

COMMANDS = ("serve", "demo", "sessions", "read", "store", "config")  # each is proxy.cli.NAME:command

_HELP = """
Keep the context of AI agents small without losing anything.

Start the gateway in front of any OpenAI-compatible provider and point your client at it:

\b
    export OPENAI_API_KEY=sk-…
    ullage serve
    # in the client's terminal:
    export OPENAI_BASE_URL=http://127.0.0.1:4410/v1

What leaves the model's context stays readable: by the model itself through the tool read_offloaded, and by
you through `ullage read REF`.

Everything is configured in ./ullage.toml (or --config, or ULLAGE_CONFIG); `ullage config show --origin`
prints what is in force and why.
"""


class LazyGroup(click.RichGroup):
    """A group whose commands are found in modules of the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the commands that are there, in the order of a first day with the gateway."""
        return [name for name in COMMANDS if find_spec(f"{__name__}.{name}") is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"{__name__}.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # click's signature
        """Run the command; an error of ours becomes one line and an exit code."""
        try:
            return super().invoke(ctx)
        except ProxyError as exc:
            click.echo(f"ullage: {exc.message}", err=True)
            ctx.exit(2 if isinstance(exc, ConfigError) else 1)
        except BrokenPipeError:
            raise  # whoever read our output left; click knows what to do
        except OSError as exc:
            click.echo(f"ullage: {exc.strerror or exc}", err=True)
            ctx.exit(1)


@click.group(cls=LazyGroup, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ullage", message="%(prog)s %(version)s")
def cli() -> None:
    """Run the command that is named, with logs on stderr; what a command fails of it tells itself, once."""
    from proxy.telemetry.logs import configure_logs

    configure_logs(level=os.environ.get("LOG_LEVEL", "error"))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    cli.main(args=None if argv is None else list(argv), prog_name="ullage")
