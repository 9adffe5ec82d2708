"""Recorded sessions."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from proxy.demo.recording import Recording, demonstration, read_recordings, tools_of


def test_the_session_that_ships_is_small_and_licensed() -> None:
    """It has a licence, a notice beside it, a result that is worth offloading, and weighs less than 200 kB."""
    session = demonstration()
    folder = files("proxy.demo")
    assert session.licence == "MIT"
    assert session.source.partition(" ")[0] in folder.joinpath("NOTICE").read_text("utf-8")
    assert max(len(m["content"]) for m in session.messages if m["role"] == "tool") > 40_000
    assert len(folder.joinpath("session.jsonl").read_bytes()) < 200_000


def test_calls_are_the_assistant_messages_that_have_a_prompt() -> None:
    """A recording that begins with the assistant has no prompt for that message."""
    roles = ["assistant", "tool", "assistant", "user", "assistant"]
    assert Recording("r", [{"role": role} for role in roles]).calls == [2, 4]


def test_tools_are_declared_once_in_the_order_of_their_use() -> None:
    """Recordings hold no declarations, so they are made from the calls."""
    names = ["read", "bash", "read"]
    calls = [{"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    session = Recording("r", [{"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "x"}])
    assert [tool["function"]["name"] for tool in tools_of(session)] == ["read", "bash"]


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    """One session a line; fields that nobody asked for are left out; what is no session is an error."""
    path = tmp_path / "sessions.jsonl"
    path.write_text('{"id": "a", "messages": [], "reward": 1}\n{"id": "b", "messages": [], "model": "m"}\n', "utf-8")
    assert [(session.id, session.model) for session in read_recordings(path)] == [("a", None), ("b", "m")]
    path.write_text("[]\n", "utf-8")
    with pytest.raises(msgspec.DecodeError):
        list(read_recordings(path))
