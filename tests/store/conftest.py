"""Servers for all tests of stores: of the S3 protocol, a Redis cluster; each starts when a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.s3 import CREDENTIALS, S3Server
from tests.store.redis_servers import Server, running_cluster


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """Give a server, with the credential that it takes in the environment."""
    with pytest.MonkeyPatch.context() as environ, S3Server() as server:
        if server.endpoint:
            for name, value in CREDENTIALS.items():
                environ.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[list[Server]]:
    """Give the nodes of a cluster that tests share."""
    with running_cluster() as servers:
        yield servers
