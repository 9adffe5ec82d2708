"""`ullage serve`."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.variables import VARIABLES
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


def logged_after(process: subprocess.Popen[bytes], log: Path, awaited: str) -> list[dict[str, Any]]:
    """Return what SIGHUP leads to in the log, up to the event that is waited for."""
    begin = log.stat().st_size
    process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        events = [json.loads(line) for line in log.read_bytes()[begin:].splitlines(keepends=True) if line[-1:] == b"\n"]
        if any(event["event"] == awaited for event in events):
            return events
        time.sleep(0.02)
    pytest.fail(f"no {awaited}: {log.read_text()}")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `ullage serve` with flags over a file that says otherwise."""
    port = free_port()
    (tmp_path / "ullage.toml").write_text('[server]\nport = 1\n[store]\nurl = "sqlite:///never.db"\n')
    args = (*COMMAND, "serve", "--port", str(port), "--store", "sqlite:///flag.db", "--upstream", "http://127.0.0.1:9")
    log = tmp_path / "log"
    env = environ(OPENAI_API_KEY="sk-planted", ULLAGE_PROT="1")
    with log.open("wb") as out:
        process = subprocess.Popen(args, cwd=tmp_path, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
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
def test_the_first_line_says_what_is_in_force(serving: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Upstream, store, preset and where the key is from, never the key; nothing of the server library's own."""
    first, *others = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert first["event"] == "gateway_starts"
    assert (first["upstream"], first["store"], first["preset"]) == (
        "http://127.0.0.1:9/v1",
        ["sqlite:///flag.db"],
        "balanced",
    )
    assert first["key"] == "each client's own, else OPENAI_API_KEY"
    assert [line["event"].partition(" on ")[0] for line in others] == ["config_doubtful", "listening"]
    assert others[0]["reason"].startswith("ULLAGE_PROT: ")
    assert "sk-planted" not in (tmp_path / "log").read_text()


@pytest.mark.e2e
def test_a_reload_says_what_it_could_not_change(serving: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Address and store are taken at the start; the operator reads that they need a restart."""
    path = tmp_path / "ullage.toml"
    path.write_text(path.read_text().replace("port = 1", "port = 1\ndrain_seconds = 5"))
    events = logged_after(serving, tmp_path / "log", "reloaded")
    assert next(e for e in events if e["event"] == "restart_needed")["changed"] == ["server.drain_seconds"]


@pytest.mark.e2e
def test_a_reload_without_the_file_is_refused(serving: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """A file that was there at the start and is gone leaves everything as it was, as a wrong one does."""
    path = tmp_path / "ullage.toml"
    path.rename(tmp_path / "aside")
    (refused,) = logged_after(serving, tmp_path / "log", "reload_refused")
    assert refused["error"].startswith("ullage.toml: is not there any more; put it back")
    (tmp_path / "aside").rename(path)
    assert logged_after(serving, tmp_path / "log", "reloaded")


@pytest.mark.e2e
def test_an_echo_of_sigterm_is_ignored(serving: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """A parent like make hands on the signal that its whole group got already; that is no second request."""
    serving.terminate()
    time.sleep(0.1)
    serving.terminate()
    assert serving.wait(30) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


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
        (
            ("--upstream", "http://0.0.0.0:4410"),
            "--upstream: upstream.base_url: http://0.0.0.0:4410/v1 is this gateway",
        ),
        (("--host", "nohost.invalid"), "cannot listen on nohost.invalid:4410: "),
        (("--host", "198.51.100.1"), "cannot listen on 198.51.100.1:4410: "),
        (("--store", "memory:", "--store", "memory:"), "--store: store.url: the second of two"),
    ],
)
def test_wrong_flags_are_told_by_their_name(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    """Exit code 2 and one line that names the flag, before anything is bound."""
    done = run(tmp_path, "serve", *args)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ullage: {said}")
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_host_is_told_as_such(tmp_path: Path) -> None:
    """Another port would not help."""
    done = run(tmp_path, "serve", "--host", "nohost.invalid")
    assert "--host" in done.stderr
    assert "--port" not in done.stderr


def test_help_tells_the_variables(tmp_path: Path) -> None:
    """Every variable with a name of its own, and the rule for the others."""
    said = " ".join(run(tmp_path, "serve", "--help").stdout.split())
    assert all(name in said for name in (*VARIABLES, "ULLAGE_CONFIG", "ULLAGE_TABLE__KEY", "LOG_LEVEL"))


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
