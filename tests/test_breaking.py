"""Compactions with their summaries: what is sent before, at and after one, and what is asked of whom meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from policies.clear_reasoning import ClearReasoning
from policies.offload_results import OffloadResults
from policies.summarise_history import SummariseHistory
from policies.truncate_inputs import TruncateInputs
from proxy.compaction import Compacted, Order
from proxy.core.compaction import Bounds
from proxy.core.declaration import TOOL_NAME
from proxy.errors import Unreachable
from proxy.occasion import Means
from proxy.presets import Preset, built_in
from proxy.upstream import UpstreamResponse
from tests.core.test_breaks import has_pairs
from tests.core.test_history import history as told_history
from tests.test_compaction import Desk, sent
from tests.test_summarise import plain, said

pytestmark = pytest.mark.anyio
Message = dict[str, Any]
MECHANICAL = SummariseHistory(strategy="mechanical", keep_steps=2)
SUMMARISING = SummariseHistory(keep_steps=2, wait_seconds=0.5)
STORY = "## Intent\nTo count rows.\n## Next steps\nGo on counting."
BOUNDS = Bounds(trigger_tokens=4_000, limit_tokens=6_000, target_tokens=1_800)


def preset(*policies: Any) -> Preset:
    """A preset with these policies."""
    return Preset(name="t", policies=policies or (OffloadResults(over_tokens=5_000), MECHANICAL))


def step(number: int, lines: int = 6) -> list[Message]:
    """A call with its answer, and what the user said to it."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": '{"path":"a.py"}'}}
    text = "\n".join(f"row {number} {line} of the table" for line in range(lines))
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": text},
        {"role": "user", "content": f"rule {number}"},
    ]


def talk(steps: int, lines: int = 6) -> list[Message]:
    """A conversation of so many steps."""
    start = [{"role": "system", "content": "s"}, {"role": "user", "content": "count the rows"}]
    return start + [message for number in range(steps) for message in step(number, lines)]


class Writer:
    """Answers requests for summaries as it is told to."""

    def __init__(self, answer: Callable[[], Awaitable[UpstreamResponse]]) -> None:
        self.asked: list[Any] = []
        self._answer = answer

    async def __call__(self, body: bytes, model: str) -> UpstreamResponse:
        """Take a request."""
        self.asked.append(json.loads(body))
        return await self._answer()


async def tells() -> UpstreamResponse:
    """Answer with a good summary."""
    return said(STORY)


async def silence() -> UpstreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def breaks_off() -> UpstreamResponse:
    """Fail to connect."""
    raise Unreachable("refused")


async def refuses() -> UpstreamResponse:
    """Answer with an error."""
    return plain({"error": {}}, status=500)


async def calls() -> UpstreamResponse:
    """Answer with a call written out."""
    return said('<tool_call>{"name": "rm"}</tool_call>')


def order(desk: Desk, messages: list[Message], writer: Writer, bounds: Bounds = BOUNDS, chosen: Any = None) -> Order:
    """Order a request to be compacted."""
    means = Means(bounds, writer, "m", lambda _: 128_000)
    return msgspec.structs.replace(desk.order(messages), preset=chosen or preset(SUMMARISING), means=means)


async def compact(
    desk: Desk, messages: list[Message], chosen: Preset, writer: Writer, bounds: Bounds = BOUNDS
) -> Compacted:
    """Compact a request."""
    compacted = await desk.compactor.compact(order(desk, messages, writer, bounds, chosen))
    desk.compactor.begin_narrative(compacted)  # as when its answer has ended
    return compacted


async def settled(desk: Desk) -> None:
    """Wait until every narrative that was begun is in the ledger, or will never be."""
    await asyncio.gather(*desk.compactor._narrator._running.values())


def block(compacted: Compacted) -> str:
    """The first user message that was sent, with what was added to it."""
    return str(next(m["content"] for m in sent(compacted) if m["role"] == "user"))


async def test_a_rehearsal_asks_for_no_summary() -> None:
    """What would be saved is told, and nothing is spent."""
    writer = Writer(tells)
    shadow = Preset(name="t", policies=(SUMMARISING,), shadow=True)
    compacted = await compact(Desk(), talk(80), shadow, writer)
    assert (compacted.compactions, writer.asked) == (1, [])
    assert sent(compacted) == talk(80)
    assert compacted.sent_tokens < compacted.received_tokens / 2


async def test_below_the_trigger_nothing_happens() -> None:
    """The body leaves as it came."""
    writer = Writer(tells)
    compacted = await compact(Desk(), talk(10), preset(), writer)
    assert sent(compacted) == talk(10)
    assert (compacted.compactions, writer.asked) == (0, [])


