"""`ullage serve`."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, environ, run


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return once the gateway on that port says that it is ready."""
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    pytest.fail(f"not ready: {log.read_text()}")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `ullage serve` with flags over a file that says otherwise."""
    port = free_port()
    (tmp_path / "ullage.toml").write_text('[server]\nport = 1\n[store]\nurl = "sqlite:///never.db"\n')
    args = (*COMMAND, "serve", "--port", str(port), "--store", "sqlite:///flag.db", "--upstream", "http://127.0.0.1:9")
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(args, cwd=tmp_path, env=environ(), stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        wait_until_ready(process, port, log)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.e2e
def test_flags_win_over_the_file(serving: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """It listens where the flag says, on the store that the flag names."""
    assert (tmp_path / "flag.db").is_file()
    assert not (tmp_path / "never.db").exists()


@pytest.mark.e2e
def test_sigterm_is_exit_code_0(serving: subprocess.Popen[bytes]) -> None:
    """A gateway that is asked to end ends well."""
    serving.terminate()
    assert serving.wait(30) == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--config", "nowhere.toml"), "nowhere.toml: no such file"),
        (("--upstream", "localhost:8000"), "--upstream: upstream.base_url: "),
        (("--store", "mysql://h"), "--store: store.url: "),
        (("--store", "memory:", "--store", "memory:"), "--store: store.url: 2 URLs"),
    ],
)
def test_wrong_flags_are_told_by_their_name(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    """Exit code 2 and one line that names the flag, before anything is bound."""
    done = run(tmp_path, "serve", *args)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ullage: {said}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.e2e
def test_a_taken_port_is_exit_code_2(tmp_path: Path) -> None:
    """Another port must be configured: the message names the address and says how, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(tmp_path, "serve", "--port", str(port), "--store", "memory:")
    assert done.returncode == 2
    assert str(port) in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr
