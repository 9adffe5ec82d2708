"""Steps: what stays or goes together."""

from __future__ import annotations

from hypothesis import given

from proxy.core.steps import Step, steps
from tests.core.conversations import Message, conversations
from tests.core.test_history import assistant, history, tool, user

SYSTEM: Message = {"role": "system", "content": "s"}


def test_an_answer_belongs_to_its_call() -> None:
    """An assistant message and all its answers are one, everything else stands alone; leading messages are outside."""
    messages = [SYSTEM, user("x"), assistant(None, ("c", "f"), ("d", "f")), tool("d", "2"), tool("c", "1"), user("y")]
    told = history(*messages, SYSTEM, assistant("ok"), assistant("more"), tool("stray", "?"))
    assert steps(told) == [Step(1, 2), Step(2, 5), Step(5, 6), Step(6, 7), Step(7, 8), Step(8, 10)]
    assert steps(history()) == steps(history(SYSTEM)) == []


@given(conversations())
def test_steps_cover_the_chain_once(growth: list[list[Message]]) -> None:
    """No message is in two steps or in none."""
    told = history(*growth[-1])
    borders = [told.leading, *(step.stop for step in steps(told))]
    assert [step.start for step in steps(told)] == borders[:-1]
    assert borders[-1] == len(told)
