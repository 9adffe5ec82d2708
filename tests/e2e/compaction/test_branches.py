"""Histories that fork and requests that race: each gets its own branch, nobody waits twice, nothing fails."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.answer import Message
from tests.e2e.chat import Chat, assert_valid, assistant, result, step, system, user
from tests.e2e.compacting import BLOCK, SUMMARY, Model, SmallGateway, messages_of, new_chat, talk, text_of, turn
from tests.e2e.gateway import Client
from tests.e2e.model import raw_messages, reads, refs, says
from tests.fakes.upstream import Received, Reply

pytestmark = pytest.mark.e2e
COUNTED = "Go on counting."  # is in the summary


def assert_of(body: bytes, messages: list[Message], foreign: tuple[str, ...] = ()) -> None:
    """Check that a request stands for a history: valid, all of the user's words in order, none of another branch."""
    assert_valid(messages_of(body))
    told = text_of(body)
    at = 0
    for message in messages:
        if message["role"] == "user":
            at = told.index(message["content"], at)
    for word in foreign:
        assert word not in body.decode(), f"{word} is of another branch"
    assert raw_messages(body)[-1] == json.dumps(messages[-1]).encode()


def _tag(number: int, word: str) -> list[Message]:
    """Return a turn in which everything carries a word."""
    made = turn(number, 20, word)
    made[-1]["content"] = f"{word} note {number}"
    return made


def _grown(client: Client, turns: int, preset: str = "mechanical") -> Chat:
    chat = new_chat(client, preset=preset)
    for number in range(turns):
        chat.ask(*_tag(number, "trunk"))
    return chat


def _fork(chat: Chat, messages: list[Message]) -> Chat:
    other = Chat(chat.client, *messages, **chat.fields)
    other.headers = chat.headers
    return other


@pytest.mark.parametrize("preset", ["mechanical", "told"])
@pytest.mark.parametrize("back", [1, 9, 30])
def test_a_user_goes_back_and_says_something_else(client: Client, model: Model, back: int, preset: str) -> None:
    """From so many turns ago the conversation goes on otherwise; then the first one goes on, too."""
    chat = _grown(client, 34, preset)
    kept = [m for m in chat.messages if "trunk" not in json.dumps(m) or m in chat.messages[: -4 * back]]
    lost = tuple(f"trunk note {number}" for number in range(34 - back, 34))
    other = _fork(chat, chat.messages[: 2 + 4 * (34 - back)])
    assert len(kept) >= len(other.messages)
    for number in range(14):
        other.ask(*_tag(number, "twig"))
        assert_of(model.last, other.messages[:-1], lost)
        chat.ask(*_tag(50 + number, "trunk"))
        assert_of(model.last, chat.messages[:-1], ("twig",))


@pytest.mark.parametrize("at", [1, 5, 60, -5])
def test_a_message_of_the_user_is_edited(client: Client, model: Model, at: int) -> None:
    """Wherever it stands, also within what a block stands for: the new words are sent, the old ones are not."""
    chat = _grown(client, 34)
    places = [index for index, message in enumerate(chat.messages) if message["role"] == "user"]
    index = min(places, key=lambda place: abs(place - at % len(chat.messages)))
    old = str(chat.messages[index]["content"])
    other = _fork(chat, [dict(message) for message in chat.messages])
    other.messages[index]["content"] = "EDITED words"
    for number in range(10):
        other.ask(*_tag(number, "twig"))
        assert_of(model.last, other.messages[:-1])
        assert f"{old}\n" not in text_of(model.last) + "\n"


def test_an_answer_is_made_anew(client: Client, model: Model) -> None:
    """The same request again, twice, with other answers: the next requests hold the one that the client kept."""
    chat = _grown(client, 24)
    histories = []
    for word in ("first", "second", "third"):
        model.script.append(says(f"the {word} answer"))
        again = _fork(chat, list(chat.messages))
        again.ask(*_tag(100, "trunk"))
        histories.append(again)
    assert len({bytes(body) for body in model.bodies[-3:]}) == 1
    for number in range(12):
        for again in histories:
            again.ask(*_tag(200 + number, again.messages[-1]["content"].split()[0] if not number else "more"))
    for again, word in zip(histories, ("first", "second", "third"), strict=True):
        again.ask(user("which?"))
        assert_of(
            model.last, again.messages[:-1], tuple({"first note", "second note", "third note"} - {f"{word} note"})
        )