async def test_the_oldest_turns_become_one_block() -> None:
    """The user's words are in it verbatim, and the newest steps stay."""
    compacted = await compact(Desk(), talk(80), preset(), Writer(tells))
    messages = sent(compacted)
    assert compacted.compactions == 1
    assert messages[-2:] == talk(80)[-2:]
    assert messages[0] == talk(1)[0]
    assert block(compacted).startswith("count the rows\n\n<earlier-turns ")
    kept = "".join(str(m["content"]) for m in messages)
    assert all(f"rule {number}" in kept for number in range(80))
    assert f'{TOOL_NAME}(ref="history")' in block(compacted)
    assert has_pairs(messages)
    assert compacted.sent_tokens < compacted.received_tokens / 2


@pytest.mark.parametrize("lines", [3, 12])
async def test_no_byte_changes_between_compactions(lines: int) -> None:
    """As a conversation grows, each request begins with the one before it, unless a compaction is declared."""
    desk, writer, before, count = Desk(), Writer(tells), b"", 0
    for steps in range(1, 240, 3):
        compacted = await compact(desk, talk(steps, lines), preset(), writer)
        messages = json.dumps(sent(compacted)[:-1])[:-1].encode()
        assert has_pairs(sent(compacted))
        assert not compacted.plan.is_over
        if compacted.compactions == count:
            assert messages.startswith(before)
        count, before = compacted.compactions, messages
    assert 2 <= count <= 12


async def test_another_process_sends_the_same_bytes() -> None:
    """The block comes from the ledger and the request alone."""
    desk, other = Desk(), Desk()
    first = await compact(desk, talk(80), preset(), Writer(tells))
    other.compactor._store = other.compactor.sessions._store = desk.store  # type: ignore[attr-defined] # one store
    again = await compact(other, talk(80), preset(), Writer(tells))
    assert first.body == again.body


async def test_a_summary_is_written_in_the_background_and_used_when_it_is_there() -> None:
    """Until then the request goes on raw: nobody waits."""
    desk, writer, chosen = Desk(), Writer(tells), preset(SUMMARISING)
    raw = await compact(desk, talk(62), chosen, writer)
    assert sent(raw) == talk(62)
    await settled(desk)
    used = await compact(desk, talk(63), chosen, writer)
    assert "Go on counting." in block(used)
    assert (used.compactions, len(writer.asked)) == (1, 1)
    live = msgspec.json.decode(raw.body)
    assert writer.asked[0]["messages"][:-1] == live["messages"]
    assert writer.asked[0]["tools"] == live["tools"]
    again = await compact(desk, talk(64), chosen, writer)
    assert block(again) == block(used)


@pytest.mark.parametrize("answer", [silence, breaks_off, refuses, calls])
async def test_a_failing_summary_fails_no_request(answer: Callable[[], Awaitable[UpstreamResponse]]) -> None:
    """At the limit it is waited for, and no longer than allowed; then the block goes without."""
    compacted = await compact(Desk(), talk(110), preset(SUMMARISING), Writer(answer))
    assert compacted.compactions == 1
    assert "## Summary" not in block(compacted)
    assert has_pairs(sent(compacted))


async def test_at_the_limit_a_summary_is_waited_for() -> None:
    """It is in the same request's block."""
    compacted = await compact(Desk(), talk(110), preset(SUMMARISING), Writer(tells))
    assert "Go on counting." in block(compacted)


async def test_inputs_leave_before_turns_do() -> None:
    """Where that is enough, no block is made; the input stays valid JSON and can be read back."""
    messages = talk(12)
    call = messages[2]["tool_calls"][0]["function"]
    text = "\n".join(f"line {line} of the new file" for line in range(500))
    call["arguments"] = json.dumps({"path": "a.py", "content": text})
    bounds = Bounds(trigger_tokens=4_000, limit_tokens=6_000, target_tokens=3_000)
    desk, chosen = Desk(), preset(TruncateInputs(over_chars=500), MECHANICAL)
    compacted = await compact(desk, messages, chosen, Writer(tells), bounds)
    arguments = json.loads(sent(compacted)[2]["tool_calls"][0]["function"]["arguments"])
    (entry,) = compacted.plan.stubs.values()
    assert arguments["path"] == "a.py"
    assert entry.ref in arguments["content"]
    assert text not in json.dumps(sent(compacted))
    assert "<earlier-turns" not in block(compacted)
    original = await desk.store.get_original("t", entry.ref)
    assert original is not None
    later = await compact(desk, messages + step(12), chosen, Writer(tells), bounds)
    assert sent(later)[: len(messages)] == sent(compacted)


async def test_what_cannot_be_made_to_fit_is_told() -> None:
    """The newest message is never taken; the request is sent in its smallest form, and the header says so."""
    messages = [*talk(30), {"role": "user", "content": "word " * 8_000}]
    compacted = await compact(Desk(), messages, preset(), Writer(tells))
    assert compacted.plan.is_over
    assert sent(compacted)[-1] == messages[-1]


