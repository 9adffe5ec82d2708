"""What all tests share: the event loop they run on, how hard properties are tried, an upstream, a Redis server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.fakes.upstream import FakeUpstream
from tests.store.redis_servers import GIVEN, running

# Two busy cores make single examples slow, so time never decides. `make fuzz` tries a hundred times as hard.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fuzz", parent=settings.get_profile("default"), max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, as the gateway does."""
    return "asyncio"


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    """Give a scripted upstream that serves."""
    with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Give the URL of a server that tests share, each under its own prefix: one that was given, or one of our own."""
    given = os.environ.get(GIVEN)
    if given:
        yield given
        return
    with running() as server:
        yield server.url
