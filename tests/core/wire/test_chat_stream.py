"""Chunks are looked at cheaply, read leniently and edited surgically."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from proxy.core.calls import Calls
from proxy.core.wire.chat_stream import (
    Chunk,
    Splice,
    are_plain_frames,
    has_calls,
    has_head,
    is_done,
    is_text,
    is_whole_event,
    read_chunk,
)
from tests.core.wire.test_raw import json_values
from tests.playbook import DONE, TOOL, USAGE, call, calls, chunk, event, stream, usage_chunk


def read(value: Any) -> Chunk:
    """Return a chunk read."""
    found = read_chunk(value if isinstance(value, bytes) else json.dumps(value).encode())
    assert found is not None
    return found


TELLING = {
    "finish": chunk({}, "stop"),
    "usage": usage_chunk(),
    "usage in a text chunk": chunk({"content": "a"}, usage=USAGE),
    "empty usage": usage_chunk({}),
    "error": {"error": {"message": "m"}},
}
TEXTS = {
    "text": chunk({"content": "a"}),
    "null usage": chunk({"content": "a"}, usage=None),
    "text that looks like keys": chunk(
        {"content": '{"finish_reason": "stop", "error": 1, "usage": {}, "tool_calls": [1]}'}
    ),
    "no calls": chunk({"content": "a", "tool_calls": None}),
    "an empty list of calls": chunk({"content": "a", "tool_calls": []}),
}


@pytest.mark.parametrize("spaces", ["", " ", " \n "])
def test_what_has_to_be_read_is_found_unparsed(spaces: str) -> None:
    """Finish, usage and errors are seen in any spacing; nulls, and text that quotes them, are not taken for them."""
    for kind, value in TELLING.items():
        data = json.dumps(value, separators=(f"{spaces},{spaces}", f"{spaces}:{spaces}")).encode()
        assert not is_text(data), kind
    for kind, value in TEXTS.items():
        data = json.dumps(value, separators=(f"{spaces},{spaces}", f"{spaces}:{spaces}")).encode()
        assert is_text(data), kind
        assert not has_calls(data), kind
    assert not is_text(DONE)
    assert has_calls(json.dumps(calls(call(0, "a", "f"))).encode())


def test_a_head_is_told_from_the_rest_of_a_call() -> None:
    """A chunk that goes on with arguments has one id, its own, and no name, whatever the arguments quote."""
    assert has_head(event(calls(call(0, "a", None, ""))))
    assert has_head(event(calls(call(0, None, "f"))))
    assert not has_head(event(calls(call(0, None, None, '{"name": "x", "id": 1}'))))


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (b"data: a\n\n", True),
        (b"data: a\n\ndata:b\n\n", True),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", True),
        (b"data: a\n", False),
        (b"data: a\n\ndata: b", False),
        (b"data: a\r\rdata: b\r\r", False),
        (b"data: a\r\n\n", False),
        (b"data: {\ndata: }\n\n", False),
        (b": c\n\ndata: a\n\n", False),
        (b"data: a\n\n\ndata: b\n\n", False),
        (b"event: e\ndata: a\n\n", False),
        (b"", False),
    ],
)
def test_whole_frames_are_known_unread(data: bytes, plain: bool) -> None:
    """Nothing but complete events of one line each counts."""
    assert are_plain_frames(data) is plain


@pytest.mark.parametrize(
    ("rest", "whole"),
    [
        (b'data: {"a":1}', True),
        (b"event: x\ndata: [DONE]", True),
        (b": ping\n", True),
        (b'data: {"a":', False),
        (b"data: [DO", False),
        (b"data: 12", False),
        (b"da", False),
        (b'data: {"id":"\xe6', False),
    ],
)
def test_what_ends_without_a_blank_line(rest: bytes, whole: bool) -> None:
    """A last event that is complete counts, half of one does not."""
    assert is_whole_event(rest) is whole


def test_the_mark_at_the_end() -> None:
    """It may have blanks around it."""
    assert [is_done(data) for data in (b"[DONE]", b" [DONE] ", b"{}", b"", None)] == [True, True, False, False, False]


def test_a_chunk_says() -> None:
    """Delta, calls and finish are those of choice 0; usage and errors are seen wherever they stand."""
    found = read(chunk({"content": "a", "tool_calls": [call(0, "a", "f")]}, "stop", usage=USAGE))
    assert (found.finish, len(found.calls), found.is_error, found.is_usage_only) == ("stop", 1, False, False)
    assert read(usage_chunk()).is_usage_only
    assert read({"error": {"message": "m"}}).is_error
    assert not read(chunk({}, error=None)).is_error
    assert read(chunk({"content": ""})).finish is None
    assert read(chunk({}, "")).finish is None
    assert read({"choices": [{"delta": {"content": "a"}, "finish_reason": 7}]}).finish == "7"


def test_several_choices() -> None:
    """The finish of any choice is one; only choice 0 is looked into."""
    other = {"index": 1, "delta": {"tool_calls": [call(0, "a", TOOL)]}, "finish_reason": "tool_calls"}
    found = read(chunk(choices=[other]))
    assert (found.position, found.calls, found.finish) == (None, [], "tool_calls")
    both = read(chunk(choices=[other, {"index": 0, "delta": {"content": "a"}, "finish_reason": None}]))
    assert (both.position, len(both.delta), both.finish) == (1, 1, "tool_calls")


ODD = [
    {},
    {"choices": None},
    {"choices": {}},
    {"choices": [None, 1]},
    {"choices": [{"delta": []}]},
    {"choices": [{"delta": {"tool_calls": {}}}]},
]


@pytest.mark.parametrize("value", ODD, ids=str)
def test_odd_chunks_say_nothing(value: Any) -> None:
    """Where something has another shape than it should, it is as if it were not there."""
    found = read(value)
    assert (found.has_delta, found.calls, found.finish) == (False, [], None)


@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_data_can_be_looked_at(data: bytes) -> None:
    """No data raises; what is read can be edited."""
    is_text(data)
    has_calls(data)
    is_whole_event(data)
    found = read_chunk(data)
    if found is not None:
        Splice().edit(found, [])
        Splice().finish(found, is_bare=False)


# -- the splice


class Seam:
    """A splice with the calls it works on."""

    def __init__(self) -> None:
        self.splice = Splice()
        self.calls = Calls((TOOL,))

    def edit(self, value: Any) -> Any:
        """Return an edited chunk decoded, None if it is dropped."""
        found = read(value)
        data = self.splice.edit(found, self.calls.add(found.calls))
        return None if data is None else json.loads(data)

    def delta(self, value: Any) -> Any:
        """Return the delta of an edited chunk."""
        edited = self.edit(value)
        return None if edited is None else edited["choices"][0]["delta"]


def test_what_needs_no_edit_keeps_its_bytes() -> None:
    """A text chunk of the first round is not written anew."""
    data = b'{"id":"c1","x":1.0,"choices":[{"index":0,"delta":{"content":"\\u00e9"},"finish_reason":null}] }'
    assert Splice().edit(read(data), []) == data


def test_an_edit_keeps_spelling() -> None:
    """Only what has to change does."""
    splice = Splice()
    splice.passed(read(chunk({"role": "assistant"}, system_fingerprint="fp1")))
    data = (
        b'{"id":"c2","created":9,"n":[1.0,1e0,-0.0],"choices":[{"delta":{"role":"assistant","content":"\\u00e9","x":1.50},'
        b'"index":0,"finish_reason":null,"y":1E-7}],"model":"m2","system_fingerprint":"fp2","obfuscation":"zz"}'
    )
    assert splice.edit(read(data), []) == (
        b'{"id":"c1","created":1,"n":[1.0,1e0,-0.0],"choices":[{"delta":{"content":"\\u00e9","x":1.50},'
        b'"index":0,"finish_reason":null,"y":1E-7}],"model":"m","system_fingerprint":"fp1"}'
    )


def test_one_identity() -> None:
    """Id, created, model and fingerprint are those of the first chunk that belongs to a choice."""
    seam = Seam()
    seam.edit(chunk(choices=[], id="", created=0, prompt_filter_results=[1]))
    seam.edit(chunk({"content": "a"}))
    assert seam.edit(chunk({"content": "b"}, id="c2", created=2, model="n", system_fingerprint="fp")) == chunk(
        {"content": "b"}
    )
    assert seam.edit(chunk(choices=[], id="", created=0, prompt_filter_results=[1])) == chunk(
        choices=[], prompt_filter_results=[1]
    )


def test_one_role() -> None:
    """The first goes out, later ones do not; a chunk that held nothing else is dropped, unless its choice has more."""
    seam = Seam()
    assert seam.delta(chunk({"role": "assistant", "content": None})) == {"role": "assistant", "content": None}
    assert seam.delta(chunk({"role": "assistant", "content": "a"})) == {"content": "a"}
    assert seam.delta(chunk({"role": "assistant", "content": ""})) is None
    more = chunk({"role": "assistant", "content": ""})
    more["choices"][0]["content_filter_results"] = {"hate": {"filtered": False}}
    assert seam.delta(more) == {"content": ""}


def test_our_calls_are_taken_out() -> None:
    """A chunk that holds nothing else is dropped, whatever its choice has; text and role beside it stay."""
    seam = Seam()
    assert seam.delta(chunk({"role": "assistant", "tool_calls": [call(0, "h", TOOL, "")]})) == {"role": "assistant"}
    assert seam.delta(calls(call(0, None, None, "{}"))) is None
    assert seam.delta(chunk({"content": "a", "tool_calls": [call(0, None, None, "")]})) == {"content": "a"}


def test_the_clients_calls_are_numbered_from_0() -> None:
    """Indices are gapless, missing ones are made; ids, names and types stand in the first delta alone."""
    seam = Seam()
    assert seam.delta(calls(call(0, "h", TOOL, "{}"))) is None
    assert seam.delta(calls({**call(None, "a", "f", ""), "x": 1})) == {
        "tool_calls": [{**call(0, "a", "f", ""), "x": 1}]
    }
    assert seam.delta(calls(call(None, "a", "f", "{"))) == {"tool_calls": [call(0, None, None, "{")]}
    headless = {"index": 5, "id": "b", "function": {"name": "g", "arguments": "{}"}}
    assert seam.delta(calls(headless)) == {"tool_calls": [{**call(1, "b", "g", "{}"), "type": "function"}]}
    assert seam.delta(calls({"index": 5, "id": "", "type": None, "function": None})) == {
        "tool_calls": [{"index": 1, "function": None}]
    }


def test_indices_go_on_from_what_was_sent_as_it_came() -> None:
    """Calls that left before the turn was spliced keep their index, whatever it was."""
    seam = Seam()
    for first in (call(0, "a", "f", "{}"), call(0, "b", "f", "{}"), call(None, "c", "f", "{}")):
        seam.splice.number(seam.calls.add(read(calls(first)).calls))
    assert seam.delta(calls(call(3, "d", "g", "{}"))) == {"tool_calls": [call(2, "d", "g", "{}")]}
    assert seam.delta(calls(call(None, "a", None, " "))) == {
        "tool_calls": [{"index": 0, "function": {"arguments": " "}}]
    }


def test_a_call_with_an_open_name_waits() -> None:
    """What was kept back of a call comes with the delta that shows it to be the client's."""
    seam = Seam()
    assert seam.delta(calls(call(0, "a", "read", ""))) is None
    assert seam.delta(calls(call(0, None, None, "{}"))) == {
        "tool_calls": [call(0, "a", "read", ""), call(0, None, None, "{}")]
    }
    assert seam.splice.overdue(seam.calls) is None


