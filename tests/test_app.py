"""The application as a whole: what goes where, unknown paths, parts that are passed in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from litestar import Litestar, get, post
from litestar.params import FromPath, JSONBody

from proxy.app import create_app
from proxy.errors import Forbidden
from tests.fakes.serving import parts, serving
from tests.fakes.upstream import FakeUpstream

KEY = {"authorization": "Bearer k"}


@get("/ullage/v1/things/{number:int}")
async def thing(number: FromPath[int]) -> dict[str, int]:
    """Stand for a handler of the control API."""
    if number == 0:
        message = "not yours"
        raise Forbidden(message)
    return {"number": 100 // (number - 7)}


@post("/ullage/v1/things")
async def make_thing(data: JSONBody[dict[str, int]]) -> dict[str, int]:
    """Stand for a handler that takes a body."""
    return data


@pytest.mark.parametrize(
    "path", ["/models", "/nothing/here", "/v2/models", "/chat", "/", "/v1x", "/%76%31/models", "/v1"]
)
def test_unknown_paths(fake: FakeUpstream, path: str) -> None:
    """A path outside of /v1/ that nobody serves is a 404 in OpenAI's shape."""
    with serving(create_app(parts(fake.url))) as url:
        response = httpx.get(url + path)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("ullage_error", "not_found")
    assert "/v1" in error["message"]
    assert not fake.received


def test_an_unknown_path_of_our_own(fake: FakeUpstream) -> None:
    """Who asks below /ullage/ has no wrong base URL."""
    with serving(create_app(parts(fake.url))) as url:
        message = httpx.get(url + "/ullage/v1/nothing").json()["error"]["message"]
    assert message == "No such path: /ullage/v1/nothing."


@pytest.mark.parametrize("path", ["/v1/models", "/livez"])
def test_a_head_that_is_too_large(fake: FakeUpstream, path: str) -> None:
    """Header fields have a bound, all together; what is within it passes."""
    with serving(create_app(parts(fake.url))) as url, httpx.Client(headers=KEY) as client:
        assert client.get(url + path, headers={"x-large": "x" * 200_000}).status_code == 200
        fields = {f"x-{number}": "x" * 10_000 for number in range(30)}
        refused = client.get(url + path, headers=fields)
    assert (refused.status_code, refused.json()["error"]["code"]) == (431, "headers_too_large")


def test_handlers_that_are_passed_in(fake: FakeUpstream) -> None:
    """Further handlers are served beside /v1, their errors in OpenAI's shape."""
    with serving(create_app(parts(fake.url, handlers=[thing, make_thing]))) as url, httpx.Client() as client:
        assert client.get(url + "/ullage/v1/things/8").json() == {"number": 100}
        own = client.get(url + "/ullage/v1/things/0")
        bug = client.get(url + "/ullage/v1/things/7")
        missing = client.get(url + "/ullage/v1/things/x")
        method = client.delete(url + "/ullage/v1/things")
        wrong = client.post(url + "/ullage/v1/things", content=b"no json", headers={"content-type": "application/json"})
    codes = [
        (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["type"])
        for answer in (own, bug, missing, method, wrong)
    ]
    assert codes == [
        (403, "forbidden", "ullage_error"),
        (500, "internal", "ullage_error"),
        (404, "not_found", "ullage_error"),
        (405, "bad_request", "ullage_error"),
        (400, "bad_request", "ullage_error"),
    ]


def test_what_runs_with_the_application(fake: FakeUpstream) -> None:
    """What is given as lifespan is started before the first request and ended after the last."""
    events: list[str] = []

    @asynccontextmanager
    async def running(_: Litestar) -> AsyncIterator[None]:
        events.append("start")
        yield
        events.append("end")

    with serving(create_app(parts(fake.url, lifespan=[running]))) as url:
        events.append(httpx.get(url + "/livez").json()["status"])
    assert events == ["start", "ok", "end"]