def test_a_result_is_edited(client: Client, model: Model) -> None:
    """A tool's answer that the client changes is read as it is now, not as it was."""
    chat = new_chat(client, user("go"), *step("alpha"))
    chat.ask()
    (old,) = refs(model.last)
    edited = _fork(chat, [dict(message) for message in chat.messages])
    edited.messages[2] = result(str(edited.messages[2]["content"]).replace("0042", "forty-two"))
    model.script += [says("", reads(pattern="forty-two")), says("seen")]
    edited.ask(user("and?"))
    assert "alpha forty-two is a line" in messages_of(model.last)[-1]["content"]
    (new,) = refs(model.bodies[-2])
    assert new != old
    chat.ask(user("and?"))
    assert refs(model.last) == [old]


def test_agents_with_one_opening_do_not_mix(client: Client, model: Model) -> None:
    """Sub-agents that start alike and work at the same time, each through several compactions."""
    words = [f"agent{number}" for number in "abcdef"]

    def work(word: str) -> list[Message]:
        chat = new_chat(client)
        for number in range(30):
            got = chat.ask(*_tag(number, word))
            assert got.compaction.state in ("none", "applied")
        return chat.messages

    with ThreadPoolExecutor(len(words)) as pool:
        histories = dict(zip(words, pool.map(work, words), strict=True))
    assert len(model.bodies) == 30 * len(words)
    for body in model.bodies:
        (word,) = {word for word in words if word in body.decode()}
        count = body.decode().count(f"{word} note")
        assert_of(body, histories[word][: 2 + 4 * (count - 1) + 3], tuple(set(words) - {word}))
    assert sum(BLOCK in text_of(body) for body in model.bodies) > 60


def test_agents_with_equal_steps_go_on_apart(client: Client, model: Model) -> None:
    """They do the same for a while, at the same time, and then not: each has its own words from there on."""

    def work(word: str) -> None:
        chat = new_chat(client, *talk(12))
        for number in range(20, 40):
            chat.ask(*turn(number, 20))
        for number in range(12):
            chat.ask(*_tag(number, word))

    words = ["left", "right", "middle"]
    with ThreadPoolExecutor(len(words)) as pool:
        list(pool.map(work, words))
    for body in model.bodies:
        assert_valid(messages_of(body))
        assert sum(f"{word} note" in body.decode() for word in words) <= 1


ENDS: dict[str, list[list[Message]]] = {
    "other questions": [[user("A?")], [user("B?")]],
    "an answer more": [[user("A?")], [assistant("x"), user("B?")]],
}


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("preset", ["mechanical", "told"])
def test_two_questions_at_once(client: Client, model: Model, preset: str, ends: list[list[Message]]) -> None:
    """One history with two ends, sent at the same moment, again and again: each gets its own answer."""
    model.tell = says(SUMMARY, pause_seconds=0.3)
    base = talk(110)

    def answers(received: Received) -> Reply:
        return says(f"to {messages_of(received.body)[-1]['content']}", prompt_tokens=0)(received)

    model.script.extend([answers] * 20)

    def ask(end: list[Message]) -> tuple[int, str, str]:
        chat = new_chat(client, *base, *end, preset=preset)
        got = client.post(chat.body(), chat.headers)
        return got.status, got.message["content"], str(end[-1]["content"])

    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(ask, ends * 10))
    assert all(status == 200 and said == f"to {asked}" for status, said, asked in got)
    for body in model.bodies:
        assert_of(body, [*base, messages_of(body)[-1]])
    assert BLOCK in text_of(model.last)
    if len(ends[0]) == len(ends[1]):
        spans = [received.body for received in model.summaries]
        assert len(spans) == len(set(spans)), "one summary of a span is enough"


