"""Clients that do not send back what they got, byte for byte: what the session makes of it, seen from the upstream."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.answer import Answer, Message
from tests.e2e.chat import TOOLS, Chat, assert_grows, assert_valid, large, result, step, system, user
from tests.e2e.gateway import Client, Upstream
from tests.e2e.model import TOOL, call, raw_messages, raw_tools, reads, refs, says, tool_names
from tests.fakes.upstream import Received, Reply

pytestmark = pytest.mark.e2e

Messages = list[Message]


@pytest.fixture
def chat(client: Client, upstream: Upstream) -> Chat:
    """Give a chat of five steps, with moved texts, a hidden turn between two visible texts, and a mixed turn."""
    chat = Chat(client, system("be brief"), user("go"))
    chat.messages += step("alpha")
    upstream.queue(says("looking ", reads(), reasoning="what is there? "), says("seen", reasoning="fine"))
    chat.ask()
    upstream.queue(says("", reads("index", "r2"), call("search", '{"path": "a/é", "n": 1.0}', "c2")))
    chat.ask(user("now search"))
    upstream.queue(says("found", reasoning="good"))
    chat.ask(result(large("beta"), "c2"))
    return chat


def _hidden(messages: Messages) -> list[str]:
    """Return the ids of the reading calls and of their answers, in the order in which they stand."""
    ids = [made["id"] for m in messages for made in m.get("tool_calls") or [] if made["function"]["name"] == TOOL]
    return [*ids, *[m["tool_call_id"] for m in messages if m["role"] == "tool" and m["tool_call_id"] in ids]]


def _reserialise(messages: Messages) -> bytes:
    return json.dumps(messages, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def _escape(messages: Messages) -> bytes:
    return json.dumps(messages, indent=1).replace("/", "\\/").replace("seen", "s\\u0065en").encode()


def _reorder(messages: Messages) -> bytes:
    return json.dumps([dict(reversed(message.items())) for message in messages]).encode()


def _drop_reasoning(messages: Messages) -> bytes:
    return json.dumps([{k: v for k, v in m.items() if k != "reasoning_content"} for m in messages]).encode()


def _drop_nulls(messages: Messages) -> bytes:
    return json.dumps([{k: v for k, v in m.items() if v is not None} for m in messages]).encode()


def _add_nulls(messages: Messages) -> bytes:
    extra: Message = {"refusal": None, "audio": None, "annotations": [], "function_call": None}
    return json.dumps([{**extra, **m} if m["role"] == "assistant" else m for m in messages]).encode()


def _use_parts(messages: Messages) -> bytes:
    """Write user texts in parts, as some libraries do from the second request on."""
    out = copy.deepcopy(messages)
    for message in out:
        if message["role"] == "user":
            message["content"] = [{"type": "text", "text": message["content"]}]
    return json.dumps(out).encode()


def _empty_for_null(messages: Messages) -> bytes:
    return json.dumps([{**m, "content": m.get("content") or ""} for m in messages]).encode()


def _rewrite_arguments(messages: Messages) -> bytes:
    """Parse arguments and write them again, as JavaScript does: 1.0 becomes 1."""
    out = copy.deepcopy(messages)
    for message in out:
        for made in message.get("tool_calls") or []:
            arguments = json.loads(made["function"]["arguments"])
            plain = {k: int(v) if isinstance(v, float) else v for k, v in arguments.items()}
            made["function"]["arguments"] = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(out).encode()


def _new_ids(messages: Messages) -> bytes:
    """Give calls ids of the client's own."""
    text = json.dumps(messages)
    return text.replace('"c1"', '"call_1"').replace('"c2"', '"call_2"').encode()


def _strip(messages: Messages) -> bytes:
    """Strip assistant texts."""
    out = [{**m, "content": (m.get("content") or "").rstrip()} if m["role"] == "assistant" else m for m in messages]
    return json.dumps(out).encode()


_SPELLINGS: dict[str, Callable[[Messages], bytes]] = {
    "other spacing and order": _reserialise,
    "escapes": _escape,
    "other key order": _reorder,
    "without reasoning": _drop_reasoning,
    "without nulls": _drop_nulls,
    "with nulls": _add_nulls,
    "texts in parts": _use_parts,
    "empty for null": _empty_for_null,
    "arguments written again": _rewrite_arguments,
    "ids of its own": _new_ids,
    "stripped": _strip,
}


def _send(chat: Chat, messages: bytes, **changes: Any) -> Answer:
    fields = json.dumps({**chat.fields, **changes}).encode()
    got = chat.client.post(b'{"messages":' + messages + b"," + fields[1:], chat.headers)
    assert got.status == 200, got.data
    return got


def _texts(messages: Messages) -> list[str]:
    """Return what is said, whatever the container and the surrounding blanks."""
    out: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        out.append(text.strip())
    return out


