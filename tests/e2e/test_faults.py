"""What breaks: the upstream, the client, the gateway's process, its store, the request itself."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.answer import Answer, Message
from tests.e2e.chat import TOOLS, Chat, assert_grows, assert_hidden, assert_valid, assistant, large, result, step, user
from tests.e2e.gateway import IMPATIENT, KEEPALIVE_SECONDS, Client, Gateway, Upstream
from tests.e2e.model import TOOL, call, frames, raw_messages, reads, refs, says, without_tool
from tests.fakes.upstream import (
    CLOSE,
    CUT,
    HANG,
    Pause,
    Received,
    Reply,
    answer,
    body,
    chunks,
    completion,
    cut,
    pieces,
    raw,
    silence,
)

pytestmark = pytest.mark.e2e

_JSON = {"Content-Type": "application/json"}
_LONG = 20.0  # far longer than anything takes, far shorter than the gateway waits for an upstream
_FRAMES = frames(*chunks("one two three", None))


# -- the upstream

_NO_ANSWERS: dict[str, tuple[Reply, int]] = {
    "no HTTP": (raw(b"220 smtp.example ESMTP\r\n"), 502),
    "half a head": (raw(b"HTTP/1.1 200 OK\r\nContent-Ty", CUT), 502),
    "a status of its own": (raw(b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n"), 502),
    "reset": (cut(), 502),
    "closed": (raw(CLOSE), 502),
    "silent": (silence(), 504),
}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("reply", "status"), _NO_ANSWERS.values(), ids=_NO_ANSWERS)
def test_an_upstream_without_an_answer(
    client: Client, upstream: Upstream, reply: Reply, status: int, is_stream: bool
) -> None:
    """Whatever it sends in the place of one, the client gets an error in OpenAI's shape, and the next request works."""
    upstream.otherwise = lambda _: reply  # a connection that was kept is tried once more
    chat = Chat(client, user("go"), *step("alpha"), stream=is_stream, model=IMPATIENT)
    got = client.post(chat.body())
    assert got.status == status
    assert got.json["error"]["type"] == "ullage_error"
    assert got.json["error"]["code"].startswith("upstream_")
    upstream.forget()
    assert chat.ask().message["content"].strip() == "hello there"


_ODD_ANSWERS: dict[str, Reply] = {
    "garbage": body(b"\x00\xff not json", headers=_JSON),
    "nothing": body(b"", headers=_JSON),
    "a list": body(b'[{"error":{"message":"no","code":400}}]', 400, _JSON),
    "an error with 200": body(b'{"error": {"message" : "no"}}', headers=_JSON),
    "no choices": body(b'{"choices":[], "x":1.0}', headers=_JSON),
    "null": body(b"null", headers=_JSON),
    "HTML": body(b"<html>503</html>", 503, {"Content-Type": "text/html"}),
    "a teapot": body(b'{"error":null}', 418, _JSON),
}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("reply", _ODD_ANSWERS.values(), ids=_ODD_ANSWERS)
def test_an_odd_answer_is_the_clients(client: Client, upstream: Upstream, reply: Reply, is_stream: bool) -> None:
    """A complete answer that makes no sense is relayed byte for byte with its status and type."""
    upstream.queue(reply)
    got = client.post(Chat(client, user("go"), *step("alpha"), stream=is_stream).body())
    assert (got.status, got.data) == (reply.status, reply.steps[0])
    assert got.headers["content-type"] == dict(reply.headers)["Content-Type"]


def test_junk_in_a_stream_leaves_as_it_came(client: Client, upstream: Upstream) -> None:
    """Comments, blanks, odd line ends, unknown events: without a read nothing is touched."""
    steps = (
        b": OPENROUTER PROCESSING\n\n\n\n",
        b"event: ping\r\ndata: {}\r\n\r\n",
        b"data:not json\n\n",
        b'data: {"choices":[]}\n\nid: 7\n\n',
        *_FRAMES,
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
        b"data: [DONE]\n\n: bye\n\n",
    )
    upstream.queue(pieces(*steps))
    got = client.post(Chat(client, user("go"), stream=True).body())
    assert got.data == b"".join(steps)


