"""A scripted model: says what the recorded model said, and reads an offloaded text first when told to."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from proxy.demo.pages import NotAPage, Page, parse_page
from proxy.demo.recording import Message

READING_TOOL = "read_offloaded"
PREAMBLE = "Let me look at that file again before I go on.\n\n"
_CALL_ID = "call_reading_"


class Call(Struct, frozen=True):
    """A tool call of the model; the arguments are JSON text."""

    id: str
    name: str
    arguments: str


class Reply(Struct, frozen=True):
    """What the model says in one round."""

    text: str
    calls: tuple[Call, ...] = ()


class ScriptedModel:
    """Answers requests as it was told before; keeps what it was asked, and the pages that it read."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.pages: list[Page] = []
        self._answer = Reply("")
        self._ref: str | None = None

    def prepare(self, message: Message, *, read: str | None = None) -> None:
        """Set the answer to what comes next; with a ref, that original is read to its end before."""
        self._answer, self._ref = reply_of(message), read
        self.pages = []

    def answer(self, body: bytes) -> Reply:
        """Answer one request."""
        self.requests.append(body)
        request: dict[str, Any] = msgspec.json.decode(body)
        if self._ref is None or not _offers_reading(request):
            return self._answer
        last = request["messages"][-1]
        if not str(last.get("tool_call_id", "")).startswith(_CALL_ID):
            return Reply(PREAMBLE, (self._read(self._ref, 1),))
        try:
            page = parse_page(last["content"])
        except NotAPage:
            return self._answer  # refused: go on without it, as a model would
        self.pages.append(page)
        return self._answer if page.following is None else Reply("", (self._read(self._ref, page.following),))

    def _read(self, ref: str, offset: int) -> Call:
        arguments = msgspec.json.encode({"ref": ref, "offset": offset}).decode()
        return Call(f"{_CALL_ID}{len(self.pages) + 1}", READING_TOOL, arguments)


def reply_of(message: Message) -> Reply:
    """Return what an assistant message says."""
    calls = (Call(call["id"], **call["function"]) for call in message.get("tool_calls") or [])
    return Reply(message.get("content") or "", tuple(calls))


def _offers_reading(request: dict[str, Any]) -> bool:
    return any(tool["function"]["name"] == READING_TOOL for tool in request.get("tools") or [])
