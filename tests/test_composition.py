"""The parts are put together as the settings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.composition import InForce, open_service
from proxy.errors import ConfigError
from proxy.settings import Server, Settings, Store, Upstream
from proxy.settings_loader import Loaded

pytestmark = pytest.mark.anyio


def loaded(**fields: object) -> Loaded:
    """Return settings with a store in memory."""
    return Loaded(Settings(**{"store": Store(url="memory:"), **fields}), {}, None)  # type: ignore[arg-type] # test data


def test_models_choose_their_upstream() -> None:
    """Patterns lead to the named upstream, everything else to the default one."""
    local = Upstream(base_url="http://127.0.0.1:8000", models=("qwen*",), api_key="k")
    in_force = InForce(loaded(upstreams={"local": local}))
    assert in_force.provider("qwen3").target.origin == "http://127.0.0.1:8000"
    assert in_force.provider("qwen3").api_key == "k"
    assert in_force.provider("gpt").target.origin == in_force.provider().target.origin == "https://api.openai.com"


def test_a_wrong_upstream_leaves_the_old_one_in_force() -> None:
    """Settings are taken whole or not at all."""
    in_force = InForce(loaded())
    before = in_force.settings
    broken = loaded(upstream=Upstream(base_url="http://127.0.0.1:8000", ca_file=str(Path(__file__))))
    with pytest.raises(ConfigError):
        in_force.take(broken.settings)
    assert in_force.settings is before
    assert in_force.provider().target.origin == "https://api.openai.com"


async def test_a_service_opens_and_lets_go(tmp_path: Path) -> None:
    """The store is there while the service is, and its file can be used afterwards."""
    file = tmp_path / "deep" / "ullage.db"
    async with open_service(loaded(store=Store(url=f"sqlite:///{file}"))) as service:
        assert not service.vitals.draining
        assert file.exists()
    async with open_service(loaded(store=Store(url=f"sqlite:///{file}"))):
        pass


async def test_a_configured_secret_of_any_length_is_taken() -> None:
    """A secret is a text of the operator, not a key of a certain size."""
    async with open_service(loaded(server=Server(secret="x" * 500))) as service:
        assert service.app is not None
