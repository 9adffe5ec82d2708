"""OpenAI's own Python client: through the gateway as it is without it, and over turns that were spliced."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import anyio
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from tests.e2e.chat import TOOLS, step, user
from tests.e2e.gateway import Gateway, Upstream
from tests.e2e.model import TOOL, call, reads, says
from tests.e2e.sdk import (
    HI,
    HI_WITH_TOOLS,
    MODEL,
    MODELS,
    SPLICED,
    VECTORS,
    WITH_USAGE,
    assert_remembered,
    broken_stream,
    endless_stream,
    refusal,
    seen,
)
from tests.e2e.turns import STREAMED, TURNS, Turn
from tests.fakes.upstream import HANG, Received, Reply, Scripted, answer, chunks, completion, cut, events, pieces

pytestmark = pytest.mark.e2e

Scenario = Callable[[OpenAI], Any]
_KEY = "sk-python"
_OURS = ("x-ullage-", "server-timing")


class Found(BaseModel):
    """What a search gives; its schema is sent, its JSON parsed."""

    name: str
    pages: list[int]


class Search(BaseModel):
    """Arguments of a tool that the client parses."""

    path: str


@pytest.fixture
def python(gateway: Gateway, request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    """Give the synchronous client, a tenant of its own."""
    with OpenAI(base_url=gateway.base_url, api_key=f"sk-{request.node.name}", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_python(gateway: Gateway, request: pytest.FixtureRequest) -> AsyncIterator[AsyncOpenAI]:
    """Give the asynchronous client, a tenant of its own."""
    async with AsyncOpenAI(base_url=gateway.base_url, api_key=f"sk-{request.node.name}", max_retries=0) as client:
        yield client


# -- with and without the gateway


def _create(client: OpenAI, **fields: Any) -> object:
    return client.chat.completions.create(**{**HI, **fields}).model_dump()


def _iterate(client: OpenAI, **fields: Any) -> object:
    return [chunk.model_dump() for chunk in client.chat.completions.create(**{**HI, "stream": True, **fields})]


def _stream(client: OpenAI, **fields: Any) -> object:
    with client.chat.completions.stream(**{**HI, **fields}) as stream:
        events_seen = [event.to_dict() for event in stream]
        return events_seen, stream.get_final_completion().model_dump()


def _parse(client: OpenAI) -> object:
    return client.chat.completions.parse(**HI, response_format=Found).choices[0].message.parsed


def _parse_tools(client: OpenAI) -> object:
    tool = openai.pydantic_function_tool(Search, name="search")
    made = client.chat.completions.parse(**HI, tools=[tool]).choices[0].message.tool_calls
    return [one.function.parsed_arguments for one in made or []]


def _stream_parsed(client: OpenAI) -> object:
    with client.chat.completions.stream(**HI, response_format=Found) as stream:
        return stream.get_final_completion().choices[0].message.parsed


def _raw(client: OpenAI) -> object:
    response = client.chat.completions.with_raw_response.create(**HI_WITH_TOOLS)
    return response.status_code, _headers(response.headers), response.text


def _lines(client: OpenAI) -> object:
    with client.chat.completions.with_streaming_response.create(**HI, stream=True) as response:
        return list(response.iter_lines())


def _embed(client: OpenAI) -> object:
    return client.embeddings.create(model="e", input=["a", "b"]).model_dump()


def _list_models(client: OpenAI) -> object:
    return [model.model_dump() for model in client.models.list()], client.models.retrieve("m/1").model_dump()


def _moderate(client: OpenAI) -> object:
    return client.moderations.create(input="x", extra_query={"a": "b c"}).to_dict()


def _upload(client: OpenAI) -> object:
    return client.files.create(file=("a.txt", b"\x00\xff" * 1000), purpose="assistants").to_dict()


def _respond(client: OpenAI) -> object:
    return client.responses.create(model="m", input="hi").to_dict()


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not name.startswith(_OURS)}


def _choices(number: int) -> list[dict[str, Any]]:
    message = {"role": "assistant", "content": "x"}
    return [{"index": at, "message": message, "finish_reason": "stop", "logprobs": None} for at in range(number)]


_BOTH = says("", call("search", '{"path": "é"}'), call("read_file", ident="c2"))
_JSON_TEXT = says('{"name": "n", "pages": [1, 2]}')
_TWO_CHOICES = [
    {**chunk, "choices": [{**chunk["choices"][0], "index": at}]}  # type: ignore[index]  # the fake's chunks
    for chunk in chunks("one two")
    for at in (0, 1)
]
_LOGPROBS = {"content": [{"token": "x", "bytes": [120], "logprob": -0.1, "top_logprobs": []}], "refusal": None}

_SCENARIOS: dict[str, tuple[Scenario, tuple[Scripted, ...]]] = {
    "create": (_create, (says("hello"),)),
    "create with tools": (lambda c: _create(c, tools=TOOLS), (_BOTH,)),
    "create with reasoning": (lambda c: _create(c, tools=TOOLS), (says("a", reasoning="b"),)),
    "choices": (lambda c: _create(c, n=3, tools=TOOLS), (answer(completion("x", choices=_choices(3))),)),
    "logprobs": (
        lambda c: _create(c, logprobs=True),
        (answer(completion("x", choices=[{**_choices(1)[0], "logprobs": _LOGPROBS}], service_tier="flex")),),
    ),
    "iterate": (_iterate, (says("one two three"),)),
    "iterate with usage": (lambda c: _iterate(c, **WITH_USAGE), (says("one two"),)),
    "iterate with tools": (lambda c: _iterate(c, tools=TOOLS), (_BOTH,)),
    "iterate choices": (lambda c: _iterate(c, n=2), (events(*_TWO_CHOICES),)),
    "stream": (_stream, (says("one two three"),)),
    "stream with tools": (lambda c: _stream(c, tools=TOOLS), (_BOTH,)),
    "stream with usage": (lambda c: _stream(c, tools=TOOLS, **WITH_USAGE), (says("one"),)),
    "stream parsed": (_stream_parsed, (_JSON_TEXT,)),
    "parse": (_parse, (_JSON_TEXT,)),
    "parse tools": (_parse_tools, (_BOTH,)),
    "raw": (_raw, (answer(completion("x"), headers={"X-Request-Id": "req_1", "OpenAI-Processing-Ms": "7"}),)),
    "lines": (_lines, (says("one two"),)),
    "embeddings": (_embed, (answer(VECTORS),)),
    "models": (_list_models, (answer(MODELS), answer(MODEL))),
    "moderations": (_moderate, (answer({"id": "x", "model": "m", "results": []}),)),
    "files": (_upload, (answer({"id": "file-1", "object": "file", "bytes": 2000}),)),
    "responses": (_respond, (answer({"id": "resp_1", "object": "response", "output": []}),)),
}


def _run(scenario: Scenario, base_url: str, upstream: Upstream, replies: Sequence[Scripted]) -> object:
    upstream.forget()
    upstream.queue(*replies)
    with OpenAI(base_url=base_url, api_key=_KEY, max_retries=2) as client:
        return scenario(client)


@pytest.mark.parametrize(("scenario", "replies"), _SCENARIOS.values(), ids=_SCENARIOS)
def test_the_gateway_makes_no_difference(
    gateway: Gateway, upstream: Upstream, scenario: Scenario, replies: tuple[Scripted, ...]
) -> None:
    """The client gets what it would get without it, and the upstream the same requests but for the declared tool."""
    got = _run(scenario, upstream.url, upstream, replies)
    arrived = [seen(received) for received in upstream.received]
    assert _run(scenario, gateway.base_url, upstream, replies) == got
    assert [seen(received) for received in upstream.received] == arrived


# -- errors and retries


_ERRORS = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
}


def _failure(scenario: Scenario) -> Scenario:
    """Return what an error says, in place of raising it."""

    def run(client: OpenAI) -> object:
        with pytest.raises(openai.APIError) as caught:
            scenario(client.with_options(max_retries=0))
        error: Any = caught.value
        said = [error.code, error.param, error.type, error.body, error.message]
        return type(error), getattr(error, "status_code", None), getattr(error, "request_id", None), said

    return run


@pytest.mark.parametrize("scenario", [_create, _iterate, _stream, _embed], ids=["create", "iterate", "stream", "embed"])
@pytest.mark.parametrize("status", _ERRORS)
def test_errors_are_what_they_were(gateway: Gateway, upstream: Upstream, status: int, scenario: Scenario) -> None:
    """The same class with the same status, code, body and request id."""
    got = _run(_failure(scenario), gateway.base_url, upstream, [refusal(status)])
    assert got == _run(_failure(scenario), upstream.url, upstream, [refusal(status)])
    assert isinstance(got, tuple)
    assert got[:3] == (_ERRORS[status], status, "req_7")


def test_an_error_in_a_stream_is_what_it_was(gateway: Gateway, upstream: Upstream) -> None:
    """An error event raises the same APIError after the same chunks."""
    broken = events(*chunks("one", None), {"error": {"message": "over", "type": "t", "param": None, "code": "c"}})
    got = [_run(_failure(_iterate), base, upstream, [broken]) for base in (upstream.url, gateway.base_url)]
    assert got[0] == got[1]


@pytest.mark.parametrize("is_spliced", [False, True], ids=["plain", "spliced"])
def test_a_stream_that_breaks_raises(python: OpenAI, upstream: Upstream, is_spliced: bool) -> None:
    """What came is given out, then an APIError says that the answer is not complete."""
    upstream.queue(*([says("one ", reads("index"))] if is_spliced else []))
    upstream.queue(broken_stream())
    texts = (c.choices[0].delta.content or "" for c in python.chat.completions.create(**HI_WITH_TOOLS, stream=True))
    got: list[str] = []
    with pytest.raises(openai.APIError, match="before it was complete"):
        got.extend(texts)
    assert "".join(got) == ("one two " if is_spliced else "two ")


_RETRIED: dict[str, tuple[tuple[Reply, ...], int]] = {
    "rate limit": ((refusal(429, **{"Retry-After-Ms": "1"}),), 2),
    "server errors": ((refusal(500, **{"Retry-After-Ms": "1"}), refusal(503, **{"Retry-After-Ms": "1"})), 3),
    "not wanted": ((refusal(500, **{"X-Should-Retry": "false"}),), 1),
    "wanted": ((refusal(400, **{"X-Should-Retry": "true", "Retry-After-Ms": "1"}),), 2),
    "the client's fault": ((refusal(400),), 1),
}


@pytest.mark.parametrize(("refusals", "count"), _RETRIED.values(), ids=_RETRIED)
def test_retries_are_the_clients(gateway: Gateway, upstream: Upstream, refusals: tuple[Reply, ...], count: int) -> None:
    """As many requests as without the gateway, with the same count of retries in each, and the same end."""

    def attempt(client: OpenAI) -> object:
        try:
            return _create(client, tools=TOOLS)
        except openai.APIStatusError as error:
            return error.status_code

    counts = []
    got = []
    for base_url in (upstream.url, gateway.base_url):
        got.append(_run(attempt, base_url, upstream, [*refusals, says("hello")]))
        counts.append([received.header("x-stainless-retry-count") for received in upstream.received])
    assert got[0] == got[1]
    assert counts[0] == counts[1] == [str(number) for number in range(count)]


def test_a_retry_sends_the_same_bytes(python: OpenAI, upstream: Upstream) -> None:
    """A request that is made again after an error has the same stubs; nothing is decided twice."""
    upstream.queue(refusal(503, **{"Retry-After-Ms": "1"}))
    python.with_options(max_retries=1).chat.completions.create(**SPLICED)
    first, second = upstream.bodies
    assert first == second


def test_an_upstream_that_is_away(python: OpenAI, upstream: Upstream) -> None:
    """Its absence is a 502 of ours, which the client knows as a server error."""
    upstream.otherwise = lambda _: cut()
    with pytest.raises(openai.InternalServerError) as caught:
        python.chat.completions.create(**HI)
    assert (caught.value.status_code, caught.value.type) == (502, "ullage_error")


def test_a_preset_that_does_not_exist(python: OpenAI) -> None:
    """Our own refusals have OpenAI's shape."""
    with pytest.raises(openai.BadRequestError) as caught:
        python.with_options(default_headers={"x-ullage-policy": "none such"}).chat.completions.create(**HI)
    assert (caught.value.type, caught.value.param) == ("ullage_error", "x-ullage-policy")


