"""Base URLs and passwords in URLs."""

from __future__ import annotations

import pytest

from proxy.addresses import OPENAI_URL, mask_url, normalise_base_url


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com",
        "https://api.openai.com/",
        "https://api.openai.com/v1",
        "https://api.openai.com/v1/",
        "https://api.openai.com/v1/v1",
        "https://api.openai.com//v1//",
        "https://api.openai.com/v1/chat/completions",
        " https://api.openai.com/v1/responses ",
    ],
)
def test_every_form_that_people_paste_is_one_base_url(url: str) -> None:
    """With or without `/v1`, a final slash or an endpoint, it is the same provider."""
    assert normalise_base_url(url) == OPENAI_URL


@pytest.mark.parametrize(
    "url",
    [
        "https://openrouter.ai/api/v1",
        "https://host/v1beta/openai",
        "http://x/openai/deployments/d?api-version=2026-01-01",
        "http://[::1]:8000/v1",
        "localhost:8000/v1",
    ],
)
def test_other_paths_and_what_is_no_url_stay(url: str) -> None:
    """A path may stand for `/v1`, so it is not touched; nor is what somebody else must refuse."""
    assert normalise_base_url(url) == url


def test_normalising_twice_changes_nothing() -> None:
    """The normal form is its own normal form."""
    assert normalise_base_url(normalise_base_url("http://h:1/x/")) == "http://h:1/x"


def test_passwords_in_urls_are_hidden() -> None:
    """The password goes, all else stays; a URL without one is not changed."""
    assert mask_url("redis://user:s3cret@host:6379/0") == "redis://user:****@host:6379/0"
    sentinels = "redis+sentinel://:s3cret@a:1,b/main?sentinel_username=u&sentinel_password=t0p&prefix=p"
    hidden = "redis+sentinel://:****@a:1,b/main?sentinel_username=u&sentinel_password=****&prefix=p"
    assert mask_url(sentinels) == hidden
    assert mask_url("sqlite:///var/ullage.db") == "sqlite:///var/ullage.db"
    assert mask_url("http://[broken") == "http://[broken"
