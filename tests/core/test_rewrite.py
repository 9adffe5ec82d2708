"""Plans are carried out on bytes: what no edit touches stays as it came."""

from __future__ import annotations

import json

import msgspec

from proxy.core.envelope import open_envelope
from proxy.core.ledger import HiddenTurn, Ledger, Recognition
from proxy.core.plan import Plan, Stubs
from proxy.core.prefixes import Reader
from proxy.core.rewrite import Rewriter, append_messages
from proxy.core.wire.chat import ChatAdapter
from proxy.core.wire.chat_tools import ChatTools
from tests.core.conversations import byte_count
from tests.core.test_ledger import offloaded

ADAPTER = ChatAdapter()
ODD = (
    b'{"temperature":1.0,"messages":[ {"content":"x \\u00e9", "role":"user","zz":{"b":1.0}},\n'
    b'{"role":"assistant","content":"say: done"} , {"role":"tool","content":"LARGE","tool_call_id":"z"}],'
    b'"seed":12345678901234567890}'
)


def rewritten(plan: Plan, body: bytes = ODD) -> bytes:
    """The body as the plan makes it."""
    envelope = open_envelope(body)
    history = Reader(ADAPTER).read(envelope)
    stubs = Stubs(byte_count)
    return Rewriter(ADAPTER, ChatTools(), stubs, lambda *_: "").rewrite(envelope, history, plan)


def plan(**fields: object) -> Plan:
    """A plan for a session nobody knows."""
    return Plan(Recognition(Ledger("s"), known=0, shift=0), **fields)  # type: ignore[arg-type] # test data


def test_nothing_to_do_is_the_same_object() -> None:
    """An untouched body is not even copied."""
    assert rewritten(plan()) is ODD


def test_a_stub_moves_nothing_else() -> None:
    """Everything beside the edited message keeps its bytes, and the tool is the only other change."""
    entry = offloaded()
    sent = rewritten(plan(reader="read_offloaded", stubs={(2, -1): entry}))
    before, _, after = ODD.partition(b'{"role":"tool"')
    assert sent.startswith(before)
    assert after.partition(b"}")[2].rstrip(b"}") in sent
    tool = json.loads(sent)["messages"][2]
    assert (tool["role"], tool["tool_call_id"]) == ("tool", "z")
    assert entry.ref in tool["content"]
    assert [t["function"]["name"] for t in json.loads(sent)["tools"]] == ["read_offloaded"]


def test_hidden_turns_go_in_front_of_their_message() -> None:
    """Rounds come back exactly, and the visible message loses what they had shown already."""
    rounds = (b'{"role":"assistant","content":"say: ","n":1.0}', b'{"role":"tool","content":"page"}')
    turn = HiddenTurn(rounds=rounds, visible=b"{}", shown={"content": "say: "})
    sent = rewritten(plan(reader="read_offloaded", grafts={1: turn}))
    assert b",".join(rounds) in sent
    assert [m["content"] for m in json.loads(sent)["messages"]] == ["x é", "say: ", "page", "done", "LARGE"]


def test_the_stubs_of_a_request_are_a_guard() -> None:
    """It knows each stub as it was sent, with and without the tool, and its text; without stubs there is none."""
    first, other = offloaded(), msgspec.structs.replace(offloaded(), kind="user", head_lines=0)
    in_force = plan(reader="read_offloaded", stubs={(2, -1): first, (0, -1): other})
    envelope = open_envelope(ODD)
    history = Reader(ADAPTER).read(envelope)
    rewriter = Rewriter(ADAPTER, ChatTools(), Stubs(byte_count), lambda *_: "")
    guard = rewriter.guard(history, in_force)
    assert guard is not None
    last = msgspec.structs.replace(first, reader="")
    bodies = [in_force, plan(stubs={(2, -1): last, (0, -1): msgspec.structs.replace(other, reader="")})]
    sent = [json.loads(rewriter.rewrite(envelope, history, each))["messages"] for each in bodies]
    assert list(guard.refs) == [first.ref]
    assert guard.stubs(first.ref) == [messages[at]["content"] for at in (2, 0) for messages in sent]
    assert guard.original(first.ref) == "LARGE"
    assert rewriter.guard(history, plan()) is None


def test_messages_are_appended() -> None:
    """Hidden rounds continue the request that they belong to, whose bytes stay a prefix."""
    sent = append_messages(open_envelope(ODD), [b'{"a":1}', b'{"b":2}'])
    end = ODD.index(b'],"seed"')
    assert sent == ODD[:end] + b',{"a":1},{"b":2}' + ODD[end:]