# -- spliced turns

_ALL = {**TURNS, **STREAMED}


def _assert_told(turn: Turn, message: Any, finish: str | None) -> None:
    assert message.role == "assistant"
    assert (message.content or None) == turn.text
    made = [(one.id, one.function.name, one.function.arguments) for one in message.tool_calls or []]
    assert made == list(turn.calls)
    assert (getattr(message, "reasoning_content", None) or "") == turn.reasoning
    assert finish == turn.finish


def _asking(client: OpenAI) -> Callable[[list[dict[str, Any]]], object]:
    return lambda messages: client.chat.completions.create(**{**SPLICED, "messages": messages})


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_a_spliced_answer(python: OpenAI, upstream: Upstream, turn: Turn) -> None:
    """A whole answer over hidden rounds is one message, with the usage of all, and is known when it comes back."""
    upstream.queue(*turn.replies)
    got = python.chat.completions.create(**SPLICED)
    assert len(got.choices) == 1
    _assert_told(turn, got.choices[0].message, got.choices[0].finish_reason)
    assert got.usage
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (10, turn.completion_tokens)
    assert got.usage.total_tokens == 10 + turn.completion_tokens
    assert TOOL not in got.to_json()
    assert_remembered(_asking(python), upstream, got.choices[0].message.to_dict(), turn)


