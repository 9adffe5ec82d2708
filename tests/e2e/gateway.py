"""Runs the real command as a process in front of a scripted upstream, and talks to it over sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from proxy.demo.process import GatewayProcess
from tests.e2e.answer import Answer
from tests.fakes.upstream import FakeUpstream, Received, Reply, answer, reply_by_default

LIMIT_TOKENS = 200  # texts over it are moved out
READ_TOKENS = 400
KEEPALIVE_SECONDS = 1
ROUNDS = 3
TINY = "tiny"  # a model with a small window
WINDOW_TOKENS = 4000
IMPATIENT = "impatient"  # a model whose upstream may not be silent for long

_CONFIG = f"""
[server]
drain_seconds = 2
keepalive_seconds = {KEEPALIVE_SECONDS}

[upstreams.impatient]
base_url = "{{upstream}}"
models = ["{IMPATIENT}"]
timeout = {{{{ connect = 5.0, read = 1.5 }}}}

[models.{TINY}]
window = {WINDOW_TOKENS}

[defaults]
preset = "small"

[presets.small]
read_tokens = {READ_TOKENS}
rounds = {ROUNDS}
[presets.small.offload_results]
over_tokens = {LIMIT_TOKENS}
per_turn_tokens = {3 * LIMIT_TOKENS}
head_lines = 2
tail_lines = 1
[presets.small.offload_user_messages]
over_tokens = {LIMIT_TOKENS}
head_lines = 2
tail_lines = 1
"""
_PATIENCE_SECONDS = 30


class Upstream(FakeUpstream):
    """A scripted upstream that can forget, for tests that share it."""

    def __init__(self) -> None:
        super().__init__()
        # Connections inherit it; without it what was just written may wait, and be lost when a script cuts.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def note(self, received: Received) -> Reply:
        """Leave what the gateway asks about windows out of the script; it comes when it likes, without a user agent."""
        if received.method == "GET" and received.header("user-agent") is None:
            return answer({"error": {"message": "nothing here"}}, 404)
        return super().note(received)

    def forget(self) -> None:
        """Drop what was received and what was still to be said."""
        self.received.clear()
        self._queue.clear()
        self.otherwise = reply_by_default

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the requests so far."""
        return [received.body for received in self.received]


class Gateway(GatewayProcess):
    """One `ullage serve` with low limits, on a store of its own or on that of another one."""

    def __init__(self, folder: Path, upstream: Upstream, shared_store: Path | None = None) -> None:
        folder.mkdir(exist_ok=True)
        config = folder / "small.toml"
        config.write_text(_CONFIG.format(upstream=upstream.url))
        super().__init__(folder, upstream.url, "--config", str(config))
        self.upstream = upstream
        self.store = folder / "ullage.db"
        self._log_lines = folder / "gateway.log"
        if shared_store is not None:
            self.store.symlink_to(shared_store)

    @property
    def base_url(self) -> str:
        """What an SDK takes as base URL."""
        return f"{self.url}/v1"

    @property
    def logged(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in self._log_lines.read_text().splitlines()]

    def kill(self) -> None:
        """End it at once, without a chance to write anything."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.stop()

    def __exit__(self, *_: object) -> None:
        self.kill()

    @contextmanager
    def without_store(self) -> Iterator[None]:
        """Put a folder in the place of the store's file for as long as the block takes."""
        aside = self.store.with_name("aside")
        aside.mkdir()
        for path in self.store.parent.glob(f"{self.store.name}*"):
            path.rename(aside / path.name)
        self.store.mkdir()
        try:
            yield
        finally:
            self.store.rmdir()
            for path in aside.iterdir():
                path.rename(self.store.with_name(path.name))
            aside.rmdir()


class Client:
    """A plain HTTP client with a credential, and so a tenant, of its own."""

    def __init__(self, gateway: Gateway, key: str) -> None:
        self.gateway = gateway
        self.key = key
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._http = httpx.Client(headers=headers, timeout=_PATIENCE_SECONDS, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def post(self, body: bytes | Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Answer:
        """Send a chat request and read the answer to its end."""
        with self.open(body, headers) as response:
            return read(response)

    @contextmanager
    def open(
        self, body: bytes | Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """Send a chat request; give the answer as soon as its head is there, leave it at the end of the block."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"{self.gateway.base_url}/chat/completions"
        with self._http.stream("POST", url, content=data, headers=dict(headers or {})) as response:
            yield response

    def dial(self, body: bytes, length: int | None = None) -> socket.socket:
        """Send a chat request over a bare socket, or only the beginning of one of this length, and wait for nothing."""
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self.key}\r\nContent-Length: {length or len(body)}\r\n\r\n"
        )
        line = socket.create_connection(("127.0.0.1", self.gateway.port), timeout=_PATIENCE_SECONDS)
        line.sendall(head.encode() + body)
        return line

    def get(self, path: str) -> httpx.Response:
        """Ask for something else that the gateway has, as this tenant."""
        return self._http.get(self.gateway.url + path)

    def original(self, ref: str) -> bytes:
        """Return the stored original of a ref."""
        response = self.get(f"/ullage/v1/originals/{ref}")
        assert response.status_code == 200, response.text
        return response.content


def read(response: httpx.Response) -> Answer:
    """Read an answer to its end; a broken one is kept as far as it came."""
    data = b""
    is_whole = True
    try:
        for piece in response.iter_raw():
            data += piece
    except httpx.RemoteProtocolError:
        is_whole = False
    return Answer(response.status_code, response.headers, data, is_whole=is_whole)
