"""Exact tokens of messages, each counted once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.core.envelope import open_envelope
from proxy.core.history import History
from proxy.core.prefixes import Reader
from proxy.core.wire.chat import ChatAdapter
from proxy.counting import Counter
from proxy.sizes import Sizes
from tests.core.test_media import image, png

pytestmark = pytest.mark.anyio
COUNTER = Counter()
OVERHEAD = 4  # of each message
TEXT = "Der Rest ist Schweigen. " * 40


class Noting(Counter):
    """A counter that keeps what it was asked to count."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    async def count_large(self, texts: Sequence[str]) -> list[int]:
        """Keep the texts and count them."""
        self.seen += texts
        return await super().count_large(texts)


def history(*messages: dict[str, Any], escapes: bool = True) -> History:
    """The history of these messages."""
    body = json.dumps({"model": "m", "messages": messages}, ensure_ascii=escapes).encode()
    return Reader(ChatAdapter()).read(open_envelope(body))


def sizes(counter: Counter = COUNTER) -> Sizes:
    """Sizes of Chat messages."""
    return Sizes(ChatAdapter(), counter)


def calling(name: str, arguments: object) -> dict[str, Any]:
    """An assistant message with a call."""
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def part(text: str) -> dict[str, str]:
    """A part that is text."""
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("message", "texts", "media"),
    [
        ({"role": "user", "content": TEXT}, [TEXT], 0),
        ({"role": "user", "content": ""}, [""], 0),
        ({"role": "assistant", "content": None}, [], 0),
        ({"role": "system", "content": [part(TEXT), part("b")]}, [TEXT, "b"], 0),
        ({"role": "tool", "tool_call_id": "c1", "content": TEXT}, [TEXT], 0),
        (calling("write_file", json.dumps({"text": TEXT})), ["write_file", json.dumps({"text": TEXT})], 0),
        ({"role": "assistant", "content": "a", "reasoning_content": TEXT}, ["a", TEXT], 0),
        ({"role": "user", "content": [part("see"), image(png(1024, 768))]}, ["see"], 85 + 170 * 4),
        ({"role": "user", "content": [image(png(512, 512)), image(png(64, 64), detail="low")]}, [], 85 * 2 + 170),
    ],
    ids=["text", "empty", "null", "parts", "result", "call", "reasoning", "image", "images"],
)
async def test_all_that_a_model_reads_is_counted(message: dict[str, Any], texts: list[str], media: int) -> None:
    """Texts by their tokens, calls by name and arguments, images by their size and not by their base64."""
    expected = OVERHEAD + media + sum(map(COUNTER.count, texts))
    raw = json.dumps(message).encode()
    assert await sizes().measure(history(message)) == [expected]
    assert await sizes().measure_raw([raw, raw]) == 2 * expected


async def test_sizes_keep_to_their_messages() -> None:
    """Messages with no, one and several texts in between shift nothing."""
    told: list[dict[str, Any]] = [
        {"role": "user", "content": [part("one"), part(TEXT)]},
        {"role": "assistant", "content": None},
        calling("f", "{}"),
        {"role": "tool", "tool_call_id": "c1", "content": TEXT * 2},
        {"role": "user", "content": "two"},
    ]
    alone = [(await sizes().measure(history(message)))[0] for message in told]
    assert await sizes().measure(history(*told)) == alone
    assert len(set(alone)) == 5
    assert await sizes().measure_raw([json.dumps(message).encode() for message in told]) == sum(alone)


async def test_escapes_of_json_are_no_tokens() -> None:
    """The same text costs the same, however it is spelt."""
    message = {"role": "user", "content": "Дальше — тишина.\n" * 40}
    escaped, plain = history(message), history(message, escapes=False)
    assert escaped.messages[0] != plain.messages[0]
    assert await sizes().measure(escaped) == await sizes().measure(plain)


async def test_a_message_is_counted_once() -> None:
    """A history that grows costs what is new in it, and equal messages are one."""
    counter = Noting()
    measured = sizes(counter)
    told = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "second"}]
    before = await measured.measure(history(*told))
    assert counter.seen == ["first", "second"]
    after = await measured.measure(history(*told, {"role": "user", "content": TEXT}, told[1]))
    assert counter.seen == ["first", "second", TEXT]
    assert after == [*before, OVERHEAD + COUNTER.count(TEXT), before[1]]
    assert await measured.measure(history(*told)) == before
    assert counter.seen == ["first", "second", TEXT]


async def test_other_bytes_are_another_message() -> None:
    """The memo knows messages by all of their bytes."""
    measured = sizes()
    (short,) = await measured.measure(history({"role": "user", "content": "a"}))
    (long,) = await measured.measure(history({"role": "user", "content": "a " * 50}))
    assert (short, long) == (OVERHEAD + 1, OVERHEAD + COUNTER.count("a " * 50))


async def test_nothing_has_no_size() -> None:
    """No message, no tokens."""
    assert await sizes().measure(history()) == []
    assert await sizes().measure_raw([]) == 0


@pytest.mark.parametrize("raw", [b"null", b"[]", b'{"content": 5}', b'{"role": "user", "content": [7, null]}'])
async def test_odd_messages_have_a_size(raw: bytes) -> None:
    """What is no message of the format is not counted and breaks nothing."""
    assert await sizes().measure_raw([raw]) == OVERHEAD
