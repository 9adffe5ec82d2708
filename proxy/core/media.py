"""Tokens of images and audio by their size, never by their base64."""

from __future__ import annotations

from typing import Any


def media_tokens(part: dict[str, Any]) -> int | None:
    return 1100 if part.get("type") in ("image_url", "input_audio", "file") else None
