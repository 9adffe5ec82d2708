"""What a turn does for the interceptor: it reads, sends, asks again, and lets go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from proxy.core.intercept import Interceptor, ToolUse
from proxy.core.ledger import HiddenTurn
from proxy.errors import Unreachable
from proxy.headers import Headers
from proxy.turn import Turn
from proxy.upstream import UpstreamResponse
from tests.playbook import DONE, chunk, event, options, reading, saying, tool_call, whole
from tests.test_gateway import Answer

pytestmark = pytest.mark.anyio
STREAM: Headers = [(b"content-type", b"text/event-stream"), (b"content-length", b"5")]
Step = bytes | Exception | None  # None: silence without end


class Steps(httpx.AsyncByteStream):
    """A body in steps; notes when it is closed."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self.closed = False
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the steps."""
        for step in self._steps:
            if step is None:
                await asyncio.Event().wait()
            elif isinstance(step, Exception):
                raise step
            else:
                self.taken += 1
                yield step

    async def aclose(self) -> None:
        """Note it."""
        self.closed = True


def response(*steps: Step, status: int = 200, headers: Headers = STREAM) -> UpstreamResponse:
    """Return an answer of the upstream."""
    return UpstreamResponse(status, headers, Steps(steps))


class Rounds:
    """Plays the gateway: hands out the later rounds, answers reads, remembers turns."""

    def __init__(self, *later: UpstreamResponse | Exception) -> None:
        self.later = list(later)
        self.asked: list[tuple[tuple[bytes, ...], bool]] = []
        self.turns: list[HiddenTurn] = []

    async def open(self, messages: tuple[bytes, ...], *, with_tool: bool) -> UpstreamResponse:
        """Return the next round."""
        self.asked.append((messages, with_tool))
        answer = self.later.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def answer(self, uses: tuple[ToolUse, ...]) -> tuple[str, ...]:
        """Answer each read."""
        return tuple(f"page for {use.id}" for use in uses)

    async def remember(self, turn: HiddenTurn) -> None:
        """Take a turn."""
        self.turns.append(turn)


async def streamed(rounds: Rounds, first: UpstreamResponse) -> Answer:
    """Run a streamed turn."""
    answer = Answer()
    await Turn(Interceptor(options()), rounds, answer).stream(first, STREAM, keepalive_seconds=0)
    return answer


async def test_a_hidden_round_is_answered_and_the_stream_goes_on() -> None:
    """The next round continues with call and answer; the turn is remembered; both bodies are let go of."""
    first, second = response(reading()), response(saying("done"))
    rounds = Rounds(second)
    answer = await streamed(rounds, first)
    assert b"done" in answer.body
    assert answer.finished
    ((messages, with_tool),) = rounds.asked
    assert with_tool
    assert [json.loads(m)["role"] for m in messages] == ["assistant", "tool"]
    assert json.loads(messages[1])["content"] == "page for h1"
    assert rounds.turns[0].rounds == messages
    assert all(isinstance(r._stream, Steps) and r._stream.closed for r in (first, second))


async def test_the_end_of_a_hidden_body_is_waited_for_but_not_long() -> None:
    """A connection is kept when the body ends right after its last event; a silent one does not hold the turn up."""
    quick = response(reading(), b"\n")
    await streamed(Rounds(response(saying("done"))), quick)
    assert isinstance(quick._stream, Steps)
    assert quick._stream.taken == 2
    stuck = response(reading(), None)
    assert b"done" in (await streamed(Rounds(response(saying("done"))), stuck)).body


async def test_the_head_of_a_spliced_stream_names_no_length() -> None:
    """What described the upstream's body is not said of another one."""
    answer = await streamed(Rounds(), response(saying("hi")))
    assert answer.headers == {"content-type": "text/event-stream"}


@pytest.mark.parametrize("failure", [Unreachable("gone"), response(b'{"error":{"message":"no"}}', status=500)])
async def test_a_later_round_that_fails_is_an_error_event(failure: UpstreamResponse | Exception) -> None:
    """The client learns of it in its stream, and nothing looks finished."""
    answer = await streamed(Rounds(failure), response(reading()))
    assert b'"error"' in answer.body
    assert DONE not in answer.body


async def test_a_stream_that_breaks_is_an_error_event() -> None:
    """What came is passed on, then the error."""
    answer = await streamed(Rounds(), response(event(chunk({"content": "he"})), httpx.ReadError("reset")))
    assert b'"he"' in answer.body
    assert b"upstream_broken" in answer.body


async def test_a_later_round_may_come_whole() -> None:
    """An upstream that answers a stream request with one body is understood."""
    head: Headers = [(b"content-type", b"application/json")]
    answer = await streamed(Rounds(response(whole({"content": "all at once"}), headers=head)), response(reading()))
    assert b"all at once" in answer.body
    assert answer.body.endswith(DONE)


async def answered(rounds: Rounds, body: bytes) -> Answer:
    """Run a turn with whole bodies."""
    answer = Answer()
    head: Headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"etag", b"x")]
    machine = Interceptor(options(streaming=False))
    await Turn(machine, rounds, answer).whole(200, body, head)
    return answer


async def test_a_whole_answer_is_passed_as_it_came() -> None:
    """Without a read, bytes and headers are the upstream's."""
    body = whole({"content": "hi"})
    answer = await answered(Rounds(), body)
    assert (answer.body, answer.headers["etag"]) == (body, "x")
    assert answer.headers["content-length"] == str(len(body))


async def test_a_changed_whole_answer_has_its_own_length() -> None:
    """After a hidden round the length is that of what is sent, and the old digest is gone."""
    body = whole({"content": None, "tool_calls": [tool_call("h1")]}, "tool_calls")
    answer = await answered(Rounds(response(whole({"content": "done"}))), body)
    assert answer.json["choices"][0]["message"]["content"] == "done"
    assert answer.headers["content-length"] == str(len(answer.body))
    assert "etag" not in answer.headers


async def test_a_failed_later_round_is_answered_with_its_status() -> None:
    """Nothing was sent yet, so the client gets the upstream's own refusal; a lost connection is a 502 of ours."""
    body = whole({"content": None, "tool_calls": [tool_call("h1")]}, "tool_calls")
    refused = await answered(Rounds(response(b'{"error":{"message":"busy"}}', status=429)), body)
    assert (refused.status, refused.body) == (429, b'{"error":{"message":"busy"}}')
    lost = await answered(Rounds(Unreachable("gone")), body)
    assert (lost.status, lost.json["error"]["type"]) == (502, "ullage_error")