@pytest.mark.parametrize("spell", _SPELLINGS.values(), ids=_SPELLINGS)
def test_another_spelling_is_the_same_session(
    chat: Chat, upstream: Upstream, spell: Callable[[Messages], bytes]
) -> None:
    """A history that was written anew gets the same session, refs and stubs, and its hidden turns back in place."""
    session = chat.ask(user("so?")).session
    before = json.loads(upstream.bodies[-1])["messages"]
    chat.add(user("and?"))
    got = _send(chat, spell(chat.messages))
    body = upstream.bodies[-1]
    after = json.loads(body)["messages"]
    assert got.session == session
    assert (got.compaction.edits, got.compaction.new) == (2, 0)
    assert _texts(after)[: len(before)] == _texts(before)
    assert _hidden(after) == _hidden(before) == ["r1", "r2", "r1", "r2"]
    assert_valid(after)


@pytest.mark.parametrize("spell", _SPELLINGS.values(), ids=_SPELLINGS)
def test_another_spelling_each_time_keeps_what_it_spells(
    chat: Chat, upstream: Upstream, spell: Callable[[Messages], bytes]
) -> None:
    """A client that always writes like this has a prefix that only grows, byte for byte."""
    bodies = []
    for text in ("one", "two"):
        chat.add(user(text))
        got = _send(chat, spell(chat.messages))
        chat.messages.append(got.message)
        bodies.append(upstream.bodies[-1])
    assert_grows(bodies)


def test_dropped_reasoning_is_put_back_in_hidden_rounds_alone(chat: Chat, upstream: Upstream) -> None:
    """What the client dropped of visible messages stays dropped; what it never saw is as the upstream said it."""
    chat.add(user("so?"))
    _send(chat, _drop_reasoning(chat.messages))
    sent = json.loads(upstream.bodies[-1])["messages"]
    assert [m["reasoning_content"] for m in sent if "reasoning_content" in m] == ["what is there? "]


@pytest.mark.parametrize("dropped", [1, 3, 4])
def test_a_trimmed_front_is_found_by_its_anchors(chat: Chat, upstream: Upstream, dropped: int) -> None:
    """Same session, same refs, hidden turns of what is left back in place, and nothing that was dropped."""
    first = chat.ask(user("so?"))
    before = raw_messages(upstream.bodies[-1])
    del chat.messages[1 : 1 + dropped]
    got = chat.ask(user("and?"))
    after = raw_messages(upstream.bodies[-1])
    assert got.session == first.session
    assert got.compaction.new == 0
    assert after[0] == before[0]
    assert set(refs(upstream.bodies[-1])) <= set(refs(b"".join(before)))
    kept = [raw for raw in after[1:] if raw in before]
    assert before[-len(kept) :] == kept, "what is left is the end of what was sent before"
    assert len(kept) == len(after) - 3
    assert_valid(json.loads(upstream.bodies[-1])["messages"])


def test_a_window_that_slides_stays_one_session(chat: Chat, upstream: Upstream) -> None:
    """A client that drops its oldest block with each call keeps session, refs and what the model read."""
    sessions = set()
    for number in range(4):
        chat.add(*step(f"gamma{number}", f"s{number}"))
        sessions.add(chat.ask(user(f"next {number}")).session)
        start = next(i for i in range(2, len(chat.messages)) if chat.messages[i]["role"] == "assistant")
        stop = next(i for i in range(start + 1, len(chat.messages)) if chat.messages[i]["role"] != "tool")
        del chat.messages[start:stop]
        assert_valid(json.loads(upstream.bodies[-1])["messages"])
    assert len(sessions) == 1


def test_a_clock_in_the_system_prompt_costs_nothing_of_ours(chat: Chat, upstream: Upstream) -> None:
    """The system prompt is outside the chain: same session, all other messages the same bytes."""
    first = chat.ask(user("so?"))
    before = raw_messages(upstream.bodies[-1])
    chat.messages[0] = system("be brief. It is 12:01")
    chat.messages.insert(1, {"role": "developer", "content": "one more"})
    got = chat.ask(user("and?"))
    after = raw_messages(upstream.bodies[-1])
    assert got.session == first.session
    assert after[2 : 1 + len(before)] == before[1:]
    assert json.loads(after[0])["content"] == "be brief. It is 12:01"


