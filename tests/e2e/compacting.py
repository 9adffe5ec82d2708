"""A gateway with low triggers, so that a chat of some dozen turns is compacted, and a model that writes summaries."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from proxy.core.prompt_text import prompt_texts
from proxy.counting import Counter
from tests.e2e.answer import Message
from tests.e2e.chat import Chat, assistant, result, system, user
from tests.e2e.gateway import Client, Gateway, Upstream
from tests.e2e.model import Round, raw_messages, says
from tests.e2e.requests import Request
from tests.fakes.upstream import Received, Reply, Scripted

SMALL = "small"  # a model with a small window
WINDOW_TOKENS = 6000
TRIGGER_TOKENS, LIMIT_TOKENS, TARGET_TOKENS = 3000, 5100, 1200
MEDIUM, MEDIUM_TOKENS = "medium", 16_000  # one in which more may stand than is left by a compaction
BRIEF, BRIEF_TOKENS = "brief", 4000  # another model, for summaries
INPUT_CHARACTERS = 600  # of an input that may stay
RESULT_TOKENS = 600  # of a result that stays when it comes
KEEP_STEPS = 2
KEPT_STEPS = (0, 1, 2, 3, 4, 6)  # there is a preset `keep3`
WAIT_SECONDS = 1.5
BLOCK = "<earlier-turns "
SUMMARY = "## Intent\nTo count rows.\n## Decisions\nNone.\n## Artifacts\nNone.\n## Next steps\nGo on counting."
_SAID_BY_DEFAULT = Round().prompt_tokens
_COUNTER = Counter()
_INSTRUCTIONS = "record of an AI agent's work"
_CONFIG = f"""
[server]
drain_seconds = 2
keepalive_seconds = 1

[models."{SMALL}*"]
window = {WINDOW_TOKENS}

[models.{MEDIUM}]
window = {MEDIUM_TOKENS}

[models.{BRIEF}]
window = {BRIEF_TOKENS}

[defaults]
preset = "mechanical"

[presets.mechanical]
trigger = {TRIGGER_TOKENS}
limit = "85%"
target = {TARGET_TOKENS}
read_tokens = 2000
rounds = 4
[presets.mechanical.offload_results]
over_tokens = {RESULT_TOKENS}
head_lines = 2
tail_lines = 1
[presets.mechanical.offload_user_messages]
over_tokens = 1500
head_lines = 2
tail_lines = 1
[presets.mechanical.truncate_inputs]
over_chars = {INPUT_CHARACTERS}
[presets.mechanical.summarise_history]
strategy = "mechanical"
keep_steps = {KEEP_STEPS}

[presets.told]
extends = "mechanical"
[presets.told.summarise_history]
strategy = "summarise"
wait_seconds = {WAIT_SECONDS}

[presets.roomy]
extends = "mechanical"
trigger = "50%"
target = "10%"

[presets.roomy-told]
extends = "told"
trigger = "50%"
target = "10%"

[presets.other]
extends = "told"
[presets.other.summarise_history]
model = "{BRIEF}"

[presets.inputs]
extends = "mechanical"
summarise_history = false

[presets.plain]
[presets.plain.offload_results]
over_tokens = {RESULT_TOKENS}
"""
_KEEPING = """
[presets.keep{steps}]
extends = "mechanical"
[presets.keep{steps}.summarise_history]
keep_steps = {steps}
"""


class SmallGateway(Gateway):
    """One `ullage serve` that compacts early."""

    def __init__(self, folder: Path, upstream: Upstream, shared_store: Path | None = None) -> None:
        super().__init__(folder, upstream, shared_store)
        keeping = [_KEEPING.format(steps=steps) for steps in KEPT_STEPS]
        (folder / "small.toml").write_text("\n".join((_CONFIG, *keeping)))

    def wait_logged(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the log about an event, as soon as there is one; raises AssertionError otherwise."""
        for _ in range(200):
            if lines := [line for line in self.logged if line["event"] == event]:
                return lines
            time.sleep(0.02)
        raise AssertionError(f"no {event} in {self.log()}")


