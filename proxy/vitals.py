"""The state of this process that health answers and open connections depend on."""

from __future__ import annotations


class Vitals:
    """Shared by the server, which sets it, and the routes, which report it."""

    __slots__ = ("draining",)

    def __init__(self) -> None:
        self.draining = False  # a signal to end came: no new work should be sent here