@pytest.mark.parametrize("turn", _ALL.values(), ids=_ALL)
def test_a_spliced_stream_by_its_chunks(python: OpenAI, upstream: Upstream, turn: Turn) -> None:
    """One id, one role, one finish, calls numbered without a gap; without a usage chunk that nobody asked for."""
    upstream.queue(*turn.replies)
    got: list[ChatCompletionChunk] = list(python.chat.completions.create(**SPLICED, stream=True))
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in got}) == 1
    deltas = [choice.delta for chunk in got for choice in chunk.choices]
    assert [delta.role for delta in deltas if delta.role] == ["assistant"]
    indices = [piece.index for delta in deltas for piece in delta.tool_calls or []]
    assert list(dict.fromkeys(indices)) == list(range(len(turn.calls)))
    heads = [piece for delta in deltas for piece in delta.tool_calls or [] if piece.id]
    assert len(heads) == len(turn.calls)
    assert all(piece.type == "function" for piece in heads)
    assert [c.finish_reason for chunk in got for c in chunk.choices if c.finish_reason] == [turn.finish]
    assert not any(chunk.usage for chunk in got)
    assert not any(TOOL in chunk.to_json() for chunk in got)


@pytest.mark.parametrize("turn", _ALL.values(), ids=_ALL)
def test_a_spliced_stream_by_the_helper(python: OpenAI, upstream: Upstream, turn: Turn) -> None:
    """The helper takes every event, and what it makes of them is known when it comes back."""
    upstream.queue(*turn.replies)
    with python.chat.completions.stream(**SPLICED, **WITH_USAGE) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        got = stream.current_completion_snapshot
    _assert_told(turn, got.choices[0].message, got.choices[0].finish_reason)
    assert "".join(texts) == (turn.text or "")
    assert got.usage
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (10, turn.completion_tokens)
    message = got.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})
    for made in message.get("tool_calls", []):
        made["function"].pop("parsed_arguments", None)
        made.pop("index", None)
    assert_remembered(_asking(python), upstream, message, turn)


