"""The gateway in a process of its own."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from proxy.demo.process import GatewayProcess, NotStarted

pytestmark = pytest.mark.e2e
NOWHERE = "http://127.0.0.1:9/v1"


def test_it_comes_back_on_the_same_port(tmp_path: Path) -> None:
    """A restart changes the process and nothing else, and ending it is exit code 0."""
    with GatewayProcess(tmp_path, NOWHERE) as gateway:
        before = (gateway.pid, gateway.url)
        assert httpx.get(f"{gateway.url}/livez", trust_env=False).status_code == 200
        gateway.restart()
        assert httpx.get(f"{before[1]}/livez", trust_env=False).status_code == 200
        assert gateway.pid != before[0]
        assert gateway.stop() == 0
        assert gateway.pid == 0
    assert (tmp_path / "ullage.db").is_file()


def test_what_went_wrong_is_told(tmp_path: Path) -> None:
    """A gateway that does not start leaves the end of its log in the error."""
    gateway = GatewayProcess(tmp_path, "no url")
    with pytest.raises(NotStarted, match="--upstream"):
        gateway.start()


def test_nothing_around_configures_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the user's own gateway, and proxies, do not reach it."""
    monkeypatch.setenv("ULLAGE_SERVER_PORT", "nonsense")
    monkeypatch.setenv("HTTPS_PROXY", "nonsense")
    with GatewayProcess(tmp_path, NOWHERE) as gateway:
        assert httpx.get(f"{gateway.url}/livez", trust_env=False).status_code == 200
