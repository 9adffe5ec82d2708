"""The parts are put together as the settings say."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from proxy.composition import InForce, Reload, open_service
from proxy.errors import ConfigError
from proxy.settings import Defaults, Server, Settings, Store, Upstream
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


def reloading(start: Loaded, *later: Loaded) -> tuple[Reload, InForce]:
    """Return a reload that reads one configuration after the other."""
    in_force, configurations = InForce(start), iter(later)
    return Reload(lambda: next(configurations), start, in_force), in_force


def test_a_file_that_is_gone_leaves_the_old_settings() -> None:
    """Nobody means to go to the default provider by moving a file; without one at the start there is none to miss."""
    start = Loaded(loaded().settings, {}, Path("ullage.toml"))
    other = loaded(defaults=Defaults(preset="deep"))
    with structlog.testing.capture_logs() as events:
        reload, in_force = reloading(start, other)
        reload()
    assert (events[0]["event"], in_force.settings) == ("reload_refused", start.settings)
    assert "put it back" in events[0]["error"]
    with structlog.testing.capture_logs() as events:
        reload, in_force = reloading(loaded(), other, Loaded(start.settings, {}, Path("ullage.toml")), other)
        for _ in range(3):
            reload()
    assert [event["event"] for event in events] == ["reloaded", "reloaded", "reload_refused"]
    assert in_force.settings == start.settings


def test_what_needs_a_restart_is_told() -> None:
    """Until it is restarted or the old value is back, every reload says so."""
    changed = loaded(server=Server(port=1, admin_key="k"), store=Store(url="memory:", record=False))
    with structlog.testing.capture_logs() as events:
        reload, in_force = reloading(loaded(), changed, loaded())
        reload()
        assert in_force.settings is changed.settings
        reload()
    assert [event["event"] for event in events] == ["restart_needed", "reloaded", "reloaded"]
    assert events[0]["changed"] == ["server.port", "store.record"]


def test_doubts_are_told_at_a_reload() -> None:
    """A variable or key that came with the new file may be misspelt, too."""
    with structlog.testing.capture_logs() as events:
        reloading(loaded(), Loaded(loaded().settings, {}, None, ("this is odd",)))[0]()
    assert events[0]["reason"] == "this is odd"
