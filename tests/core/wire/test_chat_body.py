"""Whole answers are edited without touching what is not edited."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from proxy.core.wire.chat_body import (
    read_answer,
    read_error,
    read_usage,
    write_answer,
    write_error,
    write_stream,
)
from proxy.core.wire.raw import write
from tests.core.wire.test_raw import json_values
from tests.playbook import DONE, USAGE, assemble, events_of, tool_call, whole


def test_an_answer_says() -> None:
    """Message, calls, finish and usage of choice 0."""
    answer = read_answer(whole({"content": None, "tool_calls": [tool_call("a")]}, "tool_calls"))
    assert answer is not None
    assert (answer.finish, len(answer.calls), json.loads(bytes(answer.usage or b""))) == ("tool_calls", 1, USAGE)
    assert read_usage(whole({"content": "a"}, usage=None)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"error":{"message":"x"},"choices":[{"message":{}}]}',
        b'{"choices":[{"text":"a"}]}',
        b'{"choices":[{"index":1,"message":{}}]}',
        b'{"choices":{"a":1}}',
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    """Errors, other formats and garbage are relayed, so nothing is read in them."""
    assert read_answer(data) is None


def test_an_edit_is_surgical() -> None:
    """Only message, finish and usage change; numbers, order and unknown keys stay as they were spelled."""
    data = (
        b'{"id":"r","n":[1.0,1e0],"choices":[{"index":0,"logprobs":{"content":[{"logprob":-0.10}]},"message":'
        b'{"role":"assistant","content":"a","x":1.50},"finish_reason":"tool_calls"},{"index":1,"y":2.0}],"usage":{"a":1},"z":"\\u00e9"}'
    )
    answer = read_answer(data)
    assert answer is not None
    message = {**answer.message, "content": write("b")}
    edited = write_answer(answer, message, finish="stop", usage=Raw(b'{"a":2}'))
    expected = (
        data.replace(b'"content":"a"', b'"content":"b"').replace(b'"tool_calls"', b'"stop"').replace(b'"a":1', b'"a":2')
    )
    assert edited == expected
    assert write_answer(answer, answer.message, finish=None, usage=None) == data


def test_usage_is_not_added() -> None:
    """An answer without usage stays without."""
    answer = read_answer(b'{"choices":[{"message":{"content":"a"}}]}')
    assert answer is not None
    assert (
        write_answer(answer, answer.message, finish=None, usage=Raw(b"{}"))
        == b'{"choices":[{"message":{"content":"a"}}]}'
    )


ERRORS = {
    "openai": (b'{"error":{"message":"m","code":null}}', {"message": "m", "code": None}),
    "array": (b'[{"error":{"message":"m"}}]', {"message": "m"}),
    "top level": (b'{"object":"error","message":"m","code":400}', {"object": "error", "message": "m", "code": 400}),
    "word": (b'{"error":"m","message":"n"}', None),
    "detail": (b'{"detail":[{"msg":"m"}]}', None),
    "html": (b"<html>", None),
    "nothing": (b"", None),
    "empty array": (b"[]", None),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_of_all_shapes(kind: str) -> None:
    """The error object is found where a client of OpenAI would look, or put there; anything else is none."""
    data, expected = ERRORS[kind]
    error = read_error(data)
    assert (None if error is None else json.loads(bytes(error))) == expected


def test_an_error_of_our_own() -> None:
    """It has OpenAI's shape and our type."""
    assert json.loads(write_error("some_code", "what happened")) == {
        "error": {"message": "what happened", "type": "ullage_error", "param": None, "code": "some_code"}
    }


def test_a_whole_answer_as_a_stream() -> None:
    """It has the same text, calls, finish and usage, and ends as a stream does."""
    answer = read_answer(whole({"content": "a", "tool_calls": [tool_call("i", "f", "{}")]}, "tool_calls"))
    assert answer is not None
    data = write_stream(answer)
    assert data.endswith(DONE)
    chunks = events_of(data)
    message = assemble(chunks)
    assert (message["content"], message["finish"]) == ("a", ["tool_calls"])
    assert message["calls"] == {0: {"id": "i", "name": "f", "arguments": "{}"}}
    assert chunks[-1]["usage"] == USAGE
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_body_can_be_looked_at(data: bytes) -> None:
    """No body raises."""
    read_answer(data)
    read_error(data)
    read_usage(data)
