"""What a client asks of the gateway itself."""

from __future__ import annotations

import json

import pytest

from proxy.core.envelope import open_envelope
from proxy.directives import choose_preset, session_key
from proxy.exchange import Exchange
from proxy.headers import Headers
from proxy.settings import Settings


@pytest.mark.parametrize(
    ("headers", "metadata", "key"),
    [
        ([], None, None),
        ([(b"x-ullage-session", b"a"), (b"x-session-id", b"b")], {"session_id": "c"}, "a"),
        ([(b"x-session-id", b"b")], {"session_id": "c"}, "b"),
        ([], {"session_id": "c"}, "c"),
        ([(b"x-ullage-session", b" ")], {"session_id": 7}, None),
        ([], "odd", None),
        ([(b"x-ullage-session", "é".encode())], None, "é"),
        ([], {"session_id": "\ud800"}, "\\ud800"),
    ],
)
def test_where_the_session_key_comes_from(headers: Headers, metadata: object, key: str | None) -> None:
    """The header wins over the common one, that over the body; the same value is the same key."""
    exchange = Exchange(method="POST", path="/", raw_query=b"", headers=headers, peer="")
    body = json.dumps({"messages": [], "metadata": metadata}).encode()
    assert session_key(exchange, open_envelope(body)) == key


def test_the_preset_of_a_request() -> None:
    """The header chooses, else the default."""
    settings = Settings()
    plain = Exchange(method="POST", path="/", raw_query=b"", headers=[], peer="")
    assert choose_preset(plain, settings).name == "balanced"
    deep = Exchange(method="POST", path="/", raw_query=b"", headers=[(b"x-ullage-policy", b"deep")], peer="")
    assert choose_preset(deep, settings).name == "deep"