async def test_long_words_of_the_user_are_pinned_by_reference() -> None:
    """Their first and last lines stay in the block, and the whole text can be read."""
    messages = talk(80)
    messages[4] = {"role": "user", "content": "\n".join(f"clause {n}: a rule" for n in range(400))}
    desk = Desk()
    compacted = await compact(desk, messages, preset(), Writer(tells))
    entry = next(e for e in compacted.plan.stubs.values() if e.kind == "user")
    assert "clause 0: a rule" in block(compacted)
    assert "clause 399: a rule" in block(compacted)
    assert "clause 200: a rule" not in block(compacted)
    original = await desk.store.get_original("t", entry.ref)
    assert original is not None


async def test_one_summary_is_written_at_a_time() -> None:
    """A conversation that goes on while one is being written asks for no other."""
    desk, chosen, free = Desk(), preset(SUMMARISING), asyncio.Event()

    async def slowly() -> UpstreamResponse:
        await free.wait()
        return said(STORY)

    writer = Writer(slowly)
    for steps in range(50, 62):
        await compact(desk, talk(steps), chosen, writer)
        await asyncio.sleep(0.01)
    assert len(writer.asked) == 1
    free.set()
    await settled(desk)
    used = await compact(desk, talk(62), chosen, writer)
    assert (used.compactions, len(writer.asked)) == (1, 1)
    assert "Go on counting." in block(used)


def work(steps: int) -> list[Message]:
    """A conversation in which the user speaks at the beginning only."""
    return [*talk(0), *(m for m in talk(steps, 12)[2:] if m["role"] != "user")]


def chosen_of(compacted: Compacted) -> list[Message]:
    """The messages that stand between the block and what stayed anyway."""
    assert compacted.plan.fold is not None
    return [json.loads(compacted.history.messages[index]) for index in compacted.plan.fold.chosen]


async def test_selective_keeps_steps_and_asks_nobody() -> None:
    """What is chosen stands behind the block, word for word, and the sizes that are told count it."""
    writer, selective = Writer(tells), preset(SummariseHistory(strategy="selective", keep_steps=2))
    compacted = await compact(Desk(), work(90), selective, writer, BOUNDS_OF_ASTREUS)
    messages, chosen = sent(compacted), chosen_of(compacted)
    assert writer.asked == []
    assert chosen
    assert messages[2 : 2 + len(chosen)] == chosen
    assert has_pairs(messages)
    assert compacted.sent_tokens == pytest.approx(told_history(*messages).estimated_tokens, abs=250)


BOUNDS_OF_ASTREUS = Bounds(trigger_tokens=8_000, limit_tokens=100_000, target_tokens=2_400)


async def test_astreus_from_end_to_end() -> None:
    """8,000 tokens; the last three messages, the best steps and a summary; within the target, and rarely."""
    desk, writer, astreus = Desk(), Writer(tells), built_in()["astreus"]
    assert astreus.trigger is not None
    assert astreus.target is not None
    assert (astreus.trigger.tokens, astreus.target.tokens) == (8_000, 2_400)
    before: list[Message] = []
    counts: list[int] = []
    for steps in range(1, 160):
        history = work(steps)
        compacted = await compact(desk, history, astreus, writer, BOUNDS_OF_ASTREUS)
        messages = sent(compacted)
        assert has_pairs(messages)
        assert messages[-3:] == history[-3:]
        if counts and compacted.compactions > counts[-1]:
            chosen = chosen_of(compacted)
            entry = compacted.ledger.compactions[-1]
            assert "Go on counting." in block(compacted)
            assert messages[2 : 2 + len(chosen)] == chosen
            assert entry.tokens <= 2_400 or not chosen
        elif counts:
            assert messages[: len(before)] == before
        counts.append(compacted.compactions)
        before = messages
        await asyncio.sleep(0.01)
    first = counts.index(1)
    assert chosen_of(await compact(desk, work(first + 1), astreus, writer, BOUNDS_OF_ASTREUS))
    assert 1 < counts[-1] <= len(writer.asked) < 12


async def test_reasoning_leaves_at_a_compaction() -> None:
    """More of the conversation stays, and the sizes that are told know it."""
    desk, policies = Desk(), (ClearReasoning(), MECHANICAL)
    thoughts = {"reasoning_content": "What would the user want of these rows? " * 20}
    history = [m | thoughts if m["role"] == "assistant" else m for m in talk(40)]
    bounds = msgspec.structs.replace(BOUNDS, target_tokens=3_900)
    plain = await compact(Desk(), history, preset(MECHANICAL), Writer(tells), bounds)
    bare = await compact(desk, history, preset(*policies), Writer(tells), bounds)
    assert len(sent(bare)) > len(sent(plain))
    assert {m["reasoning_content"] for m in sent(bare)[2:-3] if m["role"] == "assistant"} == {""}
    assert sent(bare)[-1] == history[-1]
    assert bare.sent_tokens == pytest.approx(told_history(*sent(bare)).estimated_tokens, abs=250)
