"""OpenAI's own JavaScript client: through the gateway as it is without it, and over turns that were spliced."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chat import TOOLS, assert_grows, assert_valid, step, user
from tests.e2e.gateway import Gateway, Upstream
from tests.e2e.model import TOOL, call, reads, refs, says
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
from tests.e2e.turns import SPLIT_NAME, STREAMED, TURNS, Turn
from tests.fakes.upstream import Scripted, answer, chunks, cut, events, silence

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
]

_FOLDER = Path(__file__).parent / "javascript"
_OURS = ("x-ullage-", "server-timing", "keep-alive", "connection", "transfer-encoding")


class JavaScript:
    """A node process that does one thing after another with the client."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["node", "client.mjs"], cwd=_FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, scenario: str, base_url: str, fields: object, **options: object) -> dict[str, Any]:
        """Run a scenario and return what it says: {"value": …} or {"error": …}."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        order = {"scenario": scenario, "baseURL": base_url, "fields": fields, "apiKey": "sk-js", "maxRetries": 0}
        stdin.write(json.dumps(order | options) + "\n")
        stdin.flush()
        line = stdout.readline()
        assert line, f"node ended with {self._process.wait()}"
        told: dict[str, Any] = json.loads(line)
        return told

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def javascript() -> Iterator[JavaScript]:
    """Give the client, its packages installed."""
    assert (_FOLDER / "node_modules/openai").is_dir(), "run scripts/test-needs, which installs the packages"
    process = JavaScript()
    yield process
    process.close()


Tell = Callable[..., Any]


@pytest.fixture
def tell(javascript: JavaScript, gateway: Gateway, request: pytest.FixtureRequest) -> Tell:
    """Give a function that runs a scenario through the gateway, as a tenant of its own, and returns its value."""

    def run(scenario: str, fields: object, **options: object) -> Any:
        told = javascript.tell(scenario, gateway.base_url, fields, apiKey=f"sk-{request.node.name}", **options)
        assert "value" in told, told
        return told["value"]

    return run


# -- with and without the gateway

_BOTH = says("", call("search", '{"path": "é"}'), call("read_file", ident="c2"))
_JSON_TEXT = says('{"name": "n", "pages": [1, 2]}')
_WITH_ID = {"X-Request-Id": "req_1", "OpenAI-Processing-Ms": "7"}
_RUN = (says("", call("read_file", '{"path": "a"}')), says("now ", call("search", '{"path": "b"}', "c2")), says("done"))

Order = tuple[str, dict[str, Any], tuple[Scripted, ...]]
_SCENARIOS: dict[str, Order] = {
    "create": ("create", HI, (says("hello"),)),
    "create with tools": ("create", HI_WITH_TOOLS, (_BOTH,)),
    "iterate": ("iterate", {**HI, **WITH_USAGE}, (says("one two three"),)),
    "iterate with tools": ("iterate", HI_WITH_TOOLS, (_BOTH,)),
    "stream": ("stream", HI, (says("one two three"),)),
    "stream with tools": ("stream", {**HI_WITH_TOOLS, **WITH_USAGE}, (_BOTH,)),
    "pass on": ("passOn", HI_WITH_TOOLS, (_BOTH,)),
    "parse": ("parse", HI, (_JSON_TEXT,)),
    "parse streamed": ("parseStreamed", HI, (_JSON_TEXT,)),
    "models": ("models", {}, (answer(MODELS), answer(MODEL))),
    "embeddings": ("embeddings", {}, (answer(VECTORS),)),
}


@pytest.mark.parametrize("order", _SCENARIOS.values(), ids=_SCENARIOS)
def test_the_gateway_makes_no_difference(
    javascript: JavaScript, gateway: Gateway, upstream: Upstream, order: Order
) -> None:
    """The client gets what it would get without it, and the upstream the same requests but for the declared tool."""
    scenario, fields, replies = order
    told, arrived = [], []
    for base_url in (upstream.url, gateway.base_url):
        upstream.forget()
        upstream.queue(*replies)
        told.append(javascript.tell(scenario, base_url, fields))
        arrived.append([seen(received) for received in upstream.received])
    assert "value" in told[0]
    assert told[1] == told[0]
    assert arrived[1] == arrived[0]


@pytest.mark.parametrize("scenario", ["runTools", "runToolsStreamed"])
def test_a_runner_makes_no_difference(
    javascript: JavaScript, gateway: Gateway, upstream: Upstream, scenario: str
) -> None:
    """A runner calls the same tools and comes to the same messages, although its results were moved out."""
    told = []
    for base_url in (upstream.url, gateway.base_url):
        upstream.forget()
        upstream.queue(*_RUN)
        told.append(javascript.tell(scenario, base_url, HI))
    assert told[0]["value"]["called"] == [["read_file", "a"], ["search", "b"]]
    assert told[1] == told[0]
    assert len(refs(upstream.bodies[-1])) == 2


def test_headers_of_the_upstream_stay(javascript: JavaScript, gateway: Gateway, upstream: Upstream) -> None:
    """Request id and all other fields are those of the upstream, with ours beside them."""
    got = []
    for base_url in (upstream.url, gateway.base_url):
        upstream.queue(answer({"id": "x", "object": "chat.completion", "choices": []}, headers=_WITH_ID))
        value = javascript.tell("response", base_url, HI)["value"]
        value["headers"] = {k: v for k, v in value["headers"].items() if not k.startswith(_OURS)}
        got.append(value)
    assert got[0] == got[1]
    assert got[1]["id"] == "req_1"


# -- errors and retries

_ERRORS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    503: "InternalServerError",
}


@pytest.mark.parametrize("scenario", ["create", "iterate", "stream"])
@pytest.mark.parametrize("status", _ERRORS)
def test_errors_are_what_they_were(
    javascript: JavaScript, gateway: Gateway, upstream: Upstream, status: int, scenario: str
) -> None:
    """The same class with the same status, code, body and request id."""
    upstream.queue(refusal(status), refusal(status))
    got = [javascript.tell(scenario, base_url, HI_WITH_TOOLS) for base_url in (upstream.url, gateway.base_url)]
    assert got[0] == got[1]
    assert (got[1]["error"]["name"], got[1]["error"]["status"]) == (_ERRORS[status], status)
    assert got[1]["error"]["requestID"] == "req_7"


@pytest.mark.parametrize("scenario", ["iterate", "stream", "runToolsStreamed"])
@pytest.mark.parametrize("is_spliced", [False, True], ids=["plain", "spliced"])
def test_a_stream_that_breaks_raises(
    javascript: JavaScript, gateway: Gateway, upstream: Upstream, scenario: str, is_spliced: bool
) -> None:
    """A broken answer is an error for the client and never a short one."""
    upstream.queue(*([says("one ", reads("index"))] if is_spliced else []))
    upstream.queue(broken_stream())
    told = javascript.tell(scenario, gateway.base_url, HI_WITH_TOOLS)
    assert "before it was complete" in json.dumps(told["error"])


def test_an_error_in_a_stream_is_what_it_was(javascript: JavaScript, gateway: Gateway, upstream: Upstream) -> None:
    """An error event is the same error."""
    broken = events(*chunks("one", None), {"error": {"message": "over", "type": "t", "param": None, "code": "c"}})
    upstream.queue(broken, broken)
    got = [javascript.tell("stream", base_url, HI) for base_url in (upstream.url, gateway.base_url)]
    assert got[0] == got[1]
    assert got[1]["error"]["code"] == "c"


def test_retries_are_the_clients(tell: Tell, upstream: Upstream) -> None:
    """The client's own retries go through, counted by it, with the same bytes each time."""
    upstream.queue(refusal(503, **{"Retry-After-Ms": "1"}), refusal(429, **{"Retry-After-Ms": "1"}), says("hello"))
    tell("create", {**HI_WITH_TOOLS, "messages": [user("go"), *step("alpha")]}, maxRetries=2)
    assert [received.header("x-stainless-retry-count") for received in upstream.received] == ["0", "1", "2"]
    assert len(set(upstream.bodies)) == 1


