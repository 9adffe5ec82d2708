"""Stand-ins for a socket that let two writes leave as one: head and body of a small message need one system call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

_STATUS_LINE: Final = b"HTTP/1.1 "


class Gathered:
    """Keeps what is written, for somebody to send it together with what comes next."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def is_closing(self) -> bool:
        """Be open."""
        return False

    def write(self, data: bytes) -> None:
        """Keep bytes."""
        self.parts.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        """Keep several pieces."""
        self.parts += parts


class HeldHead:
    """What uvicorn uses of a transport; the head of an answer waits for what follows, until the loop's next turn."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held: bytes | None = None
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_extra_info = transport.get_extra_info

    def write(self, data: bytes) -> None:
        """Send bytes; those of a head with the next ones."""
        if self._held is not None:
            self._transport.writelines([self._held, data])
            self._held = None
        elif data.startswith(_STATUS_LINE):
            self._held = data
            self._loop.call_soon(self._release)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close when everything is sent."""
        self._release()
        self._transport.close()

    def _release(self) -> None:
        if self._held is not None:
            self._transport.write(self._held)
            self._held = None
