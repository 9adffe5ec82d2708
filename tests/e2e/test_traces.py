"""Recorded sessions through the running gateway: valid, stable, and every original comes back.

A selection ships with the repository. ULLAGE_TRACES=FOLDER plays all sessions of the *.jsonl files there instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from proxy.demo.model import Reply, ScriptedModel
from proxy.demo.pages import join_pages
from proxy.demo.process import GatewayProcess
from proxy.demo.recording import Recording, read_recordings, tools_of
from proxy.demo.upstream import chunks, completion
from tests.e2e.requests import Request, breaks, violations
from tests.fakes import upstream as fakes
from tests.fakes.upstream import FakeUpstream

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SHIPPED = (ROOT / "tests/data/sessions.jsonl", ROOT / "proxy/demo/session.jsonl")
CONFIG = '[server]\nsecret = "the same in every run"\n[defaults]\npreset = "safe"\n'
STUB_START = "[offloaded off_"


def chosen() -> dict[str, Recording]:
    """Return the sessions to play, by their id."""
    folder = os.environ.get("ULLAGE_TRACES")
    files = sorted(Path(folder).glob("*.jsonl")) if folder else SHIPPED
    return {session.id: session for path in files for session in read_recordings(path)}


SESSIONS = chosen()


class Stage:
    """A gateway, the scripted model behind it, and a client in front."""

    def __init__(self, folder: Path, fake: FakeUpstream) -> None:
        config = folder / "traces.toml"
        config.write_text(CONFIG, "utf-8")
        self.gateway = GatewayProcess(folder, fake.url, "--config", str(config))
        self.model = ScriptedModel()
        self.client = httpx.Client(trust_env=False, timeout=60, headers={"authorization": "Bearer sk-traces"})
        fake.keep = False
        fake.otherwise = self._reply

    def _reply(self, received: fakes.Received) -> fakes.Reply:
        reply = self.model.answer(received.body)
        if received.json.get("stream"):
            return fakes.events(*chunks(reply, "recorded"))
        return fakes.answer(completion(reply, "recorded"))

    def ask(self, session: Recording, at: int) -> tuple[Request, list[Request]]:
        """Have message `at` of a session answered; return the client's request and what went upstream for it."""
        request = body_of(session, session.messages[:at], stream=is_streamed(session, at))
        self.model.requests.clear()
        self.model.prepare(session.messages[at])
        response = self.client.post(f"{self.gateway.url}/v1/chat/completions", content=request.body)
        assert response.status_code == 200, response.text
        assert "bypassed" not in response.headers["x-ullage-compaction"], self.gateway.log()
        assert response.content == recorded_answer(session, at), f"message {at}: another answer than the model gave"
        return request, list(map(Request, self.model.requests))

    def read(self, session: Recording, ref: str) -> str:
        """Have the model read an original to its end, at the end of a session."""
        history = [*session.messages, {"role": "user", "content": "look that up"}]
        self.model.prepare({"role": "assistant", "content": "done"}, read=ref)
        body = body_of(session, history, stream=False).body
        assert self.client.post(f"{self.gateway.url}/v1/chat/completions", content=body).status_code == 200
        return join_pages(self.model.pages)

    def original(self, ref: str) -> bytes:
        """Return what the API says that the original is."""
        response = self.client.get(f"{self.gateway.url}/ullage/v1/originals/{ref}")
        assert response.status_code == 200
        return response.content


@contextmanager
def playing(folder: Path, fake: FakeUpstream) -> Iterator[Stage]:
    """Give a stage whose gateway runs."""
    stage = Stage(folder, fake)
    with stage.gateway, stage.client:
        yield stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Give a gateway under the preset `safe`, shared by the tests of this module."""
    with FakeUpstream() as fake, playing(tmp_path_factory.mktemp("traces"), fake) as made:
        yield made


def body_of(session: Recording, messages: list[dict[str, object]], *, stream: bool) -> Request:
    """Return a request of the client's; `stream` stands last, so that bodies of a session have a common beginning."""
    tools = tools_of(session)
    fields: dict[str, object] = {"model": "recorded", **({"tools": tools} if tools else {}), "messages": messages}
    fields |= {"stream": True} if stream else {}
    return Request(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))


def is_streamed(session: Recording, at: int) -> bool:
    """Say whether message `at` is asked for as a stream: every second call of a session is."""
    return session.calls.index(at) % 2 == 1


def recorded_answer(session: Recording, at: int) -> bytes:
    """Return the bytes that the upstream answers with."""
    model = ScriptedModel()
    model.prepare(session.messages[at])
    reply: Reply = model.answer(b'{"messages":[]}')
    whole, streamed = fakes.answer(completion(reply, "recorded")), fakes.events(*chunks(reply, "recorded"))
    return b"".join(step for step in (streamed if is_streamed(session, at) else whole).steps if isinstance(step, bytes))


def edited(sent: Request, client: Request) -> dict[str, str]:
    """Return the refs of a request and the texts that they stand for; whatever has none must be the client's bytes."""
    found = {}
    assert len(sent.raw) == len(client.raw)
    for mine, theirs, ours, raw in zip(sent.messages, client.messages, sent.raw, client.raw, strict=True):
        if ours != raw:
            assert {**mine, "content": None} == {**theirs, "content": None}, "more than the content was changed"
            assert mine["content"].startswith(STUB_START)
            ref = mine["content"].removeprefix("[offloaded ").partition(" ")[0]
            found[ref] = theirs["content"]
    return found


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_stays_valid_and_stable_and_loses_nothing(stage: Stage, name: str) -> None:
    """No violation, no prefix break, only stubs differ, and each original is exact through the API and the tool."""
    session = SESSIONS[name]
    sent: list[Request] = []
    refs: dict[str, str] = {}
    for at in session.calls:
        client, requests = stage.ask(session, at)
        assert len(requests) == 1
        assert violations(requests[0], client) == [], f"message {at}"
        refs |= edited(requests[0], client)
        sent += requests
    assert breaks(sent) == []
    for ref, text in refs.items():
        assert stage.original(ref) == text.encode("utf-8", "surrogatepass")
        assert stage.read(session, ref) == text


def test_the_selection_has_something_to_offload(stage: Stage) -> None:
    """Results and user texts, or the test above would show little."""
    kinds = set()
    for session in SESSIONS.values():
        _, requests = stage.ask(session, session.calls[-1])
        kinds |= {m["role"] for m in requests[0].messages if str(m.get("content")).startswith(STUB_START)}
    assert kinds == {"tool", "user"}


def test_a_restart_changes_no_byte(tmp_path: Path) -> None:
    """Of two gateways with one secret, one is restarted in the middle of every session: both send the same bytes."""
    middle = {name: session.calls[len(session.calls) // 2] for name, session in SESSIONS.items()}
    every = [(name, at) for name, session in SESSIONS.items() for at in session.calls]
    halves = ([x for x in every if x[1] <= middle[x[0]]], [x for x in every if x[1] >= middle[x[0]]])
    sent: list[list[bytes]] = []
    for restarted in (False, True):
        folder = tmp_path / str(restarted)
        folder.mkdir()
        with FakeUpstream() as fake, playing(folder, fake) as stage:
            sent.append([stage.ask(SESSIONS[name], at)[1][0].body for name, at in halves[0]])
            if restarted:
                stage.gateway.restart()
            sent[-1] += [stage.ask(SESSIONS[name], at)[1][0].body for name, at in halves[1]]
    for (name, at), steady, after_restart in zip([*halves[0], *halves[1]], *sent, strict=True):
        assert steady == after_restart, f"{name}, message {at}"
