"""What errors of Redis mean."""

from __future__ import annotations

import pytest
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import (
    ConnectionError as Disconnected,
)

from proxy.errors import ConfigError, Conflict, Full, StoreError, Unavailable
from proxy.store.redis_errors import Refused, explain, lasting


@pytest.mark.parametrize(
    ("error", "kind", "what"),
    [
        (OutOfMemoryError("command not allowed", status_code="OOM"), Full, "maxmemory"),
        (ResponseError("Error running script: @user_script:2: -OOM command not allowed"), Full, "maxmemory"),
        (ReadOnlyError("You can't write", status_code="READONLY"), Unavailable, "replica"),
        (ResponseError("MISCONF Redis is configured to save"), Unavailable, "disk"),
        (ResponseError("NOREPLICAS Not enough"), Unavailable, "fewer replicas"),
        (AuthenticationError("", status_code="NOAUTH"), Unavailable, "wants a password"),
        (NoPermissionError("", status_code="NOPERM"), Unavailable, "allow it"),
        (ResponseError("WRONGTYPE Operation"), Refused, "refuses this: WRONGTYPE"),
        (Disconnected("Connection refused"), Unavailable, "cannot be reached: Connection refused"),
        (OSError(), Unavailable, "cannot be reached: OSError"),
        (Conflict("somebody else", version=3), Conflict, "somebody else"),
    ],
)
def test_what_an_error_means(error: Exception, kind: type[StoreError], what: str) -> None:
    """Each error becomes the one of the protocol that callers can act on, and says what to do."""
    meaning = explain(error)
    assert type(meaning) is kind
    assert what in meaning.message


def test_what_no_waiting_mends() -> None:
    """Wrong credentials stop a start, wherever among the causes they are named; a server that is away does not."""
    hidden = Disconnected("no connection")
    hidden.__cause__ = AuthenticationError("", status_code="WRONGPASS")
    found = lasting(hidden)
    assert isinstance(found, ConfigError)
    assert found.param == "store.url"
    assert "user or password" in found.message
    assert lasting(Disconnected("Connection refused")) is None
    assert lasting(OutOfMemoryError("", status_code="OOM")) is None
