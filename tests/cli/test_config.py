"""`ullage config`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.command import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a configuration."""
    (tmp_path / "ullage.toml").write_text('[server]\nport = 4411\nadmin_key = "planted"\n')
    return tmp_path


def test_check_says_what_it_read(folder: Path) -> None:
    """A right configuration is told with its file, preset and upstream."""
    done = run(folder, "config", "check")
    assert done.returncode == 0
    assert done.stdout == "ullage.toml: fine (preset balanced, upstream https://api.openai.com/v1)\n"


def test_check_without_a_file(tmp_path: Path) -> None:
    """No file is fine, too."""
    done = run(tmp_path, "config", "check", OPENAI_BASE_URL="http://127.0.0.1:8000")
    assert done.stdout.startswith("no file, so environment and defaults: fine")
    assert "http://127.0.0.1:8000/v1" in done.stdout


def test_check_of_a_file_named_by_option_or_variable(folder: Path) -> None:
    """`--config` and ULLAGE_CONFIG name another file, which must exist."""
    (folder / "other.toml").write_text('[defaults]\npreset = "deep"\n')
    assert "other.toml: fine (preset deep" in run(folder, "config", "check", "--config", "other.toml").stdout
    assert "other.toml: fine" in run(folder, "config", "check", ULLAGE_CONFIG="other.toml").stdout
    assert run(folder, "config", "check", "--config", "nowhere.toml").returncode == 2


def test_check_refuses_the_gateway_as_its_own_upstream(folder: Path) -> None:
    """`serve` would go round in circles; commands that only look into the store work in a client's terminal."""
    done = run(folder, "config", "check", OPENAI_BASE_URL="http://localhost:4411/v1")
    assert done.returncode == 2
    assert done.stderr.startswith("ullage: OPENAI_BASE_URL: upstream.base_url: ")
    assert run(folder, "config", "show", OPENAI_BASE_URL="http://localhost:4411/v1").returncode == 0


def test_check_tells_what_is_hardly_meant(folder: Path) -> None:
    """A misspelt variable is no error, but nobody means it."""
    done = run(folder, "config", "check", ULLAGE_PROT="1")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: ULLAGE_PROT: ")


def test_show_prints_toml_with_origins(folder: Path) -> None:
    """Every value in force with its source, no credential."""
    done = run(folder, "config", "show", "--origin", ULLAGE_HOST="::1")
    shown = tomllib.loads(done.stdout)
    assert shown["server"]["port"] == 4411
    assert 'server.host = "::1"  # ULLAGE_HOST\n' in done.stdout
    assert "server.port = 4411  # ullage.toml\n" in done.stdout
    assert "planted" not in done.stdout


def test_show_as_json(folder: Path) -> None:
    """The same for programs."""
    lines = json.loads(run(folder, "config", "show", "--json").stdout)
    assert {"key": "server.port", "value": 4411, "origin": "ullage.toml"} in lines


def test_schema_is_json(tmp_path: Path) -> None:
    """Editors can read it."""
    assert json.loads(run(tmp_path, "config", "schema").stdout)["title"] == "ullage.toml"
