"""Addresses as people write them: base URLs of providers, URLs with passwords."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

MASK = "****"
OPENAI_URL = "https://api.openai.com/v1"
_PASSWORD_OPTION = re.compile(r"([?&][a-z_]*password=)[^&#]*")
_ENDPOINTS = (["chat", "completions"], ["responses"], ["messages"])


def normalise_base_url(url: str) -> str:
    """Return the base URL in the form that an OpenAI client would be given: no final slash, nothing twice.

    What people paste is accepted: a bare host (its `/v1` is added), `/v1/`, `/v1/v1`, the address of an
    endpoint. Another path stays, since it may stand for `/v1`; so does what is no URL, which `target` refuses.
    """
    parts = urlsplit(url.strip())
    if not parts.hostname:
        return url
    segments = [segment for segment in parts.path.split("/") if segment]
    for endpoint in _ENDPOINTS:
        if segments[-len(endpoint) :] == endpoint:
            del segments[-len(endpoint) :]
    while segments[-2:] == ["v1", "v1"]:
        del segments[-1]
    return urlunsplit(parts._replace(path="/" + ("/".join(segments) or "v1")))


def mask_url(url: str) -> str:
    """Return the URL with its password hidden, and those among its options."""
    url = _PASSWORD_OPTION.sub(rf"\1{MASK}", url)
    try:
        password = urlsplit(url).password
    except ValueError:
        return url
    return url.replace(f":{password}@", f":{MASK}@") if password else url
