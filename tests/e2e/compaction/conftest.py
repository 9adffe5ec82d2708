"""One gateway that compacts early for each module, and the model behind its upstream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.compacting import Model, SmallGateway
from tests.e2e.gateway import Gateway, Upstream


@pytest.fixture(scope="module")
def shared_gateway(scripted: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run a gateway that compacts early."""
    with SmallGateway(tmp_path_factory.mktemp("gateway"), scripted) as gateway:
        yield gateway


@pytest.fixture
def own_gateway(upstream: Upstream, tmp_path: Path) -> Iterator[SmallGateway]:
    """Run such a gateway for one test alone."""
    with SmallGateway(tmp_path, upstream) as gateway:
        yield gateway


@pytest.fixture
def model(upstream: Upstream) -> Model:
    """Give the model behind the upstream."""
    return Model(upstream)
