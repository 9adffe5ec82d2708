"""Digests, blocks, pairing by position and anchors of a history."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.envelope import open_envelope
from proxy.core.history import Block, FactsMemo, History, digest, text_bytes
from proxy.core.prefixes import Reader
from proxy.core.wire.chat import ChatAdapter

READER = Reader(ChatAdapter())


def history(*messages: dict[str, Any]) -> History:
    """The history of these messages."""
    return READER.read(open_envelope(json.dumps({"messages": messages}).encode()))


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: tuple[str, str]) -> dict[str, Any]:
    """An assistant message with calls (id, name)."""
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": "{}"}} for i, n in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}


def tool(call_id: str, text: str) -> dict[str, Any]:
    """An answer to a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def test_borders_of_pieces_count() -> None:
    """Pieces that join to the same bytes have different digests, and so have different keys."""
    assert digest(b"ab", b"c") != digest(b"a", b"bc")
    assert digest(b"a", key=b"k" * 16) != digest(b"a")


def test_lone_surrogates_have_bytes() -> None:
    """Texts that have no UTF-8 still have exact bytes."""
    assert text_bytes("\ud800") == b"\xed\xa0\x80"


@given(st.lists(st.text(max_size=4), min_size=1, max_size=8))
def test_chains_of_growing_histories_share_their_beginning(texts: list[str]) -> None:
    """The chain of a history is a prefix of the chain of the history it grows into."""
    messages = [user(t) for t in texts]
    whole = history(*messages)
    for length in range(len(texts)):
        part = history(*messages[:length])
        assert [part.prefix(b"r", k) for k in range(length + 1)] == [whole.prefix(b"r", k) for k in range(length + 1)]


def test_leading_system_messages_are_outside_the_chain() -> None:
    """A clock in the system prompt changes nothing about a history's identity; a later system message does."""
    one = history({"role": "system", "content": "12:00"}, user("x"))
    two = history({"role": "developer", "content": "12:01"}, user("x"))
    assert one.prefix(b"r", 1) == two.prefix(b"r", 1) != one.prefix(b"q", 1)
    assert one.opening == two.opening == history(user("x")).opening
    late = history(user("x"), {"role": "system", "content": "12:00"})
    assert late.leading == 0
    assert late.length == 2


def test_a_history_of_system_messages_has_no_opening() -> None:
    """Without a conversation there is nothing to tell it by."""
    lone = history({"role": "system", "content": "s"})
    assert (lone.opening, lone.length, lone.newest_blocks(8)) == (b"", 0, [])


def test_blocks_and_pairing_by_position() -> None:
    """Answers belong to the assistant message above them; repeated ids are told apart by place."""
    told = history(
        user("x"),
        assistant(None, ("c", "first"), ("d", "second")),
        tool("d", "2"),
        tool("c", "1"),
        assistant(None, ("c", "third")),
        tool("c", "3"),
        tool("stray", "?"),
    )
    assert told.newest_blocks(8) == [Block(1, 4), Block(4, 7)]
    assert told.newest_blocks(1) == [Block(4, 7)]
    assert [told.block_at(i) for i in (0, 1, 3, 6)] == [None, Block(1, 4), Block(1, 4), Block(4, 7)]
    assert [told.tool_of(i) for i in range(7)] == [None, None, "second", "first", None, "third", None]


def test_anchors_cover_a_block_and_the_one_before() -> None:
    """The same short answer after different work is another anchor; after the same work it is the same one."""
    work = [assistant(None, ("z", "f")), tool("z", "KEY-A"), user("go"), assistant("ok"), user("next")]
    other = [assistant(None, ("z", "f")), tool("z", "KEY-B"), *work[2:]]
    mine, theirs = history(user("x"), *work), history(user("x"), *other)
    assert not {d for d, _ in mine.anchors(b"k", 8)} & {d for d, _ in theirs.anchors(b"k", 8)}
    trimmed = history(user("clock 12:01"), *work, assistant("more"))
    assert [d for d, _ in trimmed.anchors(b"k", 8)][:1] == [d for d, _ in mine.anchors(b"k", 8)]
    assert [stop for _, stop in mine.anchors(b"k", 8)] == [5]


def test_a_lone_block_is_no_anchor() -> None:
    """Neither one answer nor one first step under another task identifies anybody."""
    assert history(user("x"), assistant("ok"), user("y")).anchors(b"k", 8) == []
    assert history(user("x"), assistant(None, ("z", "f")), tool("z", "r"), user("y")).anchors(b"k", 8) == []


def test_facts_are_made_once() -> None:
    """A known message is not parsed again."""
    memo = FactsMemo(ChatAdapter())
    raw = json.dumps(user("x")).encode()
    assert memo.look_up([raw])[0] is memo.look_up([raw, raw])[1]