def test_bytes_of_a_stream_come_one_by_one(client: Client, upstream: Upstream) -> None:
    """Events that arrive a byte at a time are the same events; the read among them is answered."""
    streamed = says("looking ", reads("index"), reasoning="hm")

    def dribble(received: Received) -> Reply:
        data = b"".join(step for step in streamed(received).steps if isinstance(step, bytes))
        return pieces(*[data[at : at + 1] for at in range(len(data))])

    upstream.queue(dribble, says("done"))
    got = client.post(Chat(client, user("go"), stream=True).body())
    assert (got.message["content"], got.finish, got.is_done) == ("looking done", "stop", True)
    assert_hidden(got)


@pytest.mark.parametrize("is_spliced", [False, True], ids=["plain", "spliced"])
def test_a_silent_stream_is_kept_alive_between_events(client: Client, upstream: Upstream, is_spliced: bool) -> None:
    """While an upstream is silent in the middle of an event the client gets comments, and the event stays whole."""
    first, *rest = frames(*chunks("one two"))
    upstream.queue(*([says("", reads("index"))] if is_spliced else []))
    upstream.queue(pieces(first[:40], Pause(1.5 * KEEPALIVE_SECONDS), first[40:], *rest, b"data: [DONE]\n\n"))
    got = client.post(Chat(client, user("go"), stream=True).body())
    assert b": keep-alive\n\n" in got.data
    assert (got.message["content"], got.finish, got.is_done) == ("one two ", "stop", True)
    if not is_spliced:
        assert got.data.replace(b": keep-alive\n\n", b"") == b"".join([first, *rest, b"data: [DONE]\n\n"])


@pytest.mark.parametrize(
    "steps", [(*_FRAMES, CUT), (*_FRAMES, CLOSE), (*_FRAMES, HANG)], ids=["reset", "closed", "silent"]
)
def test_a_stream_that_stops(client: Client, upstream: Upstream, steps: tuple[bytes, ...]) -> None:
    """What came is kept, an error event ends it, and no finish is made up."""
    upstream.queue(pieces(*steps))
    got = client.post(Chat(client, user("go"), *step("alpha"), stream=True, model=IMPATIENT).body())
    assert got.message["content"] == "one two three "
    assert got.is_whole
    assert got.error is not None
    assert (got.error["type"], got.finish, got.is_done) == ("ullage_error", None, False)


@pytest.mark.parametrize("end", [CUT, CLOSE, HANG], ids=["reset", "closed", "silent"])
def test_a_body_that_stops(client: Client, upstream: Upstream, end: object) -> None:
    """Half a JSON answer is never taken for one: an error, or a connection that visibly breaks."""
    half = json.dumps(completion("hello there")).encode()[:-20]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    upstream.queue(raw(head + half, end))  # type: ignore[arg-type]  # one of three members
    got = client.post(Chat(client, user("go"), *step("alpha"), model=IMPATIENT).body())
    assert got.status in (502, 504) or not got.is_whole
    if got.is_whole:
        assert got.json["error"]["type"] == "ullage_error"


_HIDDEN_FAULTS: dict[str, Reply] = {
    "reset": cut(),
    "closed": raw(CLOSE),
    "silent": silence(),
    "no HTTP": raw(b"\x16\x03\x01\x02\x00"),
    "refused": answer({"error": {"message": "too long", "type": "t", "param": None, "code": "c"}}, status=400),
    "overloaded": answer({"error": {"message": "busy", "type": "t", "param": None, "code": "c"}}, status=503),
    "garbage": body(b"{{{", headers=_JSON),
    "cut stream": pieces(*_FRAMES, CUT),
}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", _HIDDEN_FAULTS.values(), ids=_HIDDEN_FAULTS)
def test_a_fault_in_a_hidden_round(client: Client, upstream: Upstream, fault: Reply, is_stream: bool) -> None:
    """The client gets an error, never a made-up ending or a call of ours; the session goes on as if not asked."""
    upstream.queue(says("looking ", reads()))
    upstream.otherwise = lambda _: fault
    chat = Chat(client, user("go"), *step("alpha"), stream=is_stream, model=IMPATIENT)
    got = client.post(chat.body())
    assert_hidden(got)
    assert got.error is not None
    assert got.error["message"]
    if is_stream:
        assert (got.status, got.is_done, got.finish) == (200, False, None)
        assert (got.message["content"] or "").startswith("looking ")
    else:
        assert got.status >= 400
    upstream.forget()
    assert chat.ask().error is None
    assert len(upstream.bodies) == 1
    assert len(raw_messages(upstream.bodies[0])) == 3


