"""What is told to the interceptor and what it asks for.

Events are facts in the past tense, commands are wishes; whoever drives the interceptor turns network into events and
commands into network.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from proxy.core.guard import Guard
from proxy.core.ledger import HiddenTurn


class ToolUse(Struct, frozen=True):
    """A call of a tool of the gateway; `arguments` is the text that the model wrote."""

    id: str
    name: str
    arguments: str


class InterceptOptions(Struct, frozen=True):
    """What one client request wants of the interceptor."""

    tool: str | None  # name of the reading tool in this request; None: it is not declared
    rounds: int  # hidden rounds after which the tool is withdrawn
    wants_usage: bool  # the client asked for a usage chunk
    streaming: bool
    json_mode: bool = False  # the answer has to be JSON: text before a hidden call must not be put in front of it
    added_usage: bool = False  # the gateway asked for usage itself, so an unasked usage chunk is not the client's
    guard: Guard | None = None  # the stubs in the request, which a model may copy into a call
    others: tuple[str, ...] = ()  # further tools of the gateway, declared together with the reading tool
    salt: bytes = b""  # makes ids for calls that came without; a constant of the request

    @property
    def relays_only(self) -> bool:
        """Whether there is nothing to look for in the answer."""
        return self.tool is None and self.guard is None


class Opened(Struct, frozen=True):
    """The upstream has answered with a success status."""


class Received(Struct, frozen=True):
    """Bytes of an event stream, cut anywhere."""

    data: bytes


class Body(Struct, frozen=True):
    """A whole answer that is no stream."""

    data: bytes


class Refused(Struct, frozen=True):
    """The upstream has answered with an error status."""

    status: int
    body: bytes


class Ended(Struct, frozen=True):
    """The stream has ended as far as the connection is concerned."""


class Broke(Struct, frozen=True):
    """There is no answer, or no more of it."""

    message: str


class Answered(Struct, frozen=True):
    """The calls of the last `Read` have been answered, in its order."""

    answers: tuple[str, ...]


Event = Opened | Received | Body | Refused | Ended | Broke | Answered


class Emit(Struct, frozen=True):
    """Send these bytes to the client, now; whole events, or a whole body."""

    data: bytes


class Read(Struct, frozen=True):
    """Answer these calls, all of one upstream message; `Answered` is waited for."""

    calls: tuple[ToolUse, ...]


class Reopen(Struct, frozen=True):
    """Ask the upstream again, these raw messages appended to those of the first request of the turn.

    `tool` False: the rounds are used up, and the model must not be able to call the reading tool.
    """

    messages: tuple[bytes, ...]
    tool: bool


class Remember(Struct, frozen=True):
    """Write a hidden turn down before anything that follows is sent: the client could answer it."""

    turn: HiddenTurn


class Refuse(Struct, frozen=True):
    """Answer with this status and body; only while nothing has been sent."""

    status: int
    body: bytes


class CloseUpstream(Struct, frozen=True):
    """Nothing that follows in the present stream matters; `Ended` may be told at once instead of when it is true."""


class Finished(Struct, frozen=True):
    """The last command. `usage` is the sum over all rounds.

    `visible` is the assistant message as the client has it, for a turn that was spliced; a stream that passed as it
    came is not put together. `aborted`: the client was told of an error.
    """

    usage: dict[str, Any] | None
    visible: bytes | None
    aborted: bool


Command = Emit | Read | Reopen | Remember | Refuse | CloseUpstream | Finished
