"""Upstreams are asked for windows, rarely and politely."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from proxy.core.window import Window
from proxy.discovery import FIRST_PAUSE_SECONDS, LIFE_SECONDS, Discovery
from proxy.headers import Headers
from proxy.target import UpstreamTarget
from proxy.upstream import Transport
from proxy.windows import Windows, WindowTable
from tests.fakes.upstream import CLOSE, FakeUpstream, Received, Reply, answer, body, raw, silence

pytestmark = pytest.mark.anyio
HEADERS: Headers = [
    (b"authorization", b"Bearer sk-1"),
    (b"cookie", b"private"),
    (b"x-client", b"private"),
    (b"anthropic-version", b"2023-06-01"),
]
LISTS = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 8_192}, {"id": "other", "max_model_len": 16_384}]}


class Desk:
    """A discovery at a scripted upstream, with a clock that is set by hand."""

    def __init__(self, fake: FakeUpstream, transport: Transport) -> None:
        self.now = 0.0
        self.fake = fake
        self.windows = Windows(WindowTable({}))
        self.discovery = Discovery(transport, self.windows, lambda: self.now)
        self.target = UpstreamTarget(f"http://127.0.0.1:{fake.port}", "/v1")

    async def notice(self, model: str = "m") -> list[str]:
        """Have a model noticed, wait until everything was asked, return all that was ever asked for."""
        self.discovery.notice(self.target, HEADERS, model)
        for task in list(self.discovery._tasks):
            await task
        return [f"{received.method} {received.path}" for received in self.fake.received]

    def found(self, model: str = "m") -> int | None:
        """Return what was discovered."""
        window = self.windows.discovered(self.target.origin, model)
        return None if window is None else window.tokens


@asynccontextmanager
async def desk(fake: FakeUpstream) -> AsyncIterator[Desk]:
    """Give a desk and close everything at the end."""
    transport = Transport()
    table = Desk(fake, transport)
    try:
        yield table
    finally:
        await table.discovery.close()
        await transport.close()


def serve(fake: FakeUpstream, **pages: Reply | object) -> None:
    """Answer paths (slashes as two underscores) with these values, all others with 404."""

    def reply(received: Received) -> Reply:
        page = pages.get(received.path.strip("/").replace("/", "__"))
        if page is None:
            return answer({"error": "not found"}, 404)
        return page if isinstance(page, Reply) else answer(page)

    fake.otherwise = reply


async def test_a_list_is_read_once_for_all_models(fake: FakeUpstream) -> None:
    """One question, with the credential that is known to be good and nothing else of the client's."""
    serve(fake, v1__models=LISTS)
    async with desk(fake) as table:
        assert await table.notice() == ["GET /v1/models"]
        assert (table.found(), table.found("other")) == (8_192, 16_384)
        assert await table.notice() == ["GET /v1/models"]
        assert await table.notice("other") == ["GET /v1/models"]
        assert await table.notice("unlisted") == ["GET /v1/models"]
    (received,) = fake.received
    names = {name.decode().lower() for name, _ in received.headers}
    assert names == {"host", "authorization", "anthropic-version", "accept", "accept-encoding"}
    assert received.header("authorization") == "Bearer sk-1"


async def test_what_was_found_is_asked_for_again_later(fake: FakeUpstream) -> None:
    """A server that was started anew may have another window."""
    serve(fake, v1__models=LISTS)
    async with desk(fake) as table:
        await table.notice()
        table.now += LIFE_SECONDS
        serve(fake, v1__models={"data": [{"id": "m", "max_model_len": 4_096}]})
        assert len(await table.notice()) == 2
        assert table.found() == 4_096


@pytest.mark.parametrize(
    "reply",
    [answer({}, 500), answer({}, 401), body(b"<html>"), raw(CLOSE), body(b"[" * 100_000), answer({}, 302)],
    ids=["500", "401", "html", "broken", "deep", "redirect"],
)
async def test_failures_are_tried_again_ever_later(fake: FakeUpstream, reply: Reply) -> None:
    """After a minute, then two, then four; never in between."""
    serve(fake, v1__models=reply)
    async with desk(fake) as table:
        asked = len(await table.notice())
        for pause in (FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS):
            table.now += pause - 1
            assert len(await table.notice()) == asked
            table.now += 1
            # An answer that can be read is not asked for again, whatever it says.
            assert len(await table.notice()) == asked + (1 if is_failure(reply) else 0)
            asked = len(fake.received)
        assert table.found() is None