# -- the client


@contextmanager
def _reset_at_end(line: socket.socket) -> Iterator[socket.socket]:
    """Reset a connection at the end, as a process that dies does."""
    try:
        yield line
    finally:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()


def _wait_for(line: socket.socket, data: bytes) -> None:
    got = b""
    while data not in got:
        piece = line.recv(65536)
        assert piece, got
        got += piece


def test_a_client_that_leaves_in_its_request(client: Client, upstream: Upstream) -> None:
    """Half a body reaches no upstream."""
    chat = Chat(client, user("go"))
    whole = chat.body()
    with _reset_at_end(client.dial(whole[:40], length=len(whole))):
        pass
    chat.ask()
    assert len(upstream.received) == 1


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves_while_it_waits(client: Client, upstream: Upstream, is_stream: bool) -> None:
    """An upstream that has not answered yet is left at once."""
    upstream.queue(silence())
    with _reset_at_end(client.dial(Chat(client, user("go"), *step("alpha"), stream=is_stream).body())):
        (received,) = upstream.wait()
    assert received.wait_gone(_LONG), "the upstream still works for nobody"


def test_a_client_that_leaves_a_stream(client: Client, upstream: Upstream) -> None:
    """In the middle of a stream, between events: the upstream is left at once."""
    upstream.queue(pieces(*_FRAMES, HANG))
    with _reset_at_end(client.dial(Chat(client, user("go"), *step("alpha"), stream=True).body())) as line:
        (received,) = upstream.wait()
        _wait_for(line, b"three")
    assert received.wait_gone(_LONG)


def test_a_client_that_leaves_a_whole_answer(client: Client, upstream: Upstream) -> None:
    """In the middle of a body that is still coming: the upstream is left at once."""
    upstream.queue(pieces(b'{"choices":', HANG, headers=_JSON))
    with _reset_at_end(client.dial(Chat(client, user("go"), *step("alpha")).body())):
        (received,) = upstream.wait()
        time.sleep(0.1)
    assert received.wait_gone(_LONG)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves_before_a_hidden_round_answers(
    client: Client, upstream: Upstream, is_stream: bool
) -> None:
    """The round that it cannot see is left as well, and nothing is written down about it."""
    upstream.queue(says("looking ", reads()), silence())
    chat = Chat(client, user("go"), *step("alpha"), stream=is_stream)
    with _reset_at_end(client.dial(chat.body())):
        hidden = upstream.wait(2)[1]
    assert hidden.wait_gone(_LONG)
    upstream.forget()
    chat.ask(assistant("looking"), user("well?"))
    assert TOOL not in json.dumps([json.loads(raw) for raw in raw_messages(upstream.bodies[0])][3:])


def test_a_client_that_leaves_a_hidden_round(client: Client, upstream: Upstream) -> None:
    """In the middle of the second round's stream: that round is left at once."""
    upstream.queue(says("looking ", reads()), pieces(*_FRAMES, HANG))
    with _reset_at_end(client.dial(Chat(client, user("go"), *step("alpha"), stream=True).body())) as line:
        hidden = upstream.wait(2)[1]
        _wait_for(line, b"three")
    assert hidden.wait_gone(_LONG)


def test_a_client_that_stops_reading_does_not_stop_others(client: Client, upstream: Upstream) -> None:
    """A stream that nobody takes off the socket blocks nobody else, and ends when its client goes."""
    frame = b": " + b"x" * 65_000 + b"\n\n"
    upstream.queue(pieces(*[frame] * 400, *_FRAMES, HANG))
    with _reset_at_end(client.dial(Chat(client, user("go"), stream=True).body())):
        (received,) = upstream.wait()
        Chat(client, user("another")).ask()
    assert received.wait_gone(_LONG)