def test_an_upstream_that_is_away(javascript: JavaScript, gateway: Gateway, upstream: Upstream) -> None:
    """Its absence is a 502 of ours, which the client knows as a server error."""
    upstream.otherwise = lambda _: cut()
    error = javascript.tell("create", gateway.base_url, HI)["error"]
    assert (error["name"], error["status"], error["type"]) == ("InternalServerError", 502, "ullage_error")


def test_a_stream_that_is_left(tell: Tell, upstream: Upstream) -> None:
    """Leaving the loop ends the upstream's work."""
    upstream.queue(endless_stream())
    assert tell("leave", HI_WITH_TOOLS) == "one "
    assert upstream.received[0].wait_gone(20)


def test_a_request_that_is_aborted(javascript: JavaScript, gateway: Gateway, upstream: Upstream) -> None:
    """Aborting ends the upstream's work."""
    upstream.queue(silence())
    assert javascript.tell("abort", gateway.base_url, HI)["error"]["name"] == "APIUserAbortError"
    assert upstream.received[0].wait_gone(20)


# -- spliced turns

# With or without the gateway this client takes the last piece of a name for the whole.
_ALL = {name: turn for name, turn in {**TURNS, **STREAMED}.items() if name != SPLIT_NAME}


def _assert_told(turn: Turn, choice: dict[str, Any]) -> None:
    message = choice["message"]
    assert message["role"] == "assistant"
    assert (message["content"] or None) == turn.text
    made = [
        (one["id"], one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or []
    ]
    assert made == list(turn.calls)
    assert choice["finish_reason"] == turn.finish


def _asking(tell: Tell) -> Callable[[list[dict[str, Any]]], object]:
    # JavaScript writes the history anew, in another spelling than the one that was sent first.
    return lambda messages: tell("create", {**SPLICED, "messages": messages})


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_a_spliced_answer(tell: Tell, upstream: Upstream, turn: Turn) -> None:
    """A whole answer over hidden rounds is one message, with the usage of all, and is known when it comes back."""
    upstream.queue(*turn.replies)
    got = tell("create", SPLICED)
    (choice,) = got["choices"]
    _assert_told(turn, choice)
    assert got["usage"]["completion_tokens"] == turn.completion_tokens
    assert TOOL not in json.dumps(got)
    assert_remembered(_asking(tell), upstream, choice["message"], turn)


@pytest.mark.parametrize("turn", _ALL.values(), ids=_ALL)
def test_a_spliced_stream_by_the_helper(tell: Tell, upstream: Upstream, turn: Turn) -> None:
    """The helper takes every event as part of one answer, and its copy is known when it comes back."""
    upstream.queue(*turn.replies)
    got = tell("stream", {**SPLICED, **WITH_USAGE})
    (choice,) = got["completion"]["choices"]
    _assert_told(turn, choice)
    assert got["seen"]["content"] == (turn.text or "")
    assert got["seen"]["finished"] == [[name, arguments] for _, name, arguments in turn.calls]
    usage = got["completion"]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, turn.completion_tokens)
    assert TOOL not in json.dumps(got)
    assert_remembered(_asking(tell), upstream, got["message"], turn)