def test_a_retry_joins_the_summary_that_is_being_written(
    own_gateway: SmallGateway, own_client: Client, model: Model
) -> None:
    """A client that gives up and asks again pays for one summary, and gets it."""
    model.tell = says(SUMMARY, pause_seconds=0.3)
    chat = new_chat(own_client, *talk(54), preset="told")
    for number in range(2):
        with pytest.raises(httpx.ReadTimeout), httpx.Client(timeout=0.25, trust_env=False) as hasty:
            hasty.post(
                f"{own_gateway.base_url}/chat/completions",
                content=chat.body(),
                headers={
                    "authorization": f"Bearer {own_client.key}",
                    **chat.headers,
                    "x-stainless-retry-count": f"{number}",
                },
            )
    got = own_client.post(chat.body(), chat.headers)
    assert got.status == 200
    assert COUNTED in text_of(model.last)
    assert len({received.body for received in model.summaries}) == len(model.summaries)


def test_replicas_at_once_agree(own_gateway: SmallGateway, own_client: Client, model: Model, tmp_path: Path) -> None:
    """Two processes on one store get one session in turn and at once: no failure, equal bytes for equal requests."""
    replica = SmallGateway(tmp_path / "replica", own_gateway.upstream, own_gateway.store)
    with replica, Client(replica, own_client.key) as other:
        chat = new_chat(own_client)
        for number in range(30):
            chat.add(*_tag(number, "trunk"))
            body = chat.body()
            with ThreadPoolExecutor(2) as pool:
                got = list(pool.map(lambda client, sent=body: client.post(sent, chat.headers), (own_client, other)))
            assert {answer.status for answer in got} == {200}
            assert {answer.compaction.state for answer in got} <= {"none", "applied"}
            first, second = model.bodies[-2:]
            assert first == second
            assert_of(first, chat.messages)
            chat.messages.append(got[0].message)
    assert BLOCK in text_of(model.last)


def test_replicas_write_one_summary(
    own_gateway: SmallGateway, own_client: Client, model: Model, tmp_path: Path
) -> None:
    """The same request at two processes at once, both waiting for a summary of one span: it is asked for once."""
    model.tell = says(SUMMARY, pause_seconds=0.5)
    replica = SmallGateway(tmp_path / "replica", own_gateway.upstream, own_gateway.store)
    with replica, Client(replica, own_client.key) as other:
        chat = new_chat(own_client, *talk(54), preset="told")
        with ThreadPoolExecutor(2) as pool:
            got = list(pool.map(lambda client: client.post(chat.body(), chat.headers), (own_client, other)))
    assert {answer.status for answer in got} == {200}
    first, second = model.bodies
    assert first == second
    assert len({received.body for received in model.summaries}) == len(model.summaries)


def test_a_busy_tenant_is_served(client: Client, model: Model) -> None:
    """Many requests of many branches at once, with summaries: none fails, none is bypassed."""
    model.tell = says(SUMMARY, pause_seconds=0.1)
    states: list[str] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        chat = new_chat(client, *talk(24 + 2 * (number % 5)), preset="told")
        for at in range(6):
            got = chat.ask(*_tag(at, f"branch{number}"))
            with lock:
                states.append(got.compaction.state)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    assert set(states) <= {"none", "applied"}
    for body in model.bodies:
        assert_valid(messages_of(body))


def test_the_system_text_changes(client: Client, model: Model) -> None:
    """A clock in it costs the provider's cache and nothing else: the session is the same, and so is its block."""
    chat = new_chat(client, system("it is 10:00"), user("the goal"))
    sessions, blocks = set(), []
    for number in range(40):
        chat.messages[0] = system(f"it is 10:{number:02}")
        got = chat.ask(*_tag(number, "trunk"))
        sessions.add(got.session)
        blocks.append(messages_of(model.last)[1])
        assert messages_of(model.last)[0] == chat.messages[0]
        assert_of(model.last, chat.messages[:-1])
    assert len(sessions) == 1
    assert len({json.dumps(block) for block in blocks}) <= 10
