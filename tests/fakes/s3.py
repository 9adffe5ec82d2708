"""A server of the S3 protocol in a process of its own, and something in front of it that makes trouble."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from typing import Self
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

from obstore.store import S3Store

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
START_SECONDS = 30.0
SLOW_SECONDS = 0.15


class S3Server:
    """A bucket on a server; ULLAGE_TEST_S3_URL (s3://bucket/prefix?endpoint=…) names a real one to be used instead."""

    def __init__(self) -> None:
        self._places = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._given = os.environ.get("ULLAGE_TEST_S3_URL")
        self.endpoint = ""

    def __enter__(self) -> Self:
        if self._given:
            return self
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait(port)
        with urlopen(Request(f"{self.endpoint}/bucket", method="PUT")):  # noqa: S310  # our own server
            return self

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def place(self, endpoint: str | None = None) -> str:
        """Return the URL of a place where nothing is yet, by way of another endpoint if one is given."""
        self._places += 1
        name = f"place-{os.getpid()}-{self._places}"
        if self._given:
            parts = urlsplit(self._given)
            return parts._replace(path=f"{parts.path.rstrip('/')}/{name}").geturl()
        return f"s3://bucket/{name}?endpoint={endpoint or self.endpoint}"


def contents(place: str) -> bytes:
    """Return all names and bytes of the objects of a place, as the server has them."""
    parts = urlsplit(place)
    (endpoint,) = parse_qs(parts.query)["endpoint"]
    bucket = S3Store(parts.netloc, endpoint=endpoint, client_options={"allow_http": True})
    names = [each["path"] for each in bucket.list(parts.path.strip("/")).collect()]
    return b"\n".join(part for name in names for part in (name.encode(), bytes(bucket.get(name).bytes())))


class Troublemaker:
    """A TCP relay to a server whose answers can be spoilt; `trouble` is set by the test and read for each request.

    "": pass on; "slow": after a while; "500", "403": answer so instead of the server; "silent": never answer;
    "cut": break off in the middle of the answer; "lost": let the server take what is put, and break off before any of
    its answer.
    """

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self._server = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self.trouble = ""
        self.requests = 0
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            _shut(connection)
        for thread in self._threads:
            thread.join(5)

    def _start(self, run: object, *args: object) -> None:
        assert callable(run)
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        """Take one request after the other; each gets a connection of its own to the server."""
        with client:
            while request := _read_message(client):
                answer = self._answer(request)
                if answer is None:
                    return
                try:
                    client.sendall(answer)
                except OSError:
                    return
                if self.trouble == "cut":
                    return

    def _answer(self, request: bytes) -> bytes | None:
        trouble = self.trouble
        self.requests += 1
        if trouble.isdigit():
            return f"HTTP/1.1 {trouble} Trouble\r\ncontent-length: 0\r\n\r\n".encode()
        if trouble == "silent":
            while self.trouble == "silent" and self._listener.fileno() >= 0:
                time.sleep(0.02)
            return None
        if trouble == "slow":
            time.sleep(SLOW_SECONDS)
        with socket.create_connection(self._server) as server:
            head, _, rest = request.partition(b"\r\n")
            server.sendall(head + b"\r\nconnection: close\r\n" + rest)
            answer = b"".join(iter(lambda: server.recv(65536), b""))
        if trouble == "lost" and head.startswith(b"PUT"):
            return None
        return answer[: len(answer) // 2] if trouble == "cut" else answer


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def _read_message(connection: socket.socket) -> bytes:
    """Read one request with its body; b"" at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        try:
            part = connection.recv(65536)
        except OSError:
            return b""
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")[1:]]
    size = next((int(value) for name, _, value in lines if name == b"content-length"), 0)
    while len(body) < size:
        part = connection.recv(65536)
        if not part:
            return b""
        body += part
    return head + b"\r\n\r\n" + body