@pytest.mark.parametrize("turn", _ALL.values(), ids=_ALL)
def test_a_spliced_stream_that_is_passed_on(tell: Tell, upstream: Upstream, turn: Turn) -> None:
    """Passed on as a readable stream and read by another helper it comes to the same message."""
    upstream.queue(*turn.replies)
    (choice,) = tell("passOn", SPLICED)["choices"]
    _assert_told(turn, choice)


@pytest.mark.parametrize("scenario", ["runTools", "runToolsStreamed"])
def test_a_runner_over_spliced_turns(tell: Tell, upstream: Upstream, scenario: str) -> None:
    """A runner never sees our calls, runs its own once each, and each request extends the one before."""
    upstream.queue(
        says("", call("read_file", '{"path": "a"}')),
        says("I look. ", reads()),
        says("", reads("index", "r2"), call("search", '{"path": "b"}', "c2")),
        says("", reads(ident="r3")),
        says("done"),
    )
    got = tell(scenario, HI)
    assert got["called"] == [["read_file", "a"], ["search", "b"]]
    assert got["content"] == "done"
    assert TOOL not in json.dumps(got)
    assert len(upstream.bodies) == 5
    assert_grows(upstream.bodies)
    assert_valid(json.loads(upstream.bodies[-1])["messages"])


def test_a_spliced_answer_is_parsed(tell: Tell, upstream: Upstream) -> None:
    """JSON that comes after a read is parsed as if it had come at once, whole and streamed."""
    strict = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    for scenario in ("parse", "parseStreamed"):
        upstream.queue(says("", reads()), _JSON_TEXT)
        assert tell(scenario, {**SPLICED, "tools": strict}) == {"name": "n", "pages": [1, 2]}
