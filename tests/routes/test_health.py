"""Health answers: about this process and its store, never by asking a model."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from proxy import __version__
from proxy.app import create_app
from proxy.errors import Unavailable
from proxy.routes.health import store_problem
from proxy.vitals import Vitals
from tests.fakes.serving import parts, serving
from tests.fakes.upstream import FakeUpstream, body

KEY = {"authorization": "Bearer k"}


class Broken:
    """A store that cannot be reached."""

    async def ping(self) -> None:
        """Fail."""
        message = "The store does not answer."
        raise Unavailable(message)


class Hanging:
    """A store that never answers."""

    async def ping(self) -> None:
        """Wait for ever."""
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    "path", ["/livez", "/readyz", "/health", "/health/liveliness", "/health/liveness", "/health/readiness"]
)
def test_a_healthy_process(fake: FakeUpstream, path: str) -> None:
    """All of them are 200 without a credential, and no upstream is asked."""
    with serving(create_app(parts(fake.url))) as url:
        response = httpx.get(url + path)
    assert (response.status_code, response.json()["status"]) == (200, "ok")
    assert not fake.received


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
def test_asking_for_the_head_alone(fake: FakeUpstream, path: str) -> None:
    """Some monitors send HEAD: it has the status of GET and no body."""
    with serving(create_app(parts(fake.url))) as url:
        response = httpx.head(url + path)
    assert (response.status_code, response.content) == (200, b"")


def test_draining(fake: FakeUpstream) -> None:
    """A draining process is alive but not ready, and its answers close their connections."""
    vitals = Vitals()
    with serving(create_app(parts(fake.url, vitals=vitals)), vitals) as url:
        vitals.draining = True
        assert httpx.get(url + "/livez").status_code == 200
        ready = httpx.get(url + "/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        served = httpx.post(url + "/v1/chat/completions", content=b"{}", headers=KEY)
        assert (served.status_code, served.headers["connection"]) == (200, "close")


@pytest.mark.anyio
async def test_a_store_that_hangs() -> None:
    """A store that does not answer in time is as good as none."""
    assert await store_problem(Hanging(), 0.05) == "The store does not answer within 0.05 s."


def test_no_store(fake: FakeUpstream) -> None:
    """Without a store the process is not ready, but serves."""
    with serving(create_app(parts(fake.url, store=Broken()))) as url:
        assert httpx.get(url + "/readyz").status_code == 503
        report = httpx.get(url + "/health")
        assert (report.status_code, report.json()["status"]) == (200, "degraded")
        assert report.json()["store"]["message"].startswith("The store does not answer")
        assert httpx.post(url + "/v1/chat/completions", content=b"{}", headers=KEY).status_code == 200


def test_the_report(fake: FakeUpstream) -> None:
    """The report names version, store and how each upstream answered last."""
    fake.queue(body(b"", 429))
    with serving(create_app(parts(fake.url))) as url:
        httpx.get(url + "/v1/models", headers=KEY)
        report = httpx.get(url + "/health").json()
    (upstream,) = report["upstreams"]
    assert (report["status"], report["version"], report["store"]["status"]) == ("ok", __version__, "ok")
    assert (upstream["origin"], upstream["status"]) == (fake.url.removesuffix("/v1"), 429)
    assert upstream["at"].endswith("Z")


def test_an_upstream_that_is_down() -> None:
    """An upstream that could not be reached is reported, and the process stays ready."""
    with serving(create_app(parts("http://127.0.0.1:9/v1"))) as url:
        httpx.get(url + "/v1/models", headers=KEY)
        assert httpx.get(url + "/health").json()["upstreams"][0]["code"] == "upstream_unreachable"
        assert httpx.get(url + "/readyz").status_code == 200