def is_failure(reply: Reply) -> bool:
    """Tell whether a reply is no list at all."""
    return reply.status != 200


async def test_llama_cpp_is_asked_for_its_slots(fake: FakeUpstream) -> None:
    """Whatever the model is called there: only one is served."""
    props = {"default_generation_settings": {"n_ctx": 4_096}}
    serve(fake, v1__models={"data": [{"id": "x.gguf", "owned_by": "llamacpp"}]}, props=props)
    async with desk(fake) as table:
        assert await table.notice() == ["GET /v1/models", "GET /props"]
        assert table.found() == 4_096


async def test_ollama_is_asked_what_it_runs_and_what_is_set(fake: FakeUpstream) -> None:
    """The running model first; one that is not running yet is asked for again."""
    serve(fake, v1__models={"data": [{"id": "qwen3:14b", "owned_by": "library"}]}, api__ps={"models": []})
    async with desk(fake) as table:
        asked = await table.notice("qwen3:14b")
        assert asked == ["GET /v1/models", "GET /api/ps", "POST /api/show"]
        assert msgspec.json.decode(fake.received[-1].body) == {"model": "qwen3:14b"}
        assert table.found("qwen3:14b") is None
        serve(fake, api__ps={"models": [{"name": "qwen3:14b", "context_length": 8_192}]})
        table.now += FIRST_PAUSE_SECONDS
        assert (await table.notice("qwen3:14b"))[3:] == ["GET /api/ps"]
        assert table.found("qwen3:14b") == 8_192


async def test_lm_studio_is_asked_what_it_loaded(fake: FakeUpstream) -> None:
    """Its own list tells, the other one does not."""
    own = {"data": [{"id": "m", "loaded_context_length": 4_096, "max_context_length": 32_768}]}
    serve(fake, v1__models={"data": [{"id": "m", "owned_by": "organization_owner"}]}, api__v0__models=own)
    async with desk(fake) as table:
        assert await table.notice() == ["GET /v1/models", "GET /api/v0/models"]
        assert table.found() == 4_096


async def test_a_server_behind_a_folder_is_asked_there(fake: FakeUpstream) -> None:
    """Its own paths begin where /v1 does, and a query of the base URL goes to the list alone."""
    serve(fake, llm__v1__models={"data": [{"id": "m", "owned_by": "llamacpp"}]})
    async with desk(fake) as table:
        table.target = msgspec.structs.replace(table.target, prefix="/llm/v1", query="key=1")
        assert await table.notice() == ["GET /llm/v1/models", "GET /llm/props"]
    assert [received.target for received in fake.received] == [b"/llm/v1/models?key=1", b"/llm/props"]


@pytest.mark.parametrize("origin", ["https://api.openai.com", "https://mine.openai.azure.com"])
async def test_who_tells_nothing_is_not_asked(origin: str) -> None:
    """These give no windows, and their lists have rate limits."""
    discovery = Discovery(Transport(), Windows(WindowTable({})))
    discovery.notice(UpstreamTarget(origin, "/v1"), HEADERS, "m")
    assert not discovery._tasks


async def test_nobody_waits_and_nothing_is_asked_twice_at_once(fake: FakeUpstream) -> None:
    """Many requests together lead to one question; closing ends it."""
    serve(fake, v1__models=silence())
    async with desk(fake) as table:
        for model in ("m", "m", "other", ""):
            table.discovery.notice(table.target, HEADERS, model)
        assert len(table.discovery._tasks) == 1
        (received,) = await asyncio.to_thread(fake.wait)
        await table.discovery.close()
        assert await asyncio.to_thread(received.wait_gone)
        assert table.found() is None


async def test_our_own_mistakes_reach_nobody(fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the background is logged and tried again later."""

    def broken(_: bytes) -> Window:
        raise ZeroDivisionError

    monkeypatch.setattr("proxy.discovery.read_listing", broken)
    serve(fake, v1__models=LISTS)
    async with desk(fake) as table:
        assert len(await table.notice()) == 1
        assert len(await table.notice()) == 1
        table.now += FIRST_PAUSE_SECONDS
        assert len(await table.notice()) == 2
