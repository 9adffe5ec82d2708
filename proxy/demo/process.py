"""The gateway in a process of its own: `ullage serve` on a free port, its store in a folder that it is given."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from proxy.errors import ProxyError

_START_SECONDS = 60.0
_LISTENING = re.compile(rb"listening on 127\.0\.0\.1:(\d+)")
_ENDING_OF_LOG = 2000


class NotStarted(ProxyError):
    """The gateway did not start; the message holds the end of its log."""

    code = "not_started"


class GatewayProcess:
    """Runs while the context is open; may be restarted on the same port and the same store."""

    def __init__(self, folder: Path, upstream_url: str, *options: str) -> None:
        """Prepare `ullage serve` in a folder, with further options of that command."""
        self._folder = folder
        self._log_file = folder / "gateway.log"
        self._arguments = ("--upstream", upstream_url, "--store", "sqlite:///ullage.db", *options)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the process that runs now, 0 when none does."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start and wait until it listens; raises NotStarted."""
        command = [sys.executable, "-m", "proxy", "serve", "--host", "127.0.0.1", "--port", str(self.port)]
        with self._log_file.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(  # noqa: S603  # our own command
                [*command, *self._arguments],
                cwd=self._folder,
                env=_environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.port = self._wait(self._process, begin)

    def stop(self) -> int:
        """Ask it to end and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()
        try:
            return process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def restart(self) -> None:
        """End it and start it again."""
        self.stop()
        self.start()

    def log(self) -> str:
        """Return the end of its log."""
        return self._log_file.read_text("utf-8", "replace")[-_ENDING_OF_LOG:]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait(self, process: subprocess.Popen[bytes], begin: int) -> int:
        """Return the port that the log tells of from byte `begin` on."""
        end = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < end:
            if found := _LISTENING.search(self._log_file.read_bytes(), begin):
                return int(found[1])
            time.sleep(0.02)
        self.stop()
        raise NotStarted(f"the gateway did not start; its log ends with\n{self.log()}")


def _environ() -> dict[str, str]:
    """Return the environment without what would configure the gateway, and without proxies on the way to loopback."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ULLAGE_", "OPENAI_")) and not name.lower().endswith("_proxy")
    }
    return {**kept, "LOG_LEVEL": "info"}
