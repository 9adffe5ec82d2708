"""Targets: base URLs joined with client paths, proxies by environment, certificate files."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.target import Reach, find_proxy, make_target

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://x/v1", "https://x/v1/chat/completions"),
        ("https://x/v1/", "https://x/v1/chat/completions"),
        ("https://x", "https://x/v1/chat/completions"),
        ("https://x/", "https://x/v1/chat/completions"),
        (" https://x:443/v1 ", "https://x/v1/chat/completions"),
        ("http://x:8000", "http://x:8000/v1/chat/completions"),
        ("http://x/openai/deployments/d", "http://x/openai/deployments/d/chat/completions"),
        ("https://x/v1beta/openai/", "https://x/v1beta/openai/chat/completions"),
        ("https://x/a%2Fb/v1", "https://x/a%2Fb/v1/chat/completions"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1/chat/completions"),
        ("https://BÜCHER.example/v1", "https://xn--bcher-kva.example/v1/chat/completions"),
    ],
)
def test_joining(base_url: str, url: str) -> None:
    """The base URL's path stands for the client's /v1; without one it is /v1."""
    assert make_target(base_url, Reach(), {}).url(CHAT) == url


@pytest.mark.parametrize(
    ("base_url", "raw_query", "url"),
    [
        ("https://x/v1", "a=%2F&b", "https://x/v1/models?a=%2F&b"),
        ("https://x/v1?api-version=1", "", "https://x/v1/models?api-version=1"),
        ("https://x/v1?api-version=1", "a=b", "https://x/v1/models?api-version=1&a=b"),
    ],
)
def test_queries(base_url: str, raw_query: str, url: str) -> None:
    """The client's query is appended as it is, after the one of the base URL."""
    assert make_target(base_url, Reach(), {}).url("/v1/models", raw_query) == url


@pytest.mark.parametrize(
    ("base_url", "said"),
    [
        ("api.openai.com/v1", "no http or https address"),
        ("ftp://x", "no http or https address"),
        ("https://", "no http or https address"),
        ("https://key@x/v1", "api_key"),
        ("https://x/v1#a", "fragment"),
        ("https://x/v 1", "blank"),
        ("https://x:99999/v1", "ort"),
        ("https://[x/v1", "upstreams.a.base_url"),
        ("https://" + "ü" * 70 + "/v1", "no host name"),
    ],
)
def test_wrong_base_urls(base_url: str, said: str) -> None:
    """A wrong base URL is refused with its key and what is wrong."""
    with pytest.raises(ConfigError, match=said) as raised:
        make_target(base_url, Reach(), {}, key="upstreams.a")
    assert "upstreams.a.base_url" in raised.value.message


def test_a_wrong_certificate_file(tmp_path: Path) -> None:
    """A certificate file that is missing or holds something else is refused with its key."""
    junk = tmp_path / "junk.pem"
    junk.write_text("nothing")
    for path in (junk, tmp_path / "missing.pem"):
        with pytest.raises(ConfigError, match=r"upstream\.ca_file: .*PEM"):
            make_target("https://x/v1", Reach(ca_file=str(path)), {})


class TestProxies:
    """Which proxy the environment names."""

    @pytest.mark.parametrize(
        ("environ", "proxy"),
        [
            ({}, None),
            ({"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
            ({"https_proxy": "http://p:1"}, "http://p:1"),
            ({"HTTPS_PROXY": "http://up:1", "https_proxy": "http://low:1"}, "http://up:1"),
            ({"HTTPS_PROXY": "p:3128"}, "http://p:3128"),
            ({"ALL_PROXY": "http://all:1"}, "http://all:1"),
            ({"ALL_PROXY": "http://all:1", "https_proxy": "http://p:1"}, "http://p:1"),
            ({"HTTP_PROXY": "http://p:1"}, None),
            ({"HTTPS_PROXY": " "}, None),
        ],
    )
    def test_variables(self, environ: dict[str, str], proxy: str | None) -> None:
        """The variable of the upstream's scheme counts, then the general one."""
        assert find_proxy("https://api.test", environ) == proxy

    @pytest.mark.parametrize(
        ("origin", "exceptions", "is_excepted"),
        [
            ("https://api.test", "api.test", True),
            ("https://api.test", "other.test, api.test", True),
            ("https://api.test", "*", True),
            ("https://a.api.test", "api.test", True),
            ("https://a.api.test", ".api.test", True),
            ("https://a.api.test", "*.api.test", True),
            ("https://notapi.test", "api.test", False),
            ("https://api.test", "API.TEST", True),
            ("https://api.test:8443", "api.test:8443", True),
            ("https://api.test:8443", "api.test:443", False),
            ("https://api.test", "api.test:443", True),
            ("https://10.1.2.3", "10.0.0.0/8", True),
            ("https://11.1.2.3", "10.0.0.0/8", False),
            ("https://10.1.2.3", "10.1.2.3", True),
            ("https://api.test", "10.0.0.0/8", False),
            ("https://[fd00::1]", "fd00::/8", True),
            ("https://[fd00::1]:1", "[fd00::1]:1", True),
            ("https://api.test", "", False),
            ("https://api.test", "x/y", False),
        ],
    )
    def test_exceptions(self, origin: str, exceptions: str, *, is_excepted: bool) -> None:
        """NO_PROXY holds names with their subdomains, addresses and networks, each with an optional port."""
        environ = {"HTTPS_PROXY": "http://p:1", "NO_PROXY": exceptions}
        assert (find_proxy(origin, environ) is None) == is_excepted

    @pytest.mark.parametrize("origin", ["http://127.0.0.1:1", "http://localhost", "http://[::1]:1"])
    def test_loopback(self, origin: str) -> None:
        """An upstream on this machine is asked directly."""
        assert find_proxy(origin, {"HTTP_PROXY": "http://p:1"}) is None

    @pytest.mark.parametrize("value", ["socks5://p:1", "http://", "ftp://p"])
    def test_others(self, value: str) -> None:
        """Proxies of another kind are refused with the variable's name."""
        with pytest.raises(ConfigError, match="https_proxy: only http"):
            find_proxy("https://api.test", {"https_proxy": value})
