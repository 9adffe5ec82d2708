"""Stubs that a model copies into a call: the client's tool gets the text, the model is told, or the turn ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.chat import Chat, assert_grows, assert_hidden, assert_valid, assistant, large, result, step, user
from tests.e2e.gateway import TINY, Client, Upstream
from tests.e2e.model import TOOL, Round, call, refs, says, tool_names
from tests.fakes.upstream import Received, Reply, Scripted, events

pytestmark = pytest.mark.e2e
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
Edit = Callable[[str], str]


def stub_in(received: Received) -> str:
    """Return the stub in a request."""
    contents = [message["content"] for message in received.json["messages"] if message.get("content")]
    return next(str(text) for text in contents if text.startswith("[offloaded "))


def arguments_with(text: str) -> str:
    """Return arguments that hold a text beside other things."""
    return json.dumps({"path": "b.md", "n": [1.0], "query": f"# Title\n{text}\nend"})


def copies(edit: Edit = str, text: str = "", ident: str = "w1") -> Scripted:
    """Return a round that copies the stub of its request into a call, edited."""

    def reply(received: Received) -> Reply:
        arguments = arguments_with(edit(stub_in(received)))
        return Round(text=text, calls=(call("search", arguments, ident),))(received)

    return reply


def copies_at_once(edit: Edit) -> Scripted:
    """Return a streamed round whose call comes in one piece."""

    def reply(received: Received) -> Reply:
        function = {"name": "search", "arguments": arguments_with(edit(stub_in(received)))}
        made = {"index": 0, "id": "w1", "type": "function", "function": function}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "I search. "}, {"tool_calls": [made]}]
        ends = (None, None, "tool_calls")
        choices = [{"index": 0, "delta": d, "finish_reason": end} for d, end in zip([*deltas, {}], ends, strict=True)]
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return events(*({**head, "choices": [choice]} for choice in choices))

    return reply


def half(stub: str) -> str:
    """Return a stub that a model has cut short."""
    return stub[: len(stub) * 2 // 3]


def searched(message: dict[str, Any]) -> Any:
    """Return what the one call of a message searches for."""
    (made,) = message["tool_calls"]
    return json.loads(made["function"]["arguments"])["query"]


@STREAM
def test_an_exact_copy_reaches_the_tool_as_the_text(client: Client, upstream: Upstream, stream: bool) -> None:
    """The client never sees the stub; what it sends back is recognised, and the next request continues this one."""
    chat = Chat(client, user("go"), *step("alpha"), stream=stream)
    upstream.queue(copies(text="Now. "), says("done"))
    got = chat.ask()
    assert (searched(got.message), got.finish) == (f"# Title\n{large('alpha')}\nend", "tool_calls")
    assert got.message["content"] == "Now. "
    assert b"offloaded" not in got.data
    assert got.is_done is stream
    after = chat.ask(result("found", "w1"))
    assert (after.session, len(upstream.bodies)) == (got.session, 2)
    assert_grows(upstream.bodies)
    sent = json.loads(upstream.bodies[1])["messages"]
    assert sent[3] == chat.messages[3]


@STREAM
def test_a_damaged_copy_is_told_to_the_model(client: Client, upstream: Upstream, stream: bool) -> None:
    """The call is answered in a hidden round; the model calls again, and the round is replayed from then on."""
    chat = Chat(client, user("go"), *step("alpha"), stream=stream)
    bad = copies_at_once(half) if stream else copies(half, "I search. ")
    upstream.queue(bad, says("Again. ", call("search", arguments_with("it"), "w2")), says("done"))
    got = chat.ask()
    assert (searched(got.message), got.message["content"]) == ("# Title\nit\nend", "I search. Again. ")
    assert_hidden(got)
    assert b"[offloaded" not in got.data
    *_, assistant_message, answer = json.loads(upstream.bodies[1])["messages"]
    (ref,) = refs(upstream.bodies[1])
    assert searched(assistant_message).startswith(f"# Title\n[offloaded {ref}")
    assert (answer["tool_call_id"], f'{TOOL}(ref="{ref}")' in answer["content"]) == ("w1", True)
    chat.ask(result("found", "w2"))
    assert_grows(upstream.bodies)
    for body in upstream.bodies:
        assert_valid(json.loads(body)["messages"])


def test_a_damaged_copy_in_a_call_that_has_begun_ends_the_stream(client: Client, upstream: Upstream) -> None:
    """What was sent of the call cannot be taken back: an error, no finish, and nobody is asked again."""
    chat = Chat(client, user("go"), *step("alpha"), stream=True)
    upstream.queue(copies(half))
    got = client.post(chat.body())
    assert got.error is not None
    assert (got.error["code"], got.finish, got.is_done, got.is_whole) == ("copied_stub", None, False, True)
    assert refs(got.data) == []
    assert len(upstream.bodies) == 1


def test_a_model_that_goes_on_copying_comes_to_an_end(client: Client, upstream: Upstream) -> None:
    """The rounds are bounded; then the request has failed."""
    chat = Chat(client, user("go"), *step("alpha"))
    upstream.queue(*[copies(half)] * 4)
    got = client.post(chat.body())
    assert (got.status, got.error and got.error["code"], len(upstream.bodies)) == (502, "copied_stub", 4)


@STREAM
def test_ordinary_calls_are_relayed_unchanged(client: Client, upstream: Upstream, stream: bool) -> None:
    """Similar words, bare refs and odd spellings pass byte for byte while stubs are in the request."""
    arguments = '{ "path":"off_ [offloaded] $REF [offloaded off_abc … [truncated] \\u00e9", "n":[1.0]}'
    ordinary = Round(text="text first", calls=(call("search", arguments),))
    upstream.queue(ordinary)
    chat = Chat(client, user("go"), *step("alpha"), stream=stream)
    got = client.post(chat.body())
    (received,) = upstream.received
    assert got.data == b"".join(piece for piece in ordinary(received).steps if isinstance(piece, bytes))
    assert refs(json.dumps(got.message).encode()) == refs(received.body)


@STREAM
def test_a_stub_that_cannot_be_read_is_restored(client: Client, upstream: Upstream, stream: bool) -> None:
    """Also where the reading tool cannot be declared, since the text is in the client's own request."""
    text = large("alpha", 600)
    chat = Chat(client, user("go"), assistant(None, call("read_file")), result(text), model=TINY, stream=stream)
    upstream.queue(copies())
    got = client.post(chat.body(prediction={"type": "content", "content": "x"}))
    assert TOOL not in tool_names(upstream.bodies[0])
    assert searched(got.message) == f"# Title\n{text}\nend"
