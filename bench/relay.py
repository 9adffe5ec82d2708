"""The bare relay: `python -m bench.relay UPSTREAM_URL`. It prints "port N" and serves until it is ended.

The gateway's own server, routes and transport with nothing of its logic behind them.
"""

from __future__ import annotations

import sys

import uvloop

from proxy.access import PassThrough, Provider
from proxy.app import Parts, create_app
from proxy.relay import RelayGateway
from proxy.server import ServerOptions, bind, serve
from proxy.target import Reach, make_target
from proxy.upstream import Transport
from proxy.vitals import Vitals


class _NoStore:
    """A store that is always there."""

    async def ping(self) -> None:
        """Find nothing wrong."""


async def _run(upstream_url: str) -> None:
    vitals, transport = Vitals(), Transport()
    provider = Provider(make_target(upstream_url, Reach(connect_seconds=5.0, read_seconds=60.0), {}), "sk-none")
    access = PassThrough(lambda: provider)
    gateway = RelayGateway(transport, access)
    app = create_app(Parts(gateway=gateway, access=access, transport=transport, store=_NoStore(), vitals=vitals))
    listener = bind("127.0.0.1", 0)
    sys.stdout.write(f"port {listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await serve(app, listener, ServerOptions(drain_seconds=1.0), vitals)


if __name__ == "__main__":
    uvloop.run(_run(sys.argv[1]))
