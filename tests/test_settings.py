"""The values of the configuration, and what is looked up in them."""

from __future__ import annotations

import pytest

from proxy.settings import Model, Server, Settings, Store, Upstream, best_pattern


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-mini", "gpt-4o*"),
        ("gpt-5", "gpt-*"),
        ("qwen3:14b", "*"),
        ("o3", "o?"),
        ("GPT-4o", "*"),
    ],
)
def test_the_best_pattern(name: str, best: str) -> None:
    """The exact name beats a pattern, a longer pattern a shorter one."""
    assert best_pattern(name, ["*", "gpt-*", "gpt-4o*", "gpt-4o", "o?"]) == best


def test_no_pattern_fits() -> None:
    """Nothing matches, nothing is found."""
    assert best_pattern("m", ["x*"]) is None


def test_the_upstream_of_a_model() -> None:
    """Chosen by model over all upstreams together, `default` where nothing matches."""
    settings = Settings(
        upstream=Upstream(models=("gpt-*",)),
        upstreams={
            "local": Upstream(base_url="http://a", models=("qwen*", "gpt-oss*")),
            "other": Upstream(base_url="http://b", models=("qwen3-max",)),
        },
    )
    chosen = {m: settings.upstream_for(m) for m in ("gpt-4o", "gpt-oss-20b", "qwen2", "qwen3-max", "llama")}
    assert chosen == {
        "gpt-4o": "default",
        "gpt-oss-20b": "local",
        "qwen2": "local",
        "qwen3-max": "other",
        "llama": "default",
    }
    assert settings.upstream_named("local").base_url == "http://a/v1"
    assert settings.upstream_named("default") is settings.upstream


def test_the_window_of_a_model() -> None:
    """Found by the best pattern that says something; None where none does."""
    settings = Settings(models={"gpt-4o": Model(), "gpt-4o*": Model(window=1000), "*-mini": Model(window=2000)})
    assert settings.window_for("gpt-4o") == 1000
    assert settings.window_for("gpt-4o-mini") == 1000
    assert settings.window_for("m") is None


def test_defaults() -> None:
    """Without any configuration the gateway listens on loopback with the embedded store."""
    settings = Settings()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 4410)
    assert settings.upstream.base_url == "https://api.openai.com/v1"
    assert settings.store.urls == ("sqlite:///var/ullage.db",)
    assert settings.store.idle_ttl == 30 * 86_400
    assert settings.defaults.preset in settings.presets


def test_no_repr_shows_a_credential() -> None:
    """What ends up in a log or a traceback holds neither keys nor passwords."""
    settings = Settings(
        server=Server(admin_key="planted-1", secret="planted-2"),
        upstream=Upstream(api_key="planted-3"),
        store=Store(url=("redis://u:planted-4@host", "s3://bucket"), encryption_keys=("planted-5",)),
    )
    assert "planted" not in repr(settings)
    assert "redis://u:****@host" in repr(settings)


def test_one_store_or_several() -> None:
    """A single URL is a list of one."""
    assert Store(url="memory:").urls == ("memory:",)
    assert Store(url=("redis://h", "s3://b")).urls == ("redis://h", "s3://b")