def test_a_call_that_never_got_further_is_overdue() -> None:
    """At the end of the turn it is sent in a chunk of its own."""
    seam = Seam()
    seam.edit(chunk({"role": "assistant"}))
    seam.edit(calls(call(0, "a", "read", "")))
    seam.calls.settle_names()
    assert json.loads(seam.splice.overdue(seam.calls) or b"") == calls(call(0, "a", "read", ""))


def test_finish_and_usage_wait() -> None:
    """They are taken out of the chunk they come in, and sent in chunks of their own."""
    seam = Seam()
    last = chunk({"content": "a"}, "stop", usage=USAGE, obfuscation="z")
    assert seam.edit(last) == chunk({"content": "a"}, usage=None)
    assert json.loads(seam.splice.finish(read(last), is_bare=True)) == chunk({}, "stop", usage=None)
    assert seam.edit(usage_chunk()) is None
    assert json.loads(seam.splice.usage(read(last), Raw(b'{"a":1}'))) == chunk(
        choices=[], usage={"a": 1}, obfuscation="z"
    )


def test_a_finish_that_stands_alone_keeps_what_else_it_has() -> None:
    """Filter results and the like of the last chunk are not lost; its reason may be another."""
    seam = Seam()
    last = chunk({"content": ""}, "tool_calls")
    last["choices"][0]["x"] = 1.5
    assert seam.edit(last) is None
    last["choices"][0]["finish_reason"] = "stop"
    assert json.loads(seam.splice.finish(read(last), is_bare=False, reason="stop")) == last


def test_stream_of_the_builders_is_plain() -> None:
    """The builders of these tests make the frames that the fast path is made for."""
    assert are_plain_frames(stream(chunk({"content": "a"}), chunk({"content": "b"}), done=False))
