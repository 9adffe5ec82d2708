"""An upstream that is the gateway itself is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.own_address import refuse_own_address
from proxy.settings import Server, Settings, Upstream
from proxy.settings_loader import Loaded, load


def loaded(server: Server, *urls: str) -> Loaded:
    """Return settings with a default upstream and further ones."""
    first, *others = (Upstream(base_url=url) for url in urls)
    named = {f"local{number}": other for number, other in enumerate(others)}
    return Loaded(Settings(server=server, upstream=first, upstreams=named), {}, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "::1", "localhost"])  # noqa: S104 - compared
@pytest.mark.parametrize("name", ["127.0.0.1", "0.0.0.0", "[::1]", "LOCALHOST", "localhost."])  # noqa: S104 - compared
def test_all_names_of_loopback_are_one(host: str, name: str) -> None:
    """Whatever it is called, it would answer itself."""
    with pytest.raises(ConfigError, match=r"upstream\.base_url: .* is this gateway itself"):
        refuse_own_address(loaded(Server(host=host), f"http://{name}:4410/v1"))


def test_an_upstream_of_some_models() -> None:
    """It is told by its own key."""
    with pytest.raises(ConfigError, match=r"upstreams\.local0\.base_url: ") as refused:
        refuse_own_address(loaded(Server(host="gw", port=80), "https://api.test", "http://gw"))
    assert refused.value.param == "upstreams.local0.base_url"


@pytest.mark.parametrize(
    ("server", "url"),
    [
        (Server(), "http://127.0.0.1:8000"),
        (Server(), "http://10.0.0.5:4410"),
        (Server(port=0), "http://127.0.0.1:8000"),
        (Server(port=443), "https://api.openai.com"),
    ],
)
def test_another_address_is_fine(server: Server, url: str) -> None:
    """Another port or host is another server."""
    refuse_own_address(loaded(server, url))


def test_the_variable_of_clients_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who exported it for the client reads what to do here."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"OPENAI_BASE_URL: upstream\.base_url: .*unset it here"):
        refuse_own_address(load(None, {"OPENAI_BASE_URL": "http://localhost:4410/v1"}))
