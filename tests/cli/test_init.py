"""The command line as a whole: help, exit codes, and what is imported when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from proxy import __version__
from proxy.cli import COMMANDS, LazyGroup, cli, main
from tests.cli.command import ROOT, environ, run


def test_help_teaches_the_first_steps(tmp_path: Path) -> None:
    """A newcomer reads how to start, how to point a client at it, and which commands there are."""
    done = run(tmp_path, "--help")
    assert done.returncode == 0
    assert "OPENAI_BASE_URL=http://127.0.0.1:4410/v1" in done.stdout
    assert all(f" {name} " in done.stdout for name in ("serve", "read", "sessions", "config"))


def test_the_bare_command_prints_help(tmp_path: Path) -> None:
    """Nothing was asked for, which is wrong use, but the answer helps."""
    done = run(tmp_path)
    assert done.returncode == 2
    assert "Usage: ullage" in done.stdout + done.stderr


def test_version(tmp_path: Path) -> None:
    """`ullage --version` names product and version."""
    assert run(tmp_path, "--version").stdout == f"ullage {__version__}\n"


@pytest.mark.parametrize(
    "args",
    [
        ("no-such-command",),
        ("serve", "--no-such-option"),
        ("serve", "--port", "many"),
        ("read",),
        ("sessions", "burn"),
    ],
)
def test_wrong_use_is_exit_code_2(tmp_path: Path, args: tuple[str, ...]) -> None:
    """Wrong use says what is wrong on stderr and leaves with 2."""
    done = run(tmp_path, *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage: ullage" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args", [("serve",), ("config", "check"), ("config", "show"), ("read", "off_x")])
def test_wrong_configuration_is_exit_code_2(tmp_path: Path, args: tuple[str, ...]) -> None:
    """Every command that reads the configuration names file, key and mend in one line."""
    (tmp_path / "ullage.toml").write_text("[server]\nporrt = 1\n")
    done = run(tmp_path, *args)
    assert done.returncode == 2
    assert done.stderr == "ullage: ullage.toml: server.porrt: no such key; did you mean port?\n"


def test_the_script_that_is_installed_runs_main() -> None:
    """`ullage` and `python -m proxy` are one command."""
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0


def test_help_imports_neither_server_nor_store() -> None:
    """Help comes at once: nothing heavy is imported before a command runs."""
    code = (
        "import sys; from proxy.cli import cli\n"
        "cli.main(['--help'], prog_name='ullage', standalone_mode=False)\n"
        "heavy = {'litestar', 'uvicorn', 'httpx', 'aiohttp', 'redis', 'tiktoken'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_listed_command_has_help_under_its_own_name() -> None:
    """What the list shows can be run, and says in one line what it does."""
    assert isinstance(cli, LazyGroup)
    context = cli.make_context("ullage", ["--help"], resilient_parsing=True)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert name in COMMANDS
        assert command is not None
        assert command.name == name
        assert command.get_short_help_str()
