"""Serves an application on real sockets: in a thread for tests of routes, as a process for tests of the process.

As a program it is a bare relay: `python -m tests.fakes.serving UPSTREAM_URL [PORT [DRAIN_SECONDS]]`. It prints
"port N" when it is bound, and "reloaded" at each SIGHUP ("reload failed" comes from the server).
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from proxy.access import PassThrough, Provider
from proxy.app import Parts, create_app
from proxy.exchange import Gateway
from proxy.relay import RelayGateway
from proxy.server import ASGIApp, Server, ServerOptions, bind, configure, serve
from proxy.target import Reach, make_target
from proxy.upstream import Transport
from proxy.vitals import Vitals


class NoStore:
    """A store that is always there."""

    async def ping(self) -> None:
        """Find nothing wrong."""


def parts(upstream_url: str, gateway: Gateway | None = None, **more: Any) -> Parts:
    """Return what a relay is made of; `more` are fields of Parts."""
    transport = Transport()
    provider = Provider(make_target(upstream_url, Reach(connect_seconds=2, read_seconds=10), {}), "sk-configured")
    access = PassThrough(lambda: provider)
    made: dict[str, Any] = {
        "gateway": gateway or RelayGateway(transport, access),
        "access": access,
        "transport": transport,
        "store": NoStore(),
        "vitals": Vitals(),
    }
    return Parts(**(made | more))


@contextmanager
def serving(app: ASGIApp, vitals: Vitals | None = None) -> Iterator[str]:
    """Serve an application in a thread; give its URL."""
    listener = bind("127.0.0.1", 0)
    with serving_on(listener, app, vitals):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def serving_on(listener: socket.socket, app: ASGIApp, vitals: Vitals | None = None) -> Iterator[None]:
    """Serve an application in a thread on a socket that listens."""
    config = configure(app)
    server = Server(config, ServerOptions(drain_seconds=2), vitals or Vitals())
    thread = threading.Thread(target=uvloop.run, args=(server.serve([listener]),), name="gateway", daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive(), "the application did not start"
    yield
    server.should_exit = True
    server.config.timeout_graceful_shutdown = 1
    thread.join()


def run(upstream_url: str, port: int, drain_seconds: float, reload: Callable[[], None]) -> None:
    """Serve a bare relay until a signal comes."""
    made = parts(upstream_url)
    listener = bind("127.0.0.1", port)
    sys.stdout.write(f"port {listener.getsockname()[1]}\n")
    sys.stdout.flush()
    options = ServerOptions(drain_seconds=drain_seconds)
    uvloop.run(serve(create_app(made), listener, options, made.vitals, reload))


def _reload() -> None:
    sys.stdout.write("reloaded\n")
    sys.stdout.flush()
    if os.environ.get("RELOAD_FAILS"):
        msg = "a wrong file"
        raise ValueError(msg)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    arguments = dict(enumerate(sys.argv))
    run(sys.argv[1], int(arguments.get(2, 0)), float(arguments.get(3, 30)), _reload)
