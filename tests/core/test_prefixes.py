"""What was read before is not read again, and nothing shows of that but the time it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.envelope import NotAnEnvelope, open_envelope
from proxy.core.history import Facts, History
from proxy.core.prefixes import BLOCK_BYTES, Reader
from proxy.core.wire.chat import ChatAdapter
from tests.core.test_history import assistant, tool, user

MESSAGES = st.one_of(
    st.builds(user, st.text(max_size=60)),
    st.builds(lambda t: {"role": "system", "content": t}, st.text(max_size=20)),
    st.builds(lambda t: assistant(t, ("c", "f")), st.text(max_size=30)),
    st.builds(lambda t: tool("c", t), st.text(st.characters(codec=None), max_size=60)),
)


class Counting(ChatAdapter):
    """Counts the messages that had to be parsed."""

    parsed = 0

    def facts(self, raw: bytes, key: bytes) -> Facts:
        """Count and parse."""
        self.parsed += 1
        return super().facts(raw, key)


def body(messages: list[dict[str, Any]], separator: str = ", ", before: str = "") -> bytes:
    """Return a request body in some spacing."""
    listed = separator.join(json.dumps(m) for m in messages)
    return ('{"model":"m"' + f',"messages":{before}[{before}{listed}{before}]' + "}").encode()


def seen(history: History) -> tuple[list[bytes], list[Facts], list[bytes], int]:
    """Return all that is visible of a history."""
    digests = [history.prefix(b"root", n) for n in range(history.length + 1)]
    return list(history.messages), list(history.facts), digests, history.messages.size_bytes


@given(
    st.lists(MESSAGES, max_size=12),
    st.lists(st.integers(0, 12), max_size=5),
    st.sampled_from([",", " , ", ",\n"]),
    st.sampled_from(["", " "]),
)
def test_what_is_known_never_shows(
    messages: list[dict[str, Any]], earlier: list[int], separator: str, before: str
) -> None:
    """Whatever bodies were read before, a body is read as if it were the first."""
    fresh = seen(Reader(ChatAdapter(), block_bytes=32).read(open_envelope(body(messages, separator, before))))
    reader = Reader(ChatAdapter(), block_bytes=32)
    for length in earlier:
        reader.read(open_envelope(body(messages[:length], separator, before)))
    assert seen(reader.read(open_envelope(body(messages, separator, before)))) == fresh
    assert seen(reader.read(open_envelope(body(messages, separator, before)))) == fresh
    assert fresh[0] == [json.dumps(m).encode() for m in messages]


def test_a_growing_history_is_read_from_where_it_was_left() -> None:
    """Only what is new, and the rest of the last block, is taken apart."""
    adapter = Counting()
    reader = Reader(adapter)
    messages = [user(f"{i} " + "x" * 1000) for i in range(100)]
    reader.read(open_envelope(body(messages[:90])))
    reader._facts._memo = type(reader._facts._memo)(1)  # the other memo would hide what is read
    adapter.parsed = 0
    history = reader.read(open_envelope(body(messages)))
    assert len(history) == 100
    assert adapter.parsed <= 10 + BLOCK_BYTES // 1000


def test_other_beginnings_are_other_bodies() -> None:
    """One byte at the start makes everything behind it unknown."""
    reader = Reader(ChatAdapter(), block_bytes=64)
    told = [user("a" * 500), user("b" * 500)]
    reader.read(open_envelope(body(told)))
    changed = [user("A" + "a" * 499), *told[1:]]
    history = reader.read(open_envelope(body(changed)))
    assert history.messages[0] == json.dumps(changed[0]).encode()
    assert history.facts[0] != reader.read(open_envelope(body(told))).facts[0]


def test_spans_lie_where_the_messages_are() -> None:
    """Places are those of this body, whatever comes in front of its list."""
    reader = Reader(ChatAdapter(), block_bytes=32)
    told = [user("a" * 100), user("b" * 100)]
    reader.read(open_envelope(body(told)))
    moved = b'{"temperature": 1.0, ' + body(told)[1:]
    history = reader.read(open_envelope(moved))
    for index, message in enumerate(told):
        start, stop = history.messages.span(index)
        assert moved[start:stop] == json.dumps(message).encode()


def test_lists_that_cannot_be_split_are_refused() -> None:
    """What is no JSON list behind its bracket is no envelope."""
    with pytest.raises(NotAnEnvelope):
        Reader(ChatAdapter()).read(open_envelope(b'{"messages":[' + b"[" * 5000 + b"]" * 5000 + b"]}"))


def test_the_match_digest_of_one_message() -> None:
    """It is the one that the message has in a history."""
    reader = Reader(ChatAdapter())
    history = reader.read(open_envelope(body([user("x")])))
    assert reader.match_of(b'{"content": "x", "role": "user"}') == history.facts[0].match
