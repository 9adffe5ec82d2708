"""The laws of deciding: any history and any policy."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from policies.offload_results import OffloadResults
from proxy.core.policy import Policy
from tests.core.conversations import CHAINS, TOOLS, Message, Session, byte_count, conversations

Chain = tuple[Policy, ...]
BIG = "\n".join(f"line {i:04}" for i in range(300))
RESULTS: Chain = (OffloadResults(over_tokens=500),)


def asked(big: str = BIG) -> list[Message]:
    """A question whose answer needed a large result."""
    call = {"id": "z", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "z", "content": big},
        {"role": "user", "content": "go"},
    ]


def text_of(message: Message) -> str:
    """All text of a message."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(p["text"] for p in content or [])


@given(conversations(), CHAINS)
def test_pairs_stay_and_nothing_grows(growth: list[list[Message]], chain: Chain) -> None:
    """Messages keep their number, order, roles, ids and shape; an edited text is at most half of what it was."""
    session = Session(chain)
    for messages in growth:
        sent = session.serve(messages, tools=TOOLS)["messages"]
        assert len(sent) == len(messages)
        for old, new in zip(messages, sent, strict=True):
            assert {k: v for k, v in new.items() if k != "content"} == {k: v for k, v in old.items() if k != "content"}
            if new["content"] != old["content"]:
                assert type(new["content"]) is type(old["content"])
                assert 2 * byte_count(text_of(new)) <= byte_count(text_of(old))


@given(conversations(), CHAINS)
def test_growth_is_append_only(growth: list[list[Message]], chain: Chain) -> None:
    """What was sent for a history is the beginning of what is sent for every history that it grows into."""
    session = Session(chain)
    sent = [session.serve(messages, tools=TOOLS) for messages in growth]
    for earlier, later in itertools.pairwise(sent):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
        assert later["tools"] == earlier["tools"]


@given(conversations(), CHAINS, CHAINS)
def test_a_repeated_history_gives_the_same_bytes(growth: list[list[Message]], chain: Chain, other: Chain) -> None:
    """Whatever happened since, and whatever the policy is by now, the same history is sent in the same form."""
    session = Session(chain)
    sent = [session.serve(messages, tools=TOOLS) for messages in growth]
    session.chain = other
    assert [session.serve(messages, tools=TOOLS) for messages in growth] == sent


@given(conversations(), CHAINS)
def test_equal_histories_get_equal_bytes_elsewhere(growth: list[list[Message]], chain: Chain) -> None:
    """Another process without any memory decides the same for the same steps."""
    one, two = Session(chain), Session(chain)
    assert [one.serve(m, tools=TOOLS) for m in growth] == [two.serve(m, tools=TOOLS) for m in growth]


@given(conversations(), CHAINS)
def test_every_stub_has_its_original(growth: list[list[Message]], chain: Chain) -> None:
    """Each text that left is stored under the ref that its stub names, character for character."""
    session = Session(chain)
    for messages in growth:
        sent = session.serve(messages, tools=TOOLS)["messages"]
        for old, new in zip(messages, sent, strict=True):
            if new["content"] != old["content"]:
                refs = [r for r in session.originals if r in text_of(new)]
                assert [session.originals[r] for r in refs] == [text_of(old)]


@given(
    conversations(),
    CHAINS,
    st.sampled_from([{"n": 2}, {"functions": []}, {"prediction": {"type": "content"}}]),
)
def test_without_a_reader_there_is_no_stub(
    growth: list[list[Message]], chain: Chain, obstacle: dict[str, object]
) -> None:
    """Where the tool cannot be declared the history is the client's own, also when it was stubbed before."""
    session = Session(chain)
    for messages in growth:
        session.serve(messages, tools=TOOLS)
        sent = session.serve(messages, tools=TOOLS, **obstacle)
        assert sent == {"model": "m", "messages": messages, "tools": TOOLS, **obstacle}


def test_a_turn_that_cannot_read_offloads_nothing_new() -> None:
    """Under a forced or forbidden choice new texts stay, old stubs stay stubs, and the tool stays declared."""
    session = Session(RESULTS)
    sent = session.serve(asked(), tools=TOOLS, tool_choice="none")
    assert sent["messages"] == asked()
    assert len(sent["tools"]) == 2
    again = session.serve(asked(), tools=TOOLS)
    assert again["messages"] == asked(), "sent raw once, raw for good"
    stubbed = Session(RESULTS)
    first = stubbed.serve(asked(), tools=TOOLS)["messages"]
    assert first != asked()
    assert stubbed.serve(asked(), tools=TOOLS, tool_choice="none")["messages"] == first


def test_an_equal_text_seen_later_does_not_change_the_earlier_one() -> None:
    """The same text at an earlier place was sent raw and stays raw when the later one is moved out."""
    session = Session(RESULTS)
    session.serve(asked(), tools=TOOLS, tool_choice="none")
    longer = [*asked(), {"role": "assistant", "content": "again"}, *asked()]
    sent = session.serve(longer, tools=TOOLS)["messages"]
    assert sent[2] == longer[2]
    assert sent[7] != longer[7]


def test_erased_originals_stay_in_the_text() -> None:
    """A ref that the store refuses is left out of the plan, and so its text is sent."""
    session = Session(RESULTS)
    (fresh,) = session.plan(asked(), {"tools": TOOLS}).fresh
    session.refused = frozenset({fresh.entry.ref})
    assert session.serve(asked(), tools=TOOLS)["messages"] == asked()


def test_the_tool_comes_with_the_first_stub_and_stays() -> None:
    """A session without tools gets the tool with its first stub, and keeps it in requests without any."""
    session = Session(RESULTS)
    assert "tools" not in session.serve(asked("small"))
    assert len(session.serve(asked())["tools"]) == 1
    assert len(session.serve([*asked("small")])["tools"]) == 1


def test_what_can_neither_be_read_nor_fit_is_a_stub_that_says_so() -> None:
    """Where the tool cannot be declared the raw text is sent if it fits, else a stub that promises nothing."""
    session = Session(RESULTS)
    session.room_tokens = 100_000
    assert session.serve(asked(), n=2)["messages"] == asked()
    session.room_tokens = 100
    stub = text_of(session.serve(asked(), n=2)["messages"][2])
    assert "cannot be read in this request" in stub
    assert "read_offloaded" not in stub
    assert session.ledger.version == 0, "nothing of that is a decision"
    assert BIG in session.originals.values()
