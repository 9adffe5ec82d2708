"""What a gateway sees of one client request, and how it answers: free of ASGI and of any HTTP library.

A route hands an `Exchange` and a `Responder` to a `Gateway`, which answers: `start` once, `send` any number
of times, `finish` once. When the client leaves before `finish`, the task that runs `handle` is cancelled at
its next await, so `finally` blocks are all that a gateway needs to let go of what it holds. After `finish`
nothing is cancelled any more: work may follow that the client need not wait for. An error raised before
`start` becomes an error answer in OpenAI's shape; one raised later cuts the connection, so that the client
can tell a broken answer from a complete one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct

from proxy.headers import Headers
from proxy.locality import is_local


class Exchange(Struct, frozen=True):
    """One client request."""

    method: str
    path: str  # as it came: percent-encoding kept, no query
    raw_query: bytes  # as it came, without the question mark
    headers: Headers  # names in lower case
    peer: str  # address of the other end of the connection; "": unknown
    body: bytes = b""  # whole, unless `upload` is set
    upload: AsyncIterator[bytes] | None = None  # the body as it arrives, to be read once (relayed routes)

    @property
    def client_is_loopback(self) -> bool:
        """Whether the client is surely a program on this machine (see `locality`)."""
        return is_local(self.peer, self.headers)

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header (name in lower case), or None; a blank one is as good as none."""
        return next((value for key, value in self.headers if key == name and value.strip()), None)


class Responder(Protocol):
    """The answer to one request, as it is written."""

    @property
    def started(self) -> bool:
        """Whether status and headers went out."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the answer is complete."""
        ...

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        ...

    async def send(self, data: bytes) -> None:
        """Send a part of the body at once; waits while the client reads too slowly."""
        ...

    async def finish(self, data: bytes = b"") -> None:
        """Send the last part of the body and complete the answer."""
        ...


class Gateway(Protocol):
    """What answers an exchange."""

    async def handle(self, exchange: Exchange, responder: Responder) -> None:
        """Answer it; cancelled when the client leaves, may raise any ProxyError."""
        ...
