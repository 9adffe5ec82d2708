"""Random agent conversations, and a session without a store that serves them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from policies.offload_results import OffloadResults
from policies.offload_user_messages import OffloadUserMessages
from proxy.core.envelope import open_envelope
from proxy.core.history import History
from proxy.core.ledger import Ledger, Recognition, make_root
from proxy.core.plan import Plan, Planner, Stubs, Terms
from proxy.core.policy import Policy
from proxy.core.prefixes import Reader
from proxy.core.rewrite import Rewriter
from proxy.core.wire.chat import ChatAdapter
from proxy.core.wire.chat_tools import ChatTools, choose_name, look_at

SECRET = b"s" * 32
Message = dict[str, Any]


def byte_count(text: str) -> int:
    """A byte is a token: cheap, and a bound of every tokenizer."""
    return len(text.encode("utf-8", "surrogatepass"))


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Small texts, and large ones of several lines."""
    line = draw(st.text(st.characters(codec="utf-8"), max_size=30))
    return "\n".join([line] * draw(st.sampled_from([1, 1, 2, 40, 90])))


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """A user message, or an assistant message with all answers to its calls; call ids repeat on purpose."""
    if draw(st.booleans()):
        text = draw(texts())
        return [{"role": "user", "content": draw(st.sampled_from([text, [{"type": "text", "text": text}]]))}]
    calls = [f"c{k}" for k in range(draw(st.integers(0, 3)))]
    assistant: Message = {
        "role": "assistant",
        "content": draw(st.none() | texts()) if calls else draw(texts()),
    }
    if calls:
        assistant["tool_calls"] = [
            {"id": c, "type": "function", "function": {"name": "f", "arguments": "{}"}} for c in calls
        ]
    return [assistant, *({"role": "tool", "tool_call_id": c, "content": draw(texts())} for c in calls)]


@st.composite
def conversations(draw: st.DrawFn) -> list[list[Message]]:
    """Growing histories: each item adds a turn to the one before."""
    first: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": draw(texts())}]
    out = [first]
    for turn in draw(st.lists(turns(), max_size=6)):
        out.append([*out[-1], *turn])
    return out


CHAINS = st.builds(
    lambda limit, per_turn, head: (
        OffloadResults(over_tokens=limit, per_turn_tokens=per_turn, head_lines=head),
        OffloadUserMessages(over_tokens=limit, tail_lines=head),
    ),
    st.sampled_from([50, 300, 2000]),
    st.sampled_from([None, 100, 1500]),
    st.integers(0, 4),
)


class Session:
    """Serves histories of one session as the gateway would, with the ledger in memory."""

    def __init__(self, chain: tuple[Policy, ...]) -> None:
        adapter = ChatAdapter()
        stubs = Stubs(byte_count)
        self.chain = chain
        self.ledger = Ledger("ses")
        self.originals: dict[str, str] = {}
        self.refused: frozenset[str] = frozenset()
        self.room_tokens: int | None = None
        self._known: set[bytes] = set()
        self._reader = Reader(adapter, block_bytes=256)
        self._planner = Planner(adapter, SECRET, stubs)
        self._rewriter = Rewriter(adapter, ChatTools(), stubs, lambda *_: "")

    def history(self, messages: list[Message]) -> History:
        """The history of these messages."""
        return self._reader.read(open_envelope(body_of(messages, {})))

    def plan(self, messages: list[Message], fields: dict[str, Any]) -> Plan:
        """The plan for these messages on the present ledger."""
        history = self.history(messages)
        root = make_root(SECRET, "t", None, history.opening)
        known = next((k for k in range(history.length, 0, -1) if history.prefix(root, k) in self._known), 0)
        recognition = Recognition(self.ledger, known=history.leading + known, shift=0)
        situation = look_at(open_envelope(body_of(messages, fields)), takes_tools_with_json=False)
        terms = Terms(
            policies=self.chain,
            reader=None if situation.obstacle else choose_name(situation.names, self.ledger.reader),
            may_offload=situation.can_be_called,
            has_tools=situation.has_tools,
            refused=self.refused,
            room_tokens=self.room_tokens,
        )
        return self._planner.plan(history, recognition, root, terms)

    def serve(self, messages: list[Message], **fields: Any) -> dict[str, Any]:
        """Decide, write down, and return the body that goes upstream."""
        plan = self.plan(messages, fields)
        for fresh in plan.fresh:
            self.originals[fresh.entry.ref] = fresh.text
        self.ledger = self.ledger.extend(plan.entries)
        envelope = open_envelope(body_of(messages, fields))
        history = self._reader.read(envelope)
        root = make_root(SECRET, "t", None, history.opening)
        self._known.add(history.prefix(root, history.length))
        sent: dict[str, Any] = json.loads(self._rewriter.rewrite(envelope, history, plan))
        return sent


def body_of(messages: list[Message], fields: dict[str, Any]) -> bytes:
    """A request body."""
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