@pytest.mark.parametrize("key", [None, "mine"])
def test_a_clock_in_the_first_message_keeps_the_session(client: Client, upstream: Upstream, key: str | None) -> None:
    """With a changed opening the session is found by its newer blocks, and keeps refs, stubs and hidden turns."""
    chat = Chat(client, user("It is 12:00. go"))
    chat.headers = {"x-ullage-session": key} if key else {}
    upstream.queue(says("looking ", reads()), says("seen"))
    chat.ask(*step("alpha"))
    chat.ask(user("more"), *step("beta", "c2"))
    first = chat.ask(user("so?"))
    before = raw_messages(upstream.bodies[-1])
    for minute in (1, 2):
        chat.messages[0] = user(f"It is 12:0{minute}. go")
        got = chat.ask(user("and?"))
        after = raw_messages(upstream.bodies[-1])
        assert got.session == first.session
        assert after[1 : len(before)] == before[1:]
        assert got.compaction.new == 0


def test_tools_that_change_with_each_call_change_nothing_else(chat: Chat, upstream: Upstream) -> None:
    """The declared tool stays last and the same; messages keep their bytes, the session its id."""
    sessions, sent = set(), []
    for tools in (TOOLS[:1], TOOLS[::-1], [], TOOLS, None):
        chat.fields["tools"] = tools
        sessions.add(chat.ask(user("so?")).session)
        sent.append(upstream.bodies[-1])
        assert tool_names(sent[-1]) == [*[tool["function"]["name"] for tool in tools or []], TOOL]
    assert len(sessions) == 1
    assert len({raw_tools(body)[-1] for body in sent}) == 1
    assert_grows(sent)


def test_a_client_that_has_a_tool_of_that_name_keeps_it(client: Client, upstream: Upstream) -> None:
    """The client's own tool is never answered here; ours gets another name, from the first stub on the same."""
    own = copy.deepcopy(TOOLS[0])
    own["function"]["name"] = TOOL
    chat = Chat(client, user("go"), *step("alpha"), tools=[own])
    upstream.queue(says("", call(TOOL, '{"path": "x"}', "c2")))
    got = chat.ask()
    assert got.message["tool_calls"][0]["function"] == {"name": TOOL, "arguments": '{"path": "x"}'}
    chat.ask(result("small", "c2"))
    assert [tool_names(body) for body in upstream.bodies] == [[TOOL, f"{TOOL}_2"]] * 2


def test_an_edited_early_message_keeps_what_was_decided_later(chat: Chat, upstream: Upstream) -> None:
    """Rewriting an old user message changes that message: refs, stubs and hidden turns behind it stay."""
    chat.ask(user("so?"))
    before = raw_messages(upstream.bodies[-1])
    at = next(i for i, m in enumerate(chat.messages) if m.get("content") == "now search")
    chat.messages[at] = user("now search, please")
    chat.ask(user("and?"))
    after = raw_messages(upstream.bodies[-1])
    assert _hidden(json.loads(upstream.bodies[-1])["messages"]) == ["r1", "r2", "r1", "r2"]
    changed = [new for old, new in zip(before, after, strict=False) if old != new]
    assert [json.loads(raw)["content"] for raw in changed] == ["now search, please"]


def test_an_edited_last_message_keeps_what_was_read_before_it(client: Client, upstream: Upstream) -> None:
    """A user who takes back a question and asks another one: the hidden turn of the answer before it stays in place."""
    chat = Chat(client, user("go"), *step("alpha"))
    upstream.queue(says("looking ", reads()), says("seen"))
    chat.ask()
    chat.ask(user("and?"))
    before = raw_messages(upstream.bodies[-1])
    chat.messages[-2:] = [user("what else?")]
    chat.ask()
    after = raw_messages(upstream.bodies[-1])
    assert _hidden(json.loads(upstream.bodies[-1])["messages"]) == ["r1", "r1"]
    assert after[:-1] == before[:-1]


def test_an_answer_made_anew_is_a_branch(chat: Chat, upstream: Upstream) -> None:
    """Asked again the body is the same; the other answer does not inherit what was read for the first one."""
    chat.add(user("once more"))
    upstream.queue(says("I read: ", reads("index", "r8")), says("this"))
    chat.client.post(chat.body())
    asked = upstream.bodies[-2]
    upstream.queue(says("I read: this"), says("that"))
    same = chat.client.post(chat.body())
    assert upstream.bodies[-1] == asked
    assert same.message["content"] == "I read: this"
    other = chat.ask()
    assert other.message["content"] == "that"
    chat.ask(user("so?"))
    sent = json.loads(upstream.bodies[-1])["messages"]
    assert _hidden(sent) == ["r1", "r2", "r1", "r2"]
    assert raw_messages(upstream.bodies[-1])[:-2] == raw_messages(asked)


