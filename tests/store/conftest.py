"""What the tests of stores share: a server of the S3 protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.s3 import CREDENTIALS, S3Server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """Give a server, with the credential that it takes in the environment."""
    with pytest.MonkeyPatch.context() as environ, S3Server() as server:
        if server.endpoint:
            for name, value in CREDENTIALS.items():
                environ.setenv(name, value)
        yield server
