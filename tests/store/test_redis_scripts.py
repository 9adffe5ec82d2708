"""The scripts that run inside the server."""

from __future__ import annotations

import pytest
import redis

from proxy.store import redis_scripts
from proxy.store.redis_scripts import Script

SCRIPTS = {name: value for name, value in vars(redis_scripts).items() if isinstance(value, Script)}


@pytest.mark.redis
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_server_knows_a_script_by_our_digest(redis_url: str, name: str) -> None:
    """Every script compiles, and its digest is the one that the server gives it."""
    with redis.Redis.from_url(redis_url) as client:
        assert client.script_load(SCRIPTS[name].text) == SCRIPTS[name].digest


def test_every_file_is_a_script() -> None:
    """No text lies about unused."""
    names = {path.stem for path in redis_scripts._FOLDER.glob("*.lua")}
    assert names == {name.lower() for name in SCRIPTS} | {"prelude", "life"}
