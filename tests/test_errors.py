"""Every error has what its answer needs."""

from __future__ import annotations

import json

import pytest

from proxy import errors
from proxy.errors import Conflict, ProxyError, TooLarge, error_body

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, ProxyError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_each_class_fixes_status_code_and_level(cls: type[ProxyError]) -> None:
    """Handlers need no conditions: the class says how it is answered and how loudly it is logged."""
    assert 400 <= cls.status < 600
    assert cls.code
    assert cls.level in ("debug", "info", "warning", "error")


def test_the_body_has_the_shape_that_sdks_read() -> None:
    """Message, type, param and code are there, and nothing else."""
    body = json.loads(error_body(TooLarge("too much", param="messages")))
    assert body == {"error": {"message": "too much", "type": "ullage_error", "param": "messages", "code": "too_large"}}
    assert json.loads(error_body(ProxyError("x"), "other"))["error"]["code"] == "other"


def test_a_conflict_tells_the_version() -> None:
    """Whoever lost the race knows how far the ledger got."""
    assert Conflict("later", version=7).version == 7
