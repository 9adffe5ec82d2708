"""Recorded agent sessions: JSON Lines, one session a line; every assistant message is one call of a model."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

Message: TypeAlias = dict[str, Any]


class Recording(Struct, frozen=True):
    """One session: its messages in the form of Chat Completions, and where it is from."""

    id: str
    messages: list[Message]
    source: str = ""
    licence: str = ""
    agent: str = ""
    model: str | None = None

    @property
    def calls(self) -> list[int]:
        """Where the assistant messages are; the messages before each are the prompt that it answers."""
        return [at for at, message in enumerate(self.messages) if at and message["role"] == "assistant"]


def read_recordings(path: Path) -> Iterator[Recording]:
    """Yield the sessions of a file; raises msgspec.DecodeError where a line is none."""
    decoder = msgspec.json.Decoder(Recording)
    with path.open("rb") as lines:
        yield from map(decoder.decode, lines)


def demonstration() -> Recording:
    """Return the session that ships with the gateway."""
    return msgspec.json.decode(files(__package__).joinpath("session.jsonl").read_bytes(), type=Recording)


def tools_of(recording: Recording) -> list[Message]:
    """Return declarations of the tools that a session uses; recordings hold none."""
    calls = (call for message in recording.messages for call in message.get("tool_calls") or [])
    names = dict.fromkeys(call["function"]["name"] for call in calls)
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"The agent's tool {name}.",
                "parameters": {"type": "object", "properties": {}, "additionalProperties": True},
            },
        }
        for name in names
    ]
