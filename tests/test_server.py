"""The process: it drains at SIGTERM, survives SIGHUP, and says what it cannot do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from proxy.server import bind
from tests.fakes.upstream import HANG, FakeUpstream, Pause, pieces

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parent.parent
KEY = {"authorization": "Bearer k"}


class Process:
    """A bare relay as a process of its own."""

    def __init__(self, upstream: str, *, drain_seconds: float = 30, **environ: str) -> None:
        command = [sys.executable, "-m", "tests.fakes.serving", upstream, "0", str(drain_seconds)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = f"http://127.0.0.1:{self.line().removeprefix('port ')}"
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                httpx.get(self.url + "/livez")
            except httpx.HTTPError:
                time.sleep(0.02)
            else:
                return

    def line(self) -> str:
        """Return the next line of its output."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """Wait for its end; return exit code and log."""
        _, log = self._process.communicate(timeout=20)
        return self._process.returncode, log

    def kill(self) -> None:
        """End it by force, if it still runs."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def process(fake: FakeUpstream) -> Iterator[Process]:
    """Give a relay process in front of the fake."""
    started = Process(fake.url)
    yield started
    started.kill()


class Asking(threading.Thread):
    """A streamed chat request in the background."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.pieces: list[bytes] = []
        self.begun = threading.Event()
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Ask."""
        try:
            with httpx.stream("POST", self.url + "/v1/chat/completions", content=b"{}", headers=KEY, timeout=10) as r:
                for data in r.iter_raw():
                    self.pieces.append(data)
                    self.begun.set()
        except httpx.HTTPError as error:
            self.error = error
            self.begun.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_are_finished(fake: FakeUpstream, process: Process, number: signal.Signals) -> None:
    """While a stream runs, the process answers that it is not ready, still serves, then ends with 0."""
    fake.queue(pieces(b"data: 1\n\n", Pause(2), b"data: 2\n\n"))
    asking = Asking(process.url)
    assert asking.begun.wait(5)
    process.signal(number)
    time.sleep(0.3)
    assert httpx.get(process.url + "/readyz").status_code == 503
    assert httpx.post(process.url + "/v1/chat/completions", content=b"{}", headers=KEY).status_code == 200
    asking.join()
    assert asking.pieces == [b"data: 1\n\n", b"data: 2\n\n"]
    code, log = process.wait()
    assert code == 0, log
    assert "Traceback" not in log
    assert "ERROR" not in log


def test_an_idle_process_ends_soon(process: Process) -> None:
    """Without requests SIGTERM ends the process with 0."""
    process.signal(signal.SIGTERM)
    assert process.wait()[0] == 0


def test_the_drain_has_an_end(fake: FakeUpstream) -> None:
    """A stream that goes on is cut after `drain_seconds`, upstream too, and the exit code is 0."""
    fake.queue(pieces(b"data: 1\n\n", HANG))
    process = Process(fake.url, drain_seconds=1)
    asking = Asking(process.url)
    assert asking.begun.wait(5)
    process.signal(signal.SIGTERM)
    code, log = process.wait()
    asking.join()
    assert code == 0, log
    assert isinstance(asking.error, httpx.RemoteProtocolError)
    assert "cut at the end of the drain" in log
    assert "Traceback" not in log
    assert fake.received[0].wait_gone(1)


def test_a_second_signal_ends_at_once(fake: FakeUpstream, process: Process) -> None:
    """Who asks twice does not want to wait for running requests."""
    fake.queue(pieces(b"data: 1\n\n", HANG))
    asking = Asking(process.url)
    assert asking.begun.wait(5)
    process.signal(signal.SIGINT)
    time.sleep(0.3)
    process.signal(signal.SIGINT)
    process.wait()
    asking.join()
    assert asking.error is not None


def test_an_echo_of_sigterm_cuts_nothing(fake: FakeUpstream, process: Process) -> None:
    """The same request to end, handed on by a parent, leaves running requests their time."""
    fake.queue(pieces(b"data: 1\n\n", Pause(1), b"data: 2\n\n"))
    asking = Asking(process.url)
    assert asking.begun.wait(5)
    process.signal(signal.SIGTERM)
    time.sleep(0.1)
    process.signal(signal.SIGTERM)
    asking.join()
    assert asking.pieces == [b"data: 1\n\n", b"data: 2\n\n"]
    code, log = process.wait()
    assert code == 0, log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_asks_again_later_is_heard(fake: FakeUpstream, process: Process, number: signal.Signals) -> None:
    """What runs is cut, and everything else is closed in order: exit code 0 and no traceback."""
    fake.queue(pieces(b"data: 1\n\n", HANG))
    asking = Asking(process.url)
    assert asking.begun.wait(5)
    process.signal(number)
    time.sleep(1.2)
    process.signal(number)
    code, log = process.wait()
    asking.join()
    assert asking.error is not None
    assert code == 0, log
    assert "Traceback" not in log
    assert "ERROR" not in log


def exchanged(url: str, data: bytes) -> bytes:
    """Send bytes and return all that comes until the connection is closed."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as line:
        line.sendall(data)
        return b"".join(iter(lambda: line.recv(65_536), b""))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n", 405),
        (b"\x16\x03\x01 hello\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nno field\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_for_the_application(process: Process, data: bytes, status: int) -> None:
    """It is answered in OpenAI's shape, and the connection closed."""
    head, _, body = exchanged(process.url, data).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(body)["error"]["type"] == "ullage_error"


def test_a_websocket_is_refused_without_advice(fake: FakeUpstream, process: Process) -> None:
    """The client reads that there are none; the log does not tell the operator to install something."""
    head = b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nConnection: upgrade, close\r\n"
    answer = exchanged(process.url, head + b"Upgrade: websocket\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 501 ")
    assert b"ullage_error" in answer
    assert not fake.received
    process.signal(signal.SIGTERM)
    assert "pip install" not in process.wait()[1]


def test_the_library_is_silent(process: Process) -> None:
    """What uvicorn says of starting and ending is said in our words."""
    process.signal(signal.SIGTERM)
    assert "uvicorn" not in process.wait()[1]


def test_hanging_up_reloads(process: Process) -> None:
    """SIGHUP calls the reload, as often as it comes, and the process goes on."""
    for _ in range(2):
        process.signal(signal.SIGHUP)
        assert process.line() == "reloaded"
    assert httpx.get(process.url + "/readyz").status_code == 200


def test_a_reload_that_fails(fake: FakeUpstream) -> None:
    """A reload that raises is logged and changes nothing."""
    process = Process(fake.url, RELOAD_FAILS="1")
    process.signal(signal.SIGHUP)
    assert process.line() == "reloaded"
    assert httpx.get(process.url + "/readyz").status_code == 200
    process.signal(signal.SIGTERM)
    code, log = process.wait()
    assert code == 0
    assert "a wrong file" in log


def test_a_port_that_is_taken() -> None:
    """The error names the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["nohost.invalid", "198.51.100.1", "x" * 70])
def test_a_host_that_is_not_here(host: str) -> None:
    """Another port would not help, so another host is asked for."""
    with pytest.raises(OSError, match=rf"cannot listen on {host}:0: .*--host"):
        bind(host, 0)
