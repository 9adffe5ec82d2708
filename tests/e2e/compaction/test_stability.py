"""Equal histories are equal bytes, on every process, and change only where a compaction is declared."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.answer import Message
from tests.e2e.chat import Chat, assert_valid, large
from tests.e2e.compacting import (
    BLOCK,
    MEDIUM,
    SMALL,
    Model,
    SmallGateway,
    messages_of,
    new_chat,
    rows,
    talk,
    text_of,
    tokens_of,
    turn,
)
from tests.e2e.conftest import NewClient
from tests.e2e.gateway import Client
from tests.e2e.model import raw_messages, raw_tools, reads, says

pytestmark = pytest.mark.e2e


def sent_for(client: Client, model: Model, messages: list[Message], preset: str = "mechanical", **fields: Any) -> bytes:
    """Send a history and return what the upstream got for it."""
    chat = new_chat(client, *messages, preset=preset, **fields)
    got = client.post(chat.body(), chat.headers)
    assert got.status == 200, got.data
    return model.last


def raw_of(messages: list[Message]) -> list[bytes]:
    """Return messages as the client writes them."""
    return [json.dumps(message).encode() for message in messages]


def kept_of(body: bytes, messages: list[Message]) -> int:
    """Return how many messages at the end of a history were sent as they were."""
    pairs = zip(reversed(raw_messages(body)), reversed(raw_of(messages)), strict=False)
    return next((number for number, (sent, own) in enumerate(pairs) if sent != own), len(messages))


def _long_session(client: Client, model: Model, turns: int = 40, **fields: Any) -> Chat:
    """Have a session with large results, long inputs, a read and several compactions."""
    chat = new_chat(client, **fields)
    for number in range(turns):
        made = turn(number, 16)
        if number % 7 == 3:
            made[1]["content"] = large(f"big{number}")
        if number % 5 == 2:
            made[0]["tool_calls"][0]["function"]["arguments"] = json.dumps({"text": rows(f"in{number}", 40)})
        if number % 9 == 4:
            model.script += [says("", reads()), says("seen")]
        chat.ask(*made)
    return chat


@pytest.mark.parametrize("preset", ["mechanical", "told", "inputs", "plain"])
def test_bytes_change_only_at_declared_compactions(client: Client, model: Model, preset: str) -> None:
    """Over forty turns each request begins with the whole one before it, unless the header counts one more."""
    chat, before, breaks = new_chat(client, preset=preset, model=MEDIUM), b"", []
    declared = 0
    for number in range(40):
        made = turn(number, 24)
        if number % 7 == 3:
            made[1]["content"] = large(f"big{number}")
        if number % 5 == 2:
            made[0]["tool_calls"][0]["function"]["arguments"] = json.dumps({"text": rows(f"in{number}", 40)})
        got = chat.ask(*made)
        assert_valid(messages_of(model.last))
        if before:
            assert raw_tools(model.last) == raw_tools(before)
            is_broken = raw_messages(model.last)[: len(raw_messages(before))] != raw_messages(before)
            assert is_broken <= (got.compaction.compactions > declared), f"request {number} broke the prefix"
            breaks += [number] * is_broken
        declared, before = got.compaction.compactions, model.last
    assert len(breaks) <= 10
    assert len(breaks) >= {"mechanical": 2, "told": 2}.get(preset, 0)


def test_a_restart_and_a_replica_send_the_same_bytes(
    own_gateway: SmallGateway, own_client: Client, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After several compactions with reads between them, whatever process gets the history."""
    chat = _long_session(own_client, model)
    history, headers = chat.body(), chat.headers
    own_client.post(history, headers)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    own_gateway.restart()
    own_client.post(history, headers)
    replica = SmallGateway(tmp_path / "replica", own_gateway.upstream, own_gateway.store)
    with replica, Client(replica, own_client.key) as other:
        other.post(history, headers)
    first, second, third = model.bodies[-3:]
    assert BLOCK in text_of(first)
    assert first == second == third


def test_sizes_that_were_learnt_change_no_request_that_was_sent(
    own_gateway: SmallGateway, own_client: Client, model: Model
) -> None:
    """A process that has heard no reports yet sends a known history as the one before it did, and not compacted."""
    for word in "abcdefgh":
        other = new_chat(own_client, *talk(20, word=word))
        model.script.append(says("ok", prompt_tokens=int(0.6 * tokens_of(other.body()))))
        other.ask()
    histories = [new_chat(own_client, *talk(turns, word=f"h{turns}-")).body() for turns in range(24, 40, 2)]
    for restarts in range(2):
        if restarts:
            own_gateway.restart()
        for history in histories:
            own_client.post(history, {"x-ullage-policy": "mechanical"})
    sent = model.bodies[-2 * len(histories) :]
    assert sent[: len(histories)] == sent[len(histories) :]


def test_busy_neighbours_change_nothing(new_client: NewClient, model: Model) -> None:
    """The same history of other tenants at the same time: this one's bytes stay what they were."""
    mine = new_chat(new_client(), *talk(60))
    history = mine.body()
    mine.client.post(history, mine.headers)
    others = [new_client() for _ in range(4)]
    threads = [threading.Thread(target=other.post, args=(history, mine.headers)) for other in others for _ in range(3)]
    for thread in threads:
        thread.start()
    mine.client.post(history, mine.headers)
    for thread in threads:
        thread.join()
    credential = f"Bearer {mine.client.key}"
    first, second = [r.body for r in model.chats if r.header("authorization") == credential]
    assert first == second
    tags = {text_of(received.body).split(BLOCK)[1].split(">")[0] for received in model.chats}
    assert len(tags) == 5, "nobody can close another tenant's block"


def test_an_earlier_history_is_what_it_was(client: Client, model: Model) -> None:
    """A client that goes back to any of its earlier requests gets the bytes of that time."""
    chat, histories = new_chat(client), []
    for number in range(40):
        chat.add(*turn(number, 24))
        histories.append(chat.body())
        chat.ask()
    before = list(model.bodies)
    for history in histories[::3]:
        client.post(history, chat.headers)
    again = model.bodies[len(before) :]
    assert again == before[::3]


def test_keys_of_the_client_keep_their_order(client: Client, model: Model) -> None:
    """What a compaction does not touch is copied: fields outside the messages, and the messages that stay."""
    chat = new_chat(client, *talk(60))
    sent = b'{"zeta":1.0, "tools":' + json.dumps(chat.fields["tools"]).encode() + b' ,"messages":'
    sent += json.dumps(chat.messages).encode() + b',"model": "small","a":{"b":1e2}}'
    client.post(sent, chat.headers)
    start, end = model.last.index(b'"messages":'), model.last.rindex(b',"model": "small"')
    assert model.last[:13] == sent[:13]
    assert model.last[end:] == b',"model": "small","a":{"b":1e2}}'
    assert raw_messages(model.last[:start] + model.last[start:])[-1] == raw_of(chat.messages)[-1]


def test_the_same_request_twice_at_once(client: Client, model: Model) -> None:
    """Two equal requests at one moment are compacted once and to the same bytes."""
    chat = new_chat(client, *talk(60))
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda _: client.post(chat.body(), chat.headers), range(4)))
    assert {a.status for a in got} == {200}
    assert {a.compaction.compactions for a in got} == {1}
    assert len(set(model.bodies)) == 1
    assert SMALL in chat.fields.values()