# -- the process


def test_killed_between_requests(own_gateway: Gateway, own_client: Client) -> None:
    """After kill -9 the next process has originals, hidden turns, session and prefix as they were."""
    upstream = own_gateway.upstream
    chat = Chat(own_client, user("go"), *step("alpha"))
    upstream.queue(says("looking ", reads()), says("seen"))
    first = chat.ask()
    own_gateway.kill()
    own_gateway.start()
    second = chat.ask(user("more"), *step("beta", "c2"))
    own_gateway.kill()
    own_gateway.start()
    third = chat.ask(user("so?"))
    assert first.session == second.session == third.session
    assert_grows(upstream.bodies)
    alpha, beta = refs(upstream.bodies[-1])
    assert own_client.original(alpha) == large("alpha").encode()
    assert own_client.original(beta) == large("beta").encode()
    upstream.queue(says("", reads(alpha, offset=30)), says("read"))
    chat.ask(user("read alpha"))
    assert "alpha 0030" in json.loads(upstream.bodies[-1])["messages"][-1]["content"]


@pytest.mark.parametrize("is_hidden", [False, True], ids=["first round", "hidden round"])
def test_killed_while_a_stream_runs(own_gateway: Gateway, own_client: Client, is_hidden: bool) -> None:
    """The client sees a broken connection, asks the next process again, and gets its answer on the same prefix."""
    upstream = own_gateway.upstream
    chat = Chat(own_client, user("go"), *step("alpha"), stream=True)
    if is_hidden:
        upstream.queue(says("looking ", reads()))
    upstream.queue(pieces(*_FRAMES, HANG))
    with own_client.open(chat.body()) as response:
        arriving = response.iter_raw()
        assert next(arriving)
        upstream.wait(1 + is_hidden)
        own_gateway.kill()
        with pytest.raises(httpx.TransportError):
            list(arriving)
    own_gateway.start()
    upstream.queue(says("looking ", reads()), says("seen"))
    got = chat.ask()
    assert got.compaction.state == "applied"
    assert got.message["content"] == "looking seen"
    assert upstream.bodies[1 + is_hidden] == upstream.bodies[0]
    chat.ask(user("so?"))
    assert_grows(upstream.bodies[-2:])


def test_killed_before_the_upstream_answers_many_times(own_gateway: Gateway, own_client: Client) -> None:
    """Whenever the process dies, what was decided once stays: one ref for the text, one body for the history."""
    upstream = own_gateway.upstream
    chat = Chat(own_client, user("go"), *step("alpha"))
    for count in range(1, 4):
        upstream.queue(silence())
        with own_client.dial(chat.body()):
            upstream.wait(count)
            own_gateway.kill()
        own_gateway.start()
    assert len(set(upstream.bodies)) == 1
    (ref,) = refs(upstream.bodies[0])
    assert own_client.original(ref) == large("alpha").encode()


# -- the store


