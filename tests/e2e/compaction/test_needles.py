"""Needles at every depth of a long session: after several compactions the model gets each of them back by reading."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from msgspec import Struct

from tests.e2e.answer import Answer, Message
from tests.e2e.chat import Chat, assistant, result, user
from tests.e2e.compacting import BLOCK, MEDIUM, Model, messages_of, new_chat, rows, text_of
from tests.e2e.gateway import Client, Gateway, Upstream
from tests.e2e.model import Call, reads, refs, says
from tests.fakes.upstream import Received, Reply

pytestmark = pytest.mark.e2e
DEPTHS = (0.0, 0.02, 0.3, 0.5, 0.8, 0.98, 1.0)
SEED = 20


class Needle(Struct, frozen=True):
    """A fact that nobody can guess: what it is asked for by, and what must be found."""

    name: str
    value: str

    @property
    def line(self) -> str:
        """The fact as it stands in a text."""
        return f"{self.name} has the code {self.value}"


def _lines(needle: Needle, depth: float, count: int) -> str:
    """Return a text of so many lines with the needle among them."""
    lines = rows(f"hay {needle.name.lower()}", count).split("\n")
    lines.insert(round(depth * len(lines)), needle.line)
    return "\n".join(lines)


def _one_line(needle: Needle, depth: float, count: int) -> str:
    """Return the same as one long line."""
    return _lines(needle, depth, count).replace("\n", " ; ")


def _in_result(text: str, number: int) -> list[Message]:
    return [assistant(None, (f"c{number}", "read_file", "{}")), result(text, f"c{number}"), user(f"note {number}")]


def _in_one_of_several(text: str, number: int) -> list[Message]:
    calls = [(f"c{number}{part}", "search", "{}") for part in "abc"]
    answers = [result(text if part == "b" else rows(f"o{number}{part}", 3), f"c{number}{part}") for part in "abc"]
    return [assistant("I look", *calls), *answers]


def _in_input(text: str, number: int) -> list[Message]:
    call = (f"c{number}", "write_file", json.dumps({"path": f"f{number}.md", "edits": [{"new": text}]}))
    return [assistant(None, call), result("written", f"c{number}")]


def _in_user(text: str, number: int) -> list[Message]:
    return [assistant("ok"), user(text)]


def _in_parts(text: str, number: int) -> list[Message]:
    parts = [{"type": "text", "text": f"part {number}"}, {"type": "text", "text": text}]
    return [assistant("ok"), {"role": "user", "content": parts}]


def _in_assistant(text: str, number: int) -> list[Message]:
    return [assistant(text), user(f"note {number}")]


Place = Callable[[str, int], list[Message]]
Shape = Callable[[Needle, float, int], str]
KINDS: dict[str, tuple[Place, Shape, int]] = {
    "a small result": (_in_result, _lines, 12),
    "a middling result": (_in_result, _lines, 55),
    "a large result": (_in_result, _lines, 150),
    "a result of one line": (_in_result, _one_line, 150),
    "one of several results": (_in_one_of_several, _lines, 80),
    "a short input": (_in_input, _lines, 10),
    "a long input": (_in_input, _lines, 90),
    "an input of one line": (_in_input, _one_line, 90),
    "a user text": (_in_user, _lines, 6),
    "a long user text": (_in_user, _lines, 115),
    "a large user text": (_in_user, _lines, 200),
    "a part of a user text": (_in_parts, _lines, 200),
    "an assistant text": (_in_assistant, _lines, 20),
}


class Hidden(Struct, frozen=True):
    """Where a needle was put: its kind, its depth, and the text that holds it."""

    kind: str
    depth: float
    needle: Needle
    text: str


def _hide() -> Iterator[tuple[Hidden, list[Message]]]:
    """Yield needles of all kinds at all depths in a fixed random order, each with the messages that hold it."""
    chance = random.Random(SEED)
    places = [(kind, depth) for kind in KINDS for depth in DEPTHS]
    chance.shuffle(places)
    for number, (kind, depth) in enumerate(places):
        place, shape, count = KINDS[kind]
        needle = Needle(f"NEEDLE-{number}", f"{chance.getrandbits(48):012x}")
        text = shape(needle, depth, count)
        yield Hidden(kind, depth, needle, text), place(text, number)


class Session(NamedTuple):
    """A chat with needles in it."""

    chat: Chat
    hidden: list[Hidden]


class Reader:
    """A model that looks for a fact: it calls the reading tool, as often as it may, and says what it found."""

    def __init__(self, hidden: Hidden, reads_left: int, find: Callable[[Received, Hidden], Call]) -> None:
        self.hidden = hidden
        self._find = find
        self.reads_left = reads_left
        self.is_found = False
        self.pages: list[str] = []

    @property
    def place(self) -> str:
        """Where it should have looked."""
        return f"{self.hidden.kind} at {self.hidden.depth}"

    def __call__(self, received: Received) -> Reply:
        """Read once more, or answer."""
        messages = messages_of(received.body)
        if messages[-1]["role"] == "tool":
            self.pages.append(messages[-1]["content"])
        self.is_found = self.hidden.needle.value in text_of(received.body)
        if self.is_found or not self.reads_left:
            return says("found" if self.is_found else "lost")(received)
        self.reads_left -= 1
        return says("", self._next(received))(received)

    def _next(self, received: Received) -> Call:
        """Return the first read, or that of the row behind a hit that was cut."""
        hit = re.search(r"^(\d+): ", self.pages[-1], re.MULTILINE) if self.pages else None
        if hit is None:
            return self._find(received, self.hidden)
        return reads("history", offset=int(hit[1]), limit=2)


def by_history(_: Received, hidden: Hidden) -> Call:
    """Search the whole record by what is known of the fact."""
    return reads("history", pattern=f"{hidden.needle.name} has")


@pytest.fixture(scope="module")
def session(shared_gateway: Gateway, scripted: Upstream) -> Iterator[Session]:
    """Have the session with all needles in it; it goes through several compactions."""
    Model(scripted)
    with Client(shared_gateway, "sk-needles") as client:
        yield _session(client)


def _session(client: Client) -> Session:
    chat, hidden = new_chat(client, model=MEDIUM), []
    compactions = 0
    for item, messages in _hide():
        compactions = chat.ask(*messages).compaction.compactions
        hidden.append(item)
    for number in range(10):
        chat.ask(*_in_result(rows(f"end{number}", 20), 1000 + number))
    assert compactions >= 5
    return Session(chat, hidden)


def _branch(chat: Chat, question: str) -> Answer:
    """Ask something that the chat itself does not remember."""
    return chat.client.post(chat.body(messages=[*chat.messages, user(question)]), chat.headers)


def _ask(chat: Chat, model: Model, reader: Reader) -> bool:
    """Ask for a fact in a branch of the chat; say whether the model found it."""
    model.script.extend([reader] * 4)
    got = _branch(chat, f"What is the code of {reader.hidden.needle.name}?")
    model.script.clear()
    assert got.status == 200
    return got.message["content"] == "found" and reader.is_found


def test_every_needle_is_found_by_searching_the_history(session: Session, model: Model) -> None:
    """One read gets nearly every one of them, two get all; the client sees none of it."""
    chat, hidden = session
    readers = [Reader(item, 2, by_history) for item in hidden]
    lost = [reader for reader in readers if not _ask(chat, model, reader)]
    assert [reader.place for reader in lost] == []
    assert any(not reader.pages for reader in readers), "the newest are still in the request"
    twice = [reader.place for reader in readers if len(reader.pages) > 1]
    assert len(twice) <= 0.01 * len(hidden), twice


def test_every_text_that_left_is_found_by_its_ref(session: Session, model: Model) -> None:
    """Whatever ref stands in the request, in a stub, an input or the block, gives its needle in one read."""
    chat, hidden = session
    _branch(chat, "go on")
    holders: dict[str, str] = {}
    for ref in refs(model.last):
        original = chat.client.original(ref).decode()
        holders |= {h.needle.name: ref for h in hidden if h.needle.value in original}
    assert len(holders) >= 10

    def by_ref(_: Received, item: Hidden) -> Call:
        return reads(holders[item.needle.name], pattern=item.needle.name)

    for item in hidden:
        if item.needle.name in holders:
            assert _ask(chat, model, Reader(item, 1, by_ref)), item


def test_the_index_names_every_text_that_left(session: Session, model: Model) -> None:
    """Refs that the block folded away are in the index, page by page, and each gives its text, exactly."""
    chat, hidden = session
    pages: list[str] = []

    def pages_through(received: Received) -> Reply:
        messages = messages_of(received.body)
        if messages[-1]["role"] == "tool":
            pages.append(messages[-1]["content"])
        onward = re.search(r"next offset=(\d+)", pages[-1].split("\n", 1)[0]) if pages else None
        if pages and onward is None:
            return says("all")(received)
        return says("", reads("index", offset=int(onward[1]) if onward else 1))(received)

    while not pages or "next offset" in pages[-1].split("\n", 1)[0]:
        model.script.extend([pages_through] * 8)
        _branch(chat, f"list {len(pages)}")
        model.script.clear()
    stored = {chat.client.original(ref).decode() for ref in refs("\n".join(pages).encode())}
    must_leave = [h for h in hidden if h.kind in ("a large result", "a result of one line", "a large user text")]
    for item in must_leave:
        assert item.text in stored, f"{item.kind} at {item.depth}"


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_needles_are_found_when_the_client_has_trimmed_its_front(session: Session, model: Model, share: float) -> None:
    """What the client no longer sends is in the record: one search still finds it."""
    chat, hidden = session
    places = range(int(share * len(chat.messages)), len(chat.messages))
    cut = next(index for index in places if chat.messages[index]["role"] == "user")
    trimmed = Chat(chat.client, chat.messages[0], *chat.messages[cut:], **chat.fields)
    trimmed.headers = chat.headers
    readers = [Reader(item, 2, by_history) for item in hidden[::3]]
    assert [reader.place for reader in readers if not _ask(trimmed, model, reader)] == []


def test_the_session_was_compacted(session: Session, model: Model) -> None:
    """What the other tests look for is no longer in the request itself, for the most part."""
    chat, hidden = session
    _branch(chat, "go on")
    told = model.last.decode()
    assert BLOCK in text_of(model.last)
    assert sum(h.needle.value in told for h in hidden) < len(hidden) / 2