def test_both_answers_of_a_branch_go_on(chat: Chat, upstream: Upstream) -> None:
    """Two continuations of one history keep the common part to the byte, and each its own reads."""
    left, right = copy.copy(chat), copy.copy(chat)
    left.messages, right.messages = list(chat.messages), list(chat.messages)
    upstream.queue(says("", reads("index", "left")), says("left it is"))
    left.ask(user("left?"))
    upstream.queue(says("", reads("index", "right")), says("right it is"))
    right.ask(user("right?"))
    for _ in range(2):
        left.ask(user("more"), *step("lambda", "l1"))
        left_body = upstream.bodies[-1]
        right.ask(user("more"), *step("rho", "q1"))
        right_body = upstream.bodies[-1]
        assert _hidden(json.loads(left_body)["messages"])[:3] == ["r1", "r2", "left"]
        assert _hidden(json.loads(right_body)["messages"])[:3] == ["r1", "r2", "right"]
    common = len(chat.messages) + 3  # two messages of the hidden round, one of the mixed
    assert raw_messages(left_body)[:common] == raw_messages(right_body)[:common]
    assert not set(refs(left_body)[2:]) & set(refs(right_body)[2:])


def test_one_request_twice_at_once(client: Client, upstream: Upstream) -> None:
    """Two copies at the same moment, new text in them, are one session and the same bytes, several times over."""
    chat = Chat(client, user("go"))
    for number in range(4):
        chat.add(user(f"turn {number}"), *step(f"alpha{number}"))
        answers: list[Answer] = []

        def post(body: bytes = chat.body(), into: list[Answer] = answers) -> None:
            into.append(client.post(body))

        threads = [threading.Thread(target=post) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({answer.session for answer in answers}) == 1
        assert {answer.compaction.state for answer in answers} == {"applied"}
        assert len(set(upstream.bodies[-3:])) == 1
        chat.messages.append(answers[0].message)
    assert len(refs(upstream.bodies[-1])) == 4


def test_two_reads_at_once_are_both_kept_apart(client: Client, upstream: Upstream) -> None:
    """Two copies at once whose models read differently: the client's copy of the answer decides what is put back."""

    def reply(received: Received) -> Reply:
        last = received.json["messages"][-1]
        if last.get("tool_call_id", "").startswith("w"):
            return says(f"I am {last['tool_call_id']}")(received)
        number = sum(body == received.body for body in upstream.bodies)
        return says("", reads("index", f"w{number}"))(received)

    upstream.otherwise = reply
    chat = Chat(client, user("go"), *step("alpha"))
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(client.post(chat.body()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.message["content"] for answer in answers} == {"I am w1", "I am w2"}
    for answer in answers:
        upstream.forget()
        client.post(chat.body(messages=[*chat.messages, answer.message, user("so?")]))
        mine = answer.message["content"].removeprefix("I am ")
        assert _hidden(json.loads(upstream.bodies[0])["messages"]) == [mine, mine]


def test_two_chats_with_one_opening_stay_apart(client: Client, upstream: Upstream) -> None:
    """Interleaved, they share nothing but equal decisions: no hidden turn, no ref, no id of the other."""
    one, two = Chat(client, user("hello")), Chat(client, user("hello"))
    upstream.queue(says("hi"), says("hi"))
    one.ask()
    two.ask()
    upstream.queue(says("", reads("index", "one")), says("first"))
    one.ask(user("mine is alpha"), *step("alpha"))
    upstream.queue(says("", reads("index", "two")), says("second"))
    two.ask(user("mine is beta"), *step("beta"))
    mine: dict[int, list[bytes]] = {0: [], 1: []}
    sessions: dict[int, set[str | None]] = {0: set(), 1: set()}
    for number in range(3):
        for which, chat in enumerate((one, two)):
            sessions[which].add(chat.ask(user(f"more {number}"), *step(f"gamma{which}{number}", "g")).session)
            mine[which].append(upstream.bodies[-1])
    assert len(sessions[0]) == len(sessions[1]) == 1
    assert sessions[0] != sessions[1]
    for which, ident in enumerate(("one", "two")):
        assert _hidden(json.loads(mine[which][-1])["messages"]) == [ident, ident]
        assert_grows(mine[which])
    assert not set(refs(mine[0][-1])) & set(refs(mine[1][-1]))


def test_two_keys_share_nothing(client: Client, upstream: Upstream) -> None:
    """The same history under two keys is two sessions; one key is one session wherever it is given."""
    chat = Chat(client, user("go"), *step("alpha"))
    ways: list[tuple[dict[str, str], dict[str, Any]]] = [
        ({"x-ullage-session": "k1"}, {}),
        ({"x-session-id": "k1"}, {}),
        ({}, {"metadata": {"session_id": "k1"}}),
        ({"x-ullage-session": "k2"}, {}),
        ({}, {}),
    ]
    got = [client.post(chat.body(**fields), headers) for headers, fields in ways]
    assert len({answer.session for answer in got[:3]}) == 1
    assert len({answer.session for answer in got}) == 3
    assert len({tuple(refs(body)) for body in upstream.bodies[:3]}) == 1
    assert len({tuple(refs(body)) for body in upstream.bodies}) == 3
