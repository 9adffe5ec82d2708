"""What the README shows works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import rich_click as click

from proxy.cli import cli
from proxy.presets import built_in
from proxy.settings_loader import load

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_configuration_is_accepted(tmp_path: Path) -> None:
    """Every TOML block can be copied."""
    assert blocks("toml")
    for number, text in enumerate(blocks("toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(text, "utf-8")
        assert load(path).file == path


def test_the_presets_that_are_named_exist() -> None:
    """The comment beside `extends` lists all of them."""
    listed = re.search(r"^extends = .*# (.*)$", README, re.MULTILINE)
    assert listed is not None
    assert listed[1].split(", ") == list(dict.fromkeys(listed[1].split(", ")))
    assert set(listed[1].split(", ")) == set(built_in())


@pytest.mark.parametrize("line", re.findall(r"^ullage ([a-z ]+[a-z])", "\n".join(blocks("")), re.MULTILINE))
def test_the_commands_exist(line: str) -> None:
    """Every `ullage …` line names a command."""
    command: click.Command = cli
    for word in line.split():
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), word)
        assert found is not None, f"ullage {line}: no command {word}"
        command = found
    assert not isinstance(command, click.Group)