class Model:
    """Answers chats by a script, "ok" when it is at its end, and requests for summaries apart from them."""

    def __init__(self, upstream: Upstream) -> None:
        self.chats: list[Received] = []
        self.summaries: list[Received] = []
        self.script: deque[Scripted] = deque()
        self.tell: Scripted = says(SUMMARY)
        upstream.otherwise = self

    def __call__(self, received: Received) -> Reply:
        """Reply to a request."""
        if is_for_a_summary(received.body):
            self.summaries.append(received)
            return _played(self.tell, received)
        self.chats.append(received)
        return _played(self.script.popleft() if self.script else says("ok"), received)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the chats so far."""
        return [received.body for received in self.chats]

    @property
    def last(self) -> bytes:
        """The newest of them."""
        return self.chats[-1].body


def _played(scripted: Scripted, received: Received) -> Reply:
    if isinstance(scripted, Reply):
        return scripted
    if isinstance(scripted, Round) and scripted.prompt_tokens == _SAID_BY_DEFAULT:
        # Sizes are learnt from reports, so a made-up one would move the triggers.
        scripted = msgspec.structs.replace(scripted, prompt_tokens=0)
    return scripted(received)


def is_for_a_summary(body: bytes) -> bool:
    """Say whether the gateway asks for a summary; where its instructions stand is its own affair."""
    messages = json.loads(body)["messages"]
    ends = messages[:1] + messages[-1:]
    return any(_INSTRUCTIONS in text for message in ends for text in texts_of(message))


def texts_of(message: Message) -> list[str]:
    """Return the texts of a message's content."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or [] if part.get("type") == "text"]


def text_of(body: bytes) -> str:
    """Return everything that the messages of a request say, one text behind the other."""
    return "\n".join(text for message in messages_of(body) for text in texts_of(message))


def messages_of(body: bytes) -> list[Message]:
    """Return the messages of a request."""
    return [json.loads(raw) for raw in raw_messages(body)]


def users_of(body: bytes) -> list[str]:
    """Return what the user messages of a request say."""
    return ["\n".join(texts_of(m)) for m in messages_of(body) if m["role"] == "user"]


def tokens_of(body: bytes) -> int:
    """Return the tokens of everything in a request that a model reads."""
    return _COUNTER.count("\n".join(prompt_texts(body)))


def looked_at(body: bytes) -> Request:
    """Return a request written without blanks, for the checks of what a provider would refuse."""
    return Request(json.dumps(json.loads(body), separators=(",", ":")).encode())


def rows(word: str, count: int = 8) -> str:
    """Return a text of about ten tokens a line; no two words give equal lines."""
    return "\n".join(f"{word} line {i:05d} value={i * 37 % 1009}" for i in range(count))


def turn(number: int, lines: int = 8, word: str = "r") -> list[Message]:
    """Return a call with its answer, and what the user says to it."""
    call = (f"c{number}", "read_file", json.dumps({"path": f"src/{word}{number}.py"}))
    return [assistant("", call), result(rows(f"{word}{number}", lines), f"c{number}"), user(f"note {number}")]


def talk(turns: int, lines: int = 8, word: str = "r") -> list[Message]:
    """Return a history of so many turns, which ends with the user; another word gives another one."""
    start = [system("rules"), user(f"the goal: count all rows of {word}")]
    return [*start, *(m for number in range(turns) for m in turn(number, lines, word))]


def grow(chat: Chat, turns: int, lines: int = 8) -> Iterator[int]:
    """Let a chat go on for so many turns, one request each; yield the number of each after its request."""
    for number in range(turns):
        made = turn(number, lines)
        chat.ask(*made)
        yield number


def new_chat(client: Client, *messages: Message, preset: str = "mechanical", **fields: Any) -> Chat:
    """Return a chat with the model of a small window, under a preset."""
    opening = messages or (system("rules"), user("the goal: count all rows"))
    chat = Chat(client, *opening, **{"model": SMALL, **fields})
    chat.headers["x-ullage-policy"] = preset
    return chat
