"""Images, audio and files cost by their size."""

from __future__ import annotations

import base64
import struct

import pytest

from proxy.core.media import IMAGE_TOKENS, media_tokens


def data_url(data: bytes) -> str:
    """Return the bytes as the address of an image."""
    return "data:image/x;base64," + base64.b64encode(data).decode()


def image(data: bytes, **fields: object) -> dict[str, object]:
    """Return a content part with an image."""
    return {"type": "image_url", "image_url": {"url": data_url(data), **fields}}


def png(width: int, height: int) -> bytes:
    """Return the start of a PNG."""
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + bytes(50_000)


def jpeg(width: int, height: int) -> bytes:
    """Return the start of a JPEG, with segments in front of its frame."""
    frame = b"\xff\xc2\0\x11\x08" + struct.pack(">HH", height, width)
    front = b"\xff\xd8\xff\xe1" + struct.pack(">H", 20_000) + bytes(19_998) + b"\xff\xff\xdb\0\x04ab"
    return front + frame + bytes(9_000)


def webp(kind: bytes, body: bytes) -> bytes:
    """Return the start of a WebP."""
    return b"RIFF\0\0\0\0WEBP" + kind + bytes(4) + body + bytes(99)


SIZED = {
    "png": png(1024, 768),
    "gif": b"GIF89a" + struct.pack("<HH", 1024, 768) + bytes(99),
    "jpeg": jpeg(1024, 768),
    "webp": webp(b"VP8 ", bytes(6) + struct.pack("<HH", 1024, 768)),
    "webp-lossless": webp(b"VP8L", b"\x2f" + struct.pack("<I", 1023 | 767 << 14)),
    "webp-extended": webp(b"VP8X", bytes(4) + (1023).to_bytes(3, "little") + (767).to_bytes(3, "little")),
}


@pytest.mark.parametrize("form", SIZED)
def test_an_image_costs_its_tiles(form: str) -> None:
    """1024 x 768 is four tiles in every format; low detail is the base."""
    assert media_tokens(image(SIZED[form])) == 85 + 4 * 170
    assert media_tokens(image(SIZED[form], detail="high")) == 85 + 4 * 170
    assert media_tokens(image(SIZED[form], detail="low")) == 85


@pytest.mark.parametrize(
    ("width", "height", "tiles"),
    [
        (1, 1, 1),
        (512, 512, 1),
        (513, 512, 2),
        (2048, 4096, 6),
        (4096, 4096, 4),
        (8192, 10, 4),
        (100_000, 1, 4),
    ],
)
def test_tiles(width: int, height: int, tiles: int) -> None:
    """Fit into 2048 x 2048, shorter side 768, tiles of 512."""
    assert media_tokens(image(png(width, height))) == 85 + 170 * tiles


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.test/a.png"}},
        {"type": "image_url", "image_url": "https://example.test/a.png"},
        image(b"\x89PNG" + bytes(1_500_000)),
        image(png(0, 0)),
        image(b"\xff\xd8\xff\xe0\0"),
        image(b"\xff\xd8" + b"\xff\xe0\0\x04ab" * 20_000),
        image(b""),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,é$%"}},
        {"type": "image_url", "image_url": {"url": 5}},
        {"type": "image_url"},
        {"type": "image_url", "image_url": None},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 400_000}},
    ],
)
def test_an_image_of_unknown_size_costs_a_constant(part: dict[str, object]) -> None:
    """Addresses, foreign formats and damaged data."""
    assert media_tokens(part) == IMAGE_TOKENS


def test_other_shapes_of_images() -> None:
    """The parts of the other two wire formats have their sizes read as well."""
    data = base64.b64encode(png(512, 512)).decode()
    assert media_tokens({"type": "image", "source": {"type": "base64", "data": data}}) == 85 + 170
    assert media_tokens({"type": "input_image", "image_url": data_url(png(512, 512)), "detail": "low"}) == 85


def test_audio_and_files_cost_by_size() -> None:
    """Ten tokens a second of sound, 1,500 for a page, within bounds."""
    wav = base64.b64encode(bytes(480_000)).decode()
    assert media_tokens({"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}) == 100
    assert media_tokens({"type": "input_audio", "input_audio": {"data": wav, "format": "mp3"}}) == 300
    assert media_tokens({"type": "input_audio"}) == 10
    assert media_tokens({"type": "file", "file": {"file_id": "file-1"}}) == 1_500
    assert media_tokens({"type": "file", "file": {"file_data": "A" * 500_000}}) == 6_000
    assert media_tokens({"type": "file", "file": {"file_data": "A" * 50_000_000}}) == 150_000


def test_parts_of_unknown_type_cost_little() -> None:
    """A small one next to nothing, a large one no more than an image."""
    assert media_tokens({"type": "cache_point", "ttl": "5m"}) < 10
    assert media_tokens({"type": "video", "frames": [["A" * 1_000_000]], "n": 1, "x": None}) == IMAGE_TOKENS
    assert media_tokens({}) == 0