def test_a_spliced_stream_by_the_state_helper(python: OpenAI, upstream: Upstream) -> None:
    """The accumulator that is public on its own comes to the same message."""
    turn = TURNS["mixed after a read"]
    upstream.queue(*turn.replies)
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in python.chat.completions.create(**SPLICED, stream=True):
        state.handle_chunk(chunk)
    got = state.get_final_completion()
    _assert_told(turn, got.choices[0].message, got.choices[0].finish_reason)


def test_a_spliced_answer_is_parsed(python: OpenAI, upstream: Upstream) -> None:
    """JSON that comes after a read is parsed as if it had come at once, whole and streamed."""
    for _ in range(2):
        upstream.queue(says("", reads()), _JSON_TEXT)
    fields = {**SPLICED, "tools": [openai.pydantic_function_tool(Search, name="search")]}
    whole = python.chat.completions.parse(**fields, response_format=Found)
    assert whole.choices[0].message.parsed == Found(name="n", pages=[1, 2])
    with python.chat.completions.stream(**fields, response_format=Found) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Found(name="n", pages=[1, 2])


def test_text_flows_before_a_hidden_round_ends(python: OpenAI, upstream: Upstream) -> None:
    """What the model says before it reads is there while the next round has not answered."""
    upstream.queue(says("I look. ", reads()), pieces(HANG))
    with python.chat.completions.create(**SPLICED, stream=True) as stream:
        said = ""
        for chunk in stream:
            said += chunk.choices[0].delta.content or ""
            if said == "I look. ":
                break
        upstream.wait(2)
    assert upstream.received[1].wait_gone(20)