@contextmanager
def _locked(gateway: Gateway) -> Iterator[None]:
    other = sqlite3.connect(gateway.store, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.close()


@contextmanager
def _replaced_by_a_folder(gateway: Gateway) -> Iterator[None]:
    with gateway.without_store():
        yield


@contextmanager
def _overwritten(gateway: Gateway) -> Iterator[None]:
    """Put a file that is no database in the place of the store's."""
    with gateway.without_store():
        gateway.store.rmdir()
        gateway.store.write_bytes(b"this is no database, " * 500)
        yield
        gateway.store.unlink()
        for suffix in ("-wal", "-shm"):
            gateway.store.with_name(gateway.store.name + suffix).unlink(missing_ok=True)
        gateway.store.mkdir()


_STORE_FAULTS: dict[str, Callable[[Gateway], object]] = {
    "a folder": _replaced_by_a_folder,
    "no database": _overwritten,
    "locked": _locked,
}


@pytest.mark.parametrize("fault", _STORE_FAULTS.values(), ids=_STORE_FAULTS)
def test_a_store_that_fails_while_it_runs(
    own_gateway: Gateway, own_client: Client, fault: Callable[[Gateway], object]
) -> None:
    """New text goes upstream as it is, with the reason; once the store is back all goes on, without a restart."""
    upstream = own_gateway.upstream
    chat = Chat(own_client, user("go"), *step("alpha"))
    upstream.queue(says("looking ", reads()), says("seen"))
    chat.ask()
    before = upstream.bodies[-1]
    chat.add(user("more"), *step("beta", "c2"))
    with fault(own_gateway):  # type: ignore[attr-defined]  # each is a context
        for _ in range(2):
            got = own_client.post(chat.body())
            assert (got.compaction.state, got.compaction.reason) == ("bypassed", "store_unavailable")
            assert upstream.bodies[-1] == chat.body()
            assert got.message["content"] == "hello there"
    got = _ask_until_applied(chat)
    assert_grows([before, upstream.bodies[-1]])
    assert got.compaction.edits == 2
    assert own_client.original(refs(upstream.bodies[-1])[-1]) == large("beta").encode()


def _ask_until_applied(chat: Chat) -> Answer:
    end = time.monotonic() + 15
    while True:
        got = chat.client.post(chat.body())
        if got.compaction.state == "applied":
            return got
        assert time.monotonic() < end, "the store is back and not used"
        time.sleep(0.1)


def test_a_store_that_fails_in_a_hidden_round(own_gateway: Gateway, own_client: Client) -> None:
    """The read is answered all the same, from the request itself; only the memory of it is lost."""
    upstream = own_gateway.upstream
    chat = Chat(own_client, user("go"), *step("alpha"))
    with ExitStack() as stack:

        def break_and_read(received: Received) -> Reply:
            stack.enter_context(own_gateway.without_store())
            return says("", reads(offset=30))(received)

        upstream.queue(break_and_read, says("seen"))
        got = own_client.post(chat.body())
    assert got.message["content"] == "seen"
    sent = json.loads(upstream.bodies[1])["messages"]
    assert_valid(sent)
    assert "alpha 0030" in sent[-1]["content"]


def test_a_store_that_was_deleted_is_made_anew(own_gateway: Gateway, own_client: Client) -> None:
    """Originals that the client still sends are put again, under the same refs, and can be read."""
    upstream = own_gateway.upstream
    chat = Chat(own_client, user("go"), *step("alpha"))
    chat.ask()
    (ref,) = refs(upstream.bodies[-1])
    for name in own_gateway.store.parent.glob("ullage.db*"):
        name.unlink()
    _ask_until_applied(chat)
    assert refs(upstream.bodies[-1]) == [ref]
    assert own_client.original(ref) == large("alpha").encode()


# -- many at once


def test_fifty_streams_at_once(gateway: Gateway, upstream: Upstream) -> None:
    """Each gets its own text, in order and complete, half of them over a hidden round."""

    def reply(received: Received) -> Reply:
        messages = received.json["messages"]
        number = messages[0]["content"]
        if int(number) % 2 and messages[-1]["role"] != "tool":
            return says(f"{number} looks ", reads("index"), pause_seconds=0.05)(received)
        return says(f"{number} says " + "word " * 20, pause_seconds=0.05)(received)

    async def ask(http: httpx.AsyncClient, number: int) -> Answer:
        sent = {"model": "m", "stream": True, "tools": TOOLS, "messages": [user(str(number))]}
        response = await http.post(f"{gateway.base_url}/chat/completions", json=sent)
        return Answer.of(response)

    async def ask_all() -> list[Answer]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=30, trust_env=False) as http:
            return await asyncio.gather(*[ask(http, number) for number in range(50)])

    upstream.otherwise = reply
    for number, got in enumerate(asyncio.run(ask_all())):
        looked = f"{number} looks " if number % 2 else ""
        assert got.message["content"] == f"{looked}{number} says " + "word " * 20
        assert (got.finish, got.is_done) == ("stop", True)
        assert_hidden(got)
    assert len(set(upstream.bodies)) == 75


# -- the request


