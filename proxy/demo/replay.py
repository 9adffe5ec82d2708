"""A recorded session played through a running gateway, and what came of it.

The agent asks, the scripted model says what the recorded one said, the agent's tools return what they returned. Every
second answer is streamed. Before one call the gateway is restarted, and in the middle of a streamed answer the model
reads an original to its end. What is judged: that the client got the model's words and nothing else, that each
upstream request begins with the one before it, and that every original comes back byte for byte on both ways.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from proxy.demo.agent import Agent, Heard
from proxy.demo.model import PREAMBLE, Reply, ScriptedModel, reply_of
from proxy.demo.pages import Page, join_pages
from proxy.demo.process import GatewayProcess
from proxy.demo.recording import Message, Recording
from proxy.demo.upstream import ScriptedUpstream

_STUB_START = "[offloaded off_"
_RESTART_BEFORE = 5
_READ_IN = 6


class Original(Struct, frozen=True):
    """A text that was moved out: its ref, what it is, and whether the gateway gives the exact bytes back."""

    ref: str
    name: str
    text: str
    exact: bool


class Finding(Struct, frozen=True):
    """Something that was judged."""

    text: str
    ok: bool


class Turn(Struct, frozen=True):
    """One call of the agent: what it heard, and what happened besides."""

    heard: Heard
    notes: tuple[str, ...]


class Outcome(Struct, frozen=True):
    """What a replay came to."""

    turns: list[Turn]
    originals: list[Original]
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether everything is as it has to be."""
        return all(finding.ok for finding in self.findings)


class Replay:
    """Plays one session."""

    def __init__(self, recording: Recording, model: ScriptedModel, gateway: GatewayProcess) -> None:
        self._recording = recording
        self._model = model
        self._gateway = gateway
        self._agent = Agent(gateway.url, recording)
        self._turns: list[Turn] = []
        self._expected: list[Reply] = []
        self._read: list[Page] = []

    def run(self) -> Outcome:
        """Play it to the end and judge."""
        for at, message in enumerate(self._recording.messages):
            if at in self._recording.calls:
                self._call(message)
            else:
                self._agent.history.append(message)
        self._agent.close()
        originals = [self._recover(ref, message) for ref, message in self._stubs().items()]
        return Outcome(self._turns, originals, list(self._judge(originals)))

    def _call(self, recorded: Message) -> None:
        number = len(self._turns) + 1
        notes: list[str] = []
        if number == _RESTART_BEFORE:
            self._gateway.restart()
            notes.append("gateway restarted")
        ref = next(iter(self._stubs()), None) if number == _READ_IN else None
        self._model.prepare(recorded, read=ref)
        heard = self._agent.ask(stream=number % 2 == 0)
        if heard.new_edits:
            notes.append(f"{heard.new_edits} results offloaded")
        expected = reply_of(recorded)
        if self._model.pages:
            self._read = self._model.pages
            notes.append(f"read_offloaded: {len(self._read)} pages, unseen by the agent")
            expected = msgspec.structs.replace(expected, text=PREAMBLE + expected.text)
        self._turns.append(Turn(heard, tuple(notes)))
        self._expected.append(expected)

    def _stubs(self) -> dict[str, Message]:
        """Return what the newest upstream request has stubs for: refs and the client's own messages."""
        if not self._model.requests:
            return {}
        mine = {message.get("tool_call_id"): message for message in self._agent.history if message["role"] == "tool"}
        return {
            _ref_of(message["content"]): mine[message["tool_call_id"]]
            for message in _request(self._model.requests[-1])["messages"]
            if message["role"] == "tool" and message["content"].startswith(_STUB_START)
        }

    def _recover(self, ref: str, message: Message) -> Original:
        text: str = message["content"]
        try:
            data = _get(f"{self._gateway.url}/ullage/v1/originals/{ref}")
        except OSError:  # refused, or not there
            data = b""
        return Original(ref, self._name(message["tool_call_id"]), text, exact=data == text.encode())

    def _name(self, call_id: str) -> str:
        """Return what a result is: the file that was read, else the tool that was called."""
        calls = (call for message in self._agent.history for call in message.get("tool_calls") or [])
        function = next(call["function"] for call in calls if call["id"] == call_id)
        path: str = msgspec.json.decode(function["arguments"]).get("path", "")
        return path.rpartition("/")[2] or function["name"]

    def _judge(self, originals: list[Original]) -> Iterator[Finding]:
        heard = [turn.heard for turn in self._turns]
        streams = sum(one.streamed for one in heard)
        same = [one.reply for one in heard] == self._expected
        yield Finding(f"{len(heard)} answers, {streams} of them streamed, are the model's own words", same)
        exact = sum(original.exact for original in originals)
        text = f"{exact} of {len(originals)} originals come back from the gateway's API byte for byte"
        yield Finding(text, 0 < exact == len(originals))
        text = join_pages(self._read)
        read = next((original for original in originals if original.text == text), None)
        name = read.name if read else "an original"
        text = f"in the middle of a stream the model read {name} back in {len(self._read)} pages, byte for byte"
        yield Finding(text, read is not None)
        requests = [_request(body) for body in self._model.requests]
        pairs = list(pairwise(requests))
        kept = sum(map(_continues, pairs))
        text = f"{kept} of {len(pairs)} upstream requests begin with the one before, over a restart, too"
        yield Finding(text, 0 < kept == len(pairs))


def run_demonstration(recording: Recording, folder: Path) -> Outcome:
    """Play a session with a gateway whose store is in a folder."""
    model = ScriptedModel()
    with ScriptedUpstream(model) as upstream, GatewayProcess(folder, upstream.url) as gateway:
        return Replay(recording, model, gateway).run()


def _continues(pair: tuple[dict[str, Any], dict[str, Any]]) -> bool:
    """Tell whether the second request is the first with messages added."""
    before, after = pair
    count = len(before["messages"])
    return bool(after["messages"][:count] == before["messages"] and after["tools"] == before["tools"])


def _ref_of(stub: str) -> str:
    return stub.removeprefix("[offloaded ").partition(" ")[0]


def _request(body: bytes) -> dict[str, Any]:
    request: dict[str, Any] = msgspec.json.decode(body)
    return request


def _get(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as response:
        data: bytes = response.read()
    return data
