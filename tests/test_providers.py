"""Who answers under a name."""

from __future__ import annotations

import pytest

from proxy.providers import Address, address_of, provider_of_host, providers_of_path


@pytest.mark.parametrize(
    ("host", "provider"),
    [
        ("api.openai.com", "openai"),
        ("us.api.openai.com", "openai"),
        ("mine.openai.azure.com", "azure"),
        ("API.Groq.com.", "groq"),
        ("bedrock-runtime.us-east-1.amazonaws.com", "bedrock"),
        ("notopenai.com", None),
        ("openai.com.example.org", None),
        ("localhost", None),
        ("127.0.0.1", None),
        ("", None),
    ],
)
def test_hosts_belong_to_providers_by_whole_labels(host: str, provider: str | None) -> None:
    """Only the end of a name counts, and only at a point."""
    assert provider_of_host(host) == provider


def test_folders_of_a_name_stand_for_providers() -> None:
    """The innermost one says most; those of hubs are translated."""
    assert list(providers_of_path("openrouter/google/gemini-x")) == ["gemini", "openrouter"]
    assert list(providers_of_path("gemini-x")) == []


def test_origins_are_taken_apart() -> None:
    """Port and place matter for local servers; an odd origin breaks nothing."""
    ollama = address_of("http://localhost:11434")
    assert (ollama.is_ollama, ollama.is_loopback) == (True, True)
    hosted = address_of("https://api.groq.com")
    assert (hosted, hosted.is_ollama, hosted.is_loopback) == (Address("api.groq.com", None), False, False)
    assert address_of("http://[::1]:8000").is_loopback
    assert address_of("http://[") == Address("", None)
