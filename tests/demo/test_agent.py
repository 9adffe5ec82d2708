"""The official client, as the demonstration uses it."""

from __future__ import annotations

import pytest

from proxy.demo.agent import Agent, NoAnswer
from proxy.demo.model import Call, Reply
from proxy.demo.recording import Recording
from proxy.demo.upstream import ScriptedUpstream

REPLY = Reply("look at this", (Call("c1", "bash", '{"command": "ls"}'), Call("c2", "read", "{}")))
SESSION = Recording("r", [{"role": "user", "content": "go"}])


class Says:
    """A model that always says the same."""

    def answer(self, body: bytes) -> Reply:
        """Answer."""
        return REPLY


@pytest.mark.parametrize("stream", [True, False])
def test_what_it_hears_becomes_its_history(stream: bool) -> None:
    """The same answer streamed and whole, kept as an assistant message; without a gateway no edits are told."""
    with ScriptedUpstream(Says()) as upstream:
        agent = Agent(upstream.url.removesuffix("/v1"), SESSION)
        agent.history += SESSION.messages
        heard = agent.ask(stream=stream)
        agent.close()
    assert heard.reply == REPLY
    assert (heard.state, heard.edits, heard.received_tokens) == ("", 0, 0)
    assert agent.history[-1]["content"] == "look at this"
    assert [call["id"] for call in agent.history[-1]["tool_calls"]] == ["c1", "c2"]


def test_no_answer_is_one_line() -> None:
    """An error of the client's becomes one of ours."""
    agent = Agent("http://127.0.0.1:9", SESSION)
    agent.history += SESSION.messages
    with pytest.raises(NoAnswer, match="got no answer"):
        agent.ask(stream=False)
    agent.close()