def _with(*messages: object) -> bytes:
    return json.dumps({"model": "m", "tools": TOOLS, "messages": messages}).encode()


_ODD_REQUESTS: dict[str, bytes] = {
    "an unknown role": _with({"role": "critic", "content": "hm"}, user("go")),
    "no role": _with({"content": "x"}),
    "messages that are none": _with(1, None, "x", [], {}),
    "content of another type": _with({"role": "user", "content": 7}, {"role": "user", "content": {"a": 1}}),
    "parts of other types": _with({"role": "user", "content": [None, 1, {"type": 1}, {"type": "text", "text": 5}]}),
    "an answer nobody asked for": _with(user("go"), result("x", "never")),
    "an unanswered call": _with(user("go"), assistant(None, call("search")), user("so?")),
    "an answer twice": _with(user("go"), assistant(None, call("search")), result("x"), result("y")),
    "calls of another type": _with({"role": "assistant", "tool_calls": [None, 1, {"function": 2}]}, user("x")),
    "arguments that are no JSON": _with(user("go"), assistant(None, call("search", "{{{")), result("x")),
    "tools of another type": b'{"model":"m","tools":{"a":1},"messages":[{"role":"user","content":"x"}]}',
    "a tool of another type": b'{"model":"m","tools":[1,null,{"type":"x"}],"messages":[{"role":"user","content":"x"}]}',
    "a stream of another type": b'{"model":"m","stream":"yes","messages":[{"role":"user","content":"x"}]}',
    "a model of another type": b'{"model":[1],"messages":[{"role":"user","content":"x"}]}',
    "lone surrogates": b'{"model":"m","messages":[{"role":"user","content":"a\\ud800b \\udfff"}],"user":"\\ud800"}',
    "NUL and controls": b'{"model":"m","messages":[{"role":"user","content":"a\\u0000b\\u001f"}]}',
    "endless numbers": b'{"model":"m","messages":[{"role":"user","content":"x"}],"seed":1e999,"n":NaN}',
    "nested metadata": b'{"model":"m","messages":[{"role":"user","content":"x"}],"metadata":'
    + b'{"a":' * 900
    + b"1"
    + b"}" * 900
    + b"}",
    "deep parts": b'{"model":"m","messages":[{"role":"user","content":' + b"[" * 20_000 + b"]" * 20_000 + b"}]}",
    "deep arguments": _with(assistant(None, call("search", '{"a":' * 20_000 + "1" + "}" * 20_000)), result("x")),
    "a byte order mark": b'\xef\xbb\xbf{"model":"m","messages":[{"role":"user","content":"x"}]}',
    "something behind it": b'{"model":"m","messages":[{"role":"user","content":"x"}]} true',
    "no messages at all": b'{"model":"m","messages":[]}',
}


@pytest.mark.parametrize("sent", _ODD_REQUESTS.values(), ids=_ODD_REQUESTS)
def test_an_odd_request_is_the_upstreams_to_judge(client: Client, upstream: Upstream, sent: bytes) -> None:
    """It leaves as it came, or with our tool behind the client's; the answer is the upstream's."""
    refusal = b'{"error":{"message":"Invalid value: messages[0]","type":"invalid_request_error","code":null}}'
    upstream.queue(body(refusal, 422, _JSON))
    got = client.post(sent)
    (body_sent,) = upstream.bodies
    assert (got.status, got.data) == (422, refusal)
    assert body_sent == sent or without_tool(body_sent) == sent


_ODD_LARGE: dict[str, str] = {
    "lone surrogates": large("alpha") + "\ud800 \udfff",
    "controls": large("alpha") + "\x00\x1b[31m\x7f\u2028\u2029",
    "one line": "word " * 4_000,
    "no blanks": "\u00e9" * 20_000,
    "line ends": "\r\n".join(large("alpha").splitlines()) + "\r\r\n\n",
    "other scripts": "\u4f60\u597d\U0001f600\u0301 \u202e" * 900,
}


