"""One gateway process for each module, one credential, and so one tenant, for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.gateway import Client, Gateway, Upstream

_numbers = itertools.count(1)
NewClient = Callable[[], Client]


@pytest.fixture(scope="module")
def scripted() -> Iterator[Upstream]:
    """Give the upstream that a module shares."""
    with Upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def shared_gateway(scripted: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run the gateway that a module shares."""
    with Gateway(tmp_path_factory.mktemp("gateway"), scripted) as gateway:
        yield gateway


@pytest.fixture
def upstream(scripted: Upstream) -> Upstream:
    """Give the upstream without a memory of other tests."""
    scripted.forget()
    return scripted


@pytest.fixture
def gateway(shared_gateway: Gateway, upstream: Upstream) -> Gateway:
    """Give the gateway that a module shares, in front of an upstream without memory."""
    return shared_gateway


@pytest.fixture
def new_client(gateway: Gateway) -> Iterator[NewClient]:
    """Make clients, each a tenant of its own."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Client(gateway, f"sk-{next(_numbers)}"))


@pytest.fixture
def client(new_client: NewClient) -> Client:
    """Give a client that no other test has been."""
    return new_client()


@pytest.fixture
def own_gateway(upstream: Upstream, tmp_path: Path) -> Iterator[Gateway]:
    """Run a gateway for one test, which may do to it what it likes."""
    with Gateway(tmp_path, upstream) as gateway:
        yield gateway


@pytest.fixture
def own_client(own_gateway: Gateway) -> Iterator[Client]:
    """Give a client of the test's own gateway."""
    with Client(own_gateway, f"sk-{next(_numbers)}") as client:
        yield client
