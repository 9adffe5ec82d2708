"""The process: uvicorn with signal handling of our own.

uvicorn closes its listener as soon as SIGTERM comes and dies of SIGHUP. Here:

- SIGTERM, SIGINT: `vitals.draining` is set, so /readyz answers 503 and answers close their connections, but
  the listener stays open, for a moment at least and while requests run, for half of `drain_seconds` at most:
  whoever balances the load needs time to notice. Then the listener closes; what still runs may use the rest
  of `drain_seconds`. Exit code 0. A second signal ends at once; but a SIGTERM that comes within a second of the
  first is the same one, sent to a group of processes and handed on by one of them (make does that)
- SIGHUP: calls `reload`, whatever it does; the server goes on
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any, Final, cast

import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.errors import BadRequest, NotAllowed, error_body
from proxy.gathering import HeldHead
from proxy.vitals import Vitals

log = logging.getLogger(__name__)

_LINGER_SECONDS: Final = 0.5
_ECHO_SECONDS: Final = 1.0
_CUT_SECONDS: Final = 1
_WRONG_HOST: Final = {errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_NODATA}
_OTHER_HOST: Final = "name an address of this machine with --host or server.host, like 127.0.0.1 or 0.0.0.0"
_OTHER_PORT: Final = "choose another port with --port or server.port"
_NO_HTTP: Final = "This is no HTTP request that can be read."
_NO_TUNNEL: Final = "This is no forward proxy; use it as the base URL of an OpenAI client, which ends in /v1."
_KEEPALIVE_SECONDS: Final = 75  # longer than clients keep idle connections, so that they close first
_BACKLOG: Final = 2048

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]


class ServerOptions(Struct, frozen=True):
    """How the process listens and ends."""

    host: str = "127.0.0.1"
    port: int = 4410
    drain_seconds: float = 30.0


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises OSError that names the address and the mend."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        mend = _OTHER_HOST if error.errno in _WRONG_HOST else _OTHER_PORT
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {reason}; {mend}") from error
    except UnicodeError as error:
        raise OSError(errno.EINVAL, f"cannot listen on {host}:{port}: this is no host name; {_OTHER_HOST}") from error


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    options: ServerOptions,
    vitals: Vitals,
    reload: Callable[[], None] | None = None,
) -> None:
    """Serve until a signal ends it; returns when everything is closed. SIGHUP calls `reload`."""
    _allow_many_files()
    with _quiet_about_cut_answers():
        await Server(configure(app), options, vitals, reload).serve(sockets=[listener])


def configure(app: ASGIApp) -> uvicorn.Config:
    """Return uvicorn's settings: fast, silent, and adding no field to answers."""
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",  # what it says of starting and ending is said here in better words
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEPALIVE_SECONDS,
    )


class Server(uvicorn.Server):
    """A server that drains before it ends and survives SIGHUP."""

    def __init__(
        self,
        config: uvicorn.Config,
        options: ServerOptions,
        vitals: Vitals,
        reload: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._options = options
        self._vitals = vitals
        self._reload = reload
        self._draining: asyncio.Task[None] | None = None
        self._asked_at = 0.0  # when the first signal to end came, by the loop's clock

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve."""
        await super().startup(sockets)
        for listener in sockets or []:
            log.info("listening on %s", ":".join(map(str, listener.getsockname()[:2])))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.terminate)
        loop.add_signal_handler(signal.SIGINT, self.end, 0.0)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)
            # Between here and the end of the process nothing is left to reload.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def terminate(self) -> None:
        """Drain as a supervisor asks for it; an echo of the same request changes nothing."""
        if self._draining is None or asyncio.get_running_loop().time() - self._asked_at > _ECHO_SECONDS:
            self.end(_LINGER_SECONDS)

    def end(self, linger_seconds: float = 0.0) -> None:
        """Drain, then end; at once when it is asked for again."""
        if self._draining is not None:
            self._cut()
            return
        self._vitals.draining = True
        self._asked_at = asyncio.get_running_loop().time()
        log.info("draining: %d requests are running", len(self.server_state.tasks))
        self._draining = asyncio.get_running_loop().create_task(self._drain(linger_seconds))

    def _cut(self) -> None:
        """End what runs and stop to wait; the store and the connections are still closed in order."""
        if self._draining is not None:
            self._draining.cancel()
        for task in self.server_state.tasks:
            task.cancel()
        self.config.timeout_graceful_shutdown = _CUT_SECONDS
        self.should_exit = True

    async def _drain(self, linger_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(linger_seconds)
        half = began + self._options.drain_seconds / 2
        while self.server_state.tasks and (rest := half - loop.time()) > 0:
            await asyncio.wait(set(self.server_state.tasks), timeout=rest)
        left = max(0.0, began + self._options.drain_seconds - loop.time())
        self.config.timeout_graceful_shutdown = left  # type: ignore[assignment]  # fractions are taken as well
        self.should_exit = True

    def _hang_up(self) -> None:
        try:
            if self._reload is not None:
                self._reload()
        except Exception:
            log.exception("reload failed; what was in force stays")


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with the head of an answer and the first part of its body in one write."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(cast("asyncio.Transport", HeldHead(transport)))

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the application's words and shape
        """Answer what is no request for the application, and close."""
        is_tunnel = self.parser.get_method() == b"CONNECT"
        error = NotAllowed(_NO_TUNNEL) if is_tunnel else BadRequest(_NO_HTTP)
        data = error_body(error)
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + data)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: the application answers, and installing a library would change nothing."""


def _allow_many_files() -> None:
    """Raise the limit of open files: every request holds two sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def _quiet_about_cut_answers() -> Iterator[None]:
    """Drop uvicorn's complaint about answers that are left incomplete: that is how ours are cut, and was logged."""
    logger = logging.getLogger("uvicorn.error")

    def is_news(record: logging.LogRecord) -> bool:
        return "without completing response" not in record.getMessage()

    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)