@pytest.mark.parametrize("text", _ODD_LARGE.values(), ids=_ODD_LARGE)
def test_an_odd_text_is_kept_to_the_byte(client: Client, upstream: Upstream, text: str) -> None:
    """Whatever it is made of, it is moved out, and comes back from the store and from the tool."""
    chat = Chat(client, user("go"), assistant(None, call("read_file")), result(text))
    upstream.queue(says("", reads()), says("seen"))
    got = chat.ask()
    assert got.compaction.edits == 1
    (ref,) = refs(upstream.bodies[0])
    assert client.original(ref) == text.encode("utf-8", "surrogatepass")
    told = json.loads(upstream.bodies[1])["messages"][-1]["content"]
    assert text.startswith(told.split("\n")[1])
    assert_valid(json.loads(upstream.bodies[1])["messages"])


def test_broken_pairs_around_a_large_result(client: Client, upstream: Upstream) -> None:
    """Where answers have no calls and calls no answers, moving a text out keeps everything else as it is."""
    messages: list[Message] = [
        user("go"),
        result(large("alpha"), "never"),
        assistant(None, call("search", ident="a"), call("search", ident="a")),
        result(large("beta"), "a"),
        user("so?"),
        result("late", "a"),
    ]
    chat = Chat(client, *messages)
    got = client.post(chat.body())
    sent = json.loads(upstream.bodies[0])["messages"]
    assert got.compaction.edits == 2
    assert [{k: v for k, v in m.items() if k != "content"} for m in sent] == [
        {k: v for k, v in m.items() if k != "content"} for m in messages
    ]


_WRONG_READS: dict[str, str] = {
    "a foreign ref": '{"ref": "off_aaaaaaaaaaaaaaaaaaaaaaaaaa"}',
    "no ref": "{}",
    "no JSON": '{"ref": ',
    "no object": "[1]",
    "nothing": "",
    "a path": '{"ref": "../../etc/passwd"}',
    "a wrong pattern": '{"ref": "$REF", "pattern": "("}',
    "far beyond the end": '{"ref": "$REF", "offset": 999999999999}',
    "nonsense": '{"ref": "$REF", "offset": "x", "limit": -5, "other": [1]}',
    "surrogates": '{"ref": "\\ud800"}',
    "deep": '{"ref": ' + "[" * 3000 + "]" * 3000 + "}",
}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("arguments", _WRONG_READS.values(), ids=_WRONG_READS)
def test_a_wrong_read_is_an_answer_to_the_model(
    client: Client, upstream: Upstream, arguments: str, is_stream: bool
) -> None:
    """The model is told what was wrong and may go on; the client sees nothing of it."""
    upstream.queue(says("", ("r1", TOOL, arguments)), says("sorry"))
    got = Chat(client, user("go"), *step("alpha"), stream=is_stream).ask()
    assert got.message["content"] == "sorry"
    sent = json.loads(upstream.bodies[1])["messages"]
    assert_valid(sent)
    assert sent[-1]["content"]
    json.loads(sent[-2]["tool_calls"][0]["function"]["arguments"])
    assert_hidden(got)


def test_a_body_over_the_limit_is_refused(client: Client, upstream: Upstream) -> None:
    """413 in OpenAI's shape before anything is read or sent on."""
    with client.dial(b"{", length=67_108_865) as line:
        head = line.recv(65_536)
    assert head.startswith(b"HTTP/1.1 413 ")
    assert not upstream.received


def test_nothing_is_left_open(gateway: Gateway, client: Client, upstream: Upstream) -> None:
    """After clients that left and upstreams that broke no connection stays behind."""
    chat = Chat(client, user("go"), stream=True)
    chat.ask()
    before = _open_files(gateway)
    for _ in range(20):
        upstream.forget()
        upstream.queue(pieces(*_FRAMES, HANG), pieces(*_FRAMES, CUT))
        with _reset_at_end(client.dial(chat.body())):
            upstream.wait()
        assert client.post(chat.body()).error is not None
    end = time.monotonic() + _LONG
    while _open_files(gateway) > before + 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert _open_files(gateway) <= before + 2


def _open_files(gateway: Gateway) -> int:
    return len(list(Path(f"/proc/{gateway.pid}/fd").iterdir()))