# -- the asynchronous client


@pytest.mark.anyio
@pytest.mark.parametrize("turn", _ALL.values(), ids=_ALL)
async def test_a_spliced_stream_by_the_asynchronous_helper(
    async_python: AsyncOpenAI, upstream: Upstream, turn: Turn
) -> None:
    """The asynchronous helper comes to the same message."""
    upstream.queue(*turn.replies)
    async with async_python.chat.completions.stream(**SPLICED) as stream:
        async for _ in stream:
            pass
        got = stream.current_completion_snapshot
    _assert_told(turn, got.choices[0].message, got.choices[0].finish_reason)


@pytest.mark.anyio
async def test_many_asynchronous_chats_at_once(async_python: AsyncOpenAI, upstream: Upstream) -> None:
    """Twenty chats over one client, streamed and not, each with a read, each with its own answer."""

    def reply(received: Received) -> Reply:
        messages = received.json["messages"]
        number = messages[0]["content"]
        if messages[-1]["content"].startswith("@@"):
            return says(f"{number} seen")(received)
        return says(f"{number} looks ", reads())(received)

    async def ask(number: int) -> None:
        fields = {**SPLICED, "messages": [user(str(number)), *step(f"alpha{number}")]}
        if number % 2:
            stream = await async_python.chat.completions.create(**fields, stream=True)
            said[number] = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        else:
            got = await async_python.chat.completions.create(**fields)
            said[number] = got.choices[0].message.content or ""

    upstream.otherwise = reply
    said: dict[int, str] = {}
    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(ask, number)
    assert said == {number: f"{number} looks {number} seen" for number in range(20)}


@pytest.mark.anyio
async def test_an_asynchronous_stream_that_is_left(async_python: AsyncOpenAI, upstream: Upstream) -> None:
    """Closing the stream early ends the upstream's work."""
    upstream.queue(endless_stream())
    stream = await async_python.chat.completions.create(**HI_WITH_TOOLS, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    assert await anyio.to_thread.run_sync(upstream.received[0].wait_gone, 20)
