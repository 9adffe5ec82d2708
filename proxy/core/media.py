"""Tokens of images, audio and files by their size, never by their base64.

The rules are those of the gpt-4o family; what other models make of a picture is learnt by calibration.
"""

from __future__ import annotations

import math
import struct
from binascii import a2b_base64
from collections.abc import Iterator, Mapping
from typing import Final

IMAGE_TOKENS: Final = 1_100
FILE_PAGE_TOKENS: Final = 1_500
_IMAGE_BASE_TOKENS: Final = 85  # the rule for tiles of the gpt-4o family; others are learnt by calibration
_IMAGE_TILE_TOKENS: Final = 170
_IMAGE_HEAD_CHARS: Final = 87_380  # of base64: the first 64 KiB, where a JPEG names its size
_AUDIO_TOKENS_PER_SECOND: Final = 10
_AUDIO_BYTES_PER_SECOND: Final = {"wav": 48_000, "pcm16": 48_000}
_AUDIO_BYTES_PER_SECOND_PACKED: Final = 16_000
_PAGE_BYTES: Final = 100_000
_PAGES_MOST: Final = 100


def media_tokens(part: Mapping[str, object]) -> int:
    """Return the tokens of a content part that is not text, by its size; base64 is never counted as text."""
    match part.get("type"):
        case "image_url" | "input_image" | "image":
            return _image_tokens(part)
        case "input_audio" | "audio":
            return _audio_tokens(part)
        case "file" | "input_file" | "document":
            size = sum(len(text) for text in _strings(part)) * 3 // 4
            return FILE_PAGE_TOKENS * max(1, min(_PAGES_MOST, -(-size // _PAGE_BYTES)))
    return min(IMAGE_TOKENS, sum(len(text) for text in _strings(part)) // 4)


def _strings(part: object) -> Iterator[str]:
    """Yield every string inside a JSON value."""
    stack = [part]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


def _audio_tokens(part: Mapping[str, object]) -> int:
    audio = part.get("input_audio")
    form = audio.get("format") if isinstance(audio, Mapping) else None
    size = sum(len(text) for text in _strings(part)) * 3 // 4
    rate = _AUDIO_BYTES_PER_SECOND.get(str(form), _AUDIO_BYTES_PER_SECOND_PACKED)
    return max(_AUDIO_TOKENS_PER_SECOND, size * _AUDIO_TOKENS_PER_SECOND // rate)


def _image_tokens(part: Mapping[str, object]) -> int:
    image = part.get("image_url")
    holder = image if isinstance(image, Mapping) else part
    if holder.get("detail") == "low":
        return _IMAGE_BASE_TOKENS
    longest = max(_strings(part), key=len, default="")
    size = _image_size(longest[longest.find(",") + 1 :][:_IMAGE_HEAD_CHARS])
    return IMAGE_TOKENS if size is None else _tile_tokens(*size)


def _tile_tokens(width: int, height: int) -> int:
    """Fit into 2048 x 2048, bring the shorter side to 768, pay for each tile of 512 x 512."""
    scale = min(1.0, 2048 / max(width, height))
    scale *= min(1.0, 768 / (min(width, height) * scale))
    tiles = math.ceil(width * scale / 512) * math.ceil(height * scale / 512)
    return _IMAGE_BASE_TOKENS + _IMAGE_TILE_TOKENS * tiles


def _image_size(head: str) -> tuple[int, int] | None:
    """Return width and height from the start of a PNG, GIF, WebP or JPEG in base64; None if not found."""
    try:
        data = a2b_base64(head[: len(head) // 4 * 4])
        size = _read_size(data)
    except (ValueError, IndexError, struct.error):
        return None
    return size if size and min(size) > 0 else None


def _read_size(data: bytes) -> tuple[int, int] | None:
    width = height = 0
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = struct.unpack_from(">II", data, 16)
    elif data.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", data, 6)
    elif data.startswith(b"\xff\xd8"):
        return _jpeg_size(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp_size(data)
    return width, height


def _webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Walk over the segments to the start of frame."""
    at = 2
    while data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:  # a fill byte
            at += 1
            continue
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        (length,) = struct.unpack_from(">H", data, at + 2)
        at += 2 + length
    return None
