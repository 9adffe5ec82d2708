"""The connections that this process opened to upstreams, so that a request of ours is known when it comes back.

No mark is put on requests for it: both ends of a connection of ours are the two ends of the connection that brings
our own request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeAlias

End: TypeAlias = tuple[str, int]
Link: TypeAlias = tuple[End, End]

_MAPPED: Final = "::ffff:"


class Links:
    """The connections to upstreams that are open now, by both of their ends."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: set[Link] = set()

    def add(self, transport: asyncio.BaseTransport) -> Link | None:
        """Note a connection; return what to discard when it ends."""
        near, far = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if not isinstance(near, tuple) or not isinstance(far, tuple):
            return None
        link = (_end(near), _end(far))
        self._open.add(link)
        return link

    def discard(self, link: Link | None) -> None:
        """Forget a connection."""
        if link is not None:
            self._open.discard(link)

    def brought(self, client: tuple[Any, ...] | None, server: tuple[Any, ...] | None) -> bool:
        """Tell whether a request between these ends was sent by this process."""
        if not self._open or not client or not server:
            return False
        return (_end(client), _end(server)) in self._open


def _end(address: tuple[Any, ...]) -> End:
    """Return host and port; an IPv4 address is written as such, also on a socket for IPv6."""
    return str(address[0]).removeprefix(_MAPPED), address[1]
