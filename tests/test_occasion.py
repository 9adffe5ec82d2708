"""A request for which a compaction may be due."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.offload_results import OffloadResults
from policies.summarise_history import SummariseHistory
from proxy.core.compaction import Bounds
from proxy.core.envelope import open_envelope
from proxy.core.ledger import Compacted, Ledger, Recognition
from proxy.core.prefixes import Reader
from proxy.core.wire.chat import ChatAdapter
from proxy.occasion import Means, Occasion, summarise_policy
from proxy.presets import Preset
from proxy.sessions import Identity, Known
from proxy.upstream import UpstreamResponse

SUMMARISING = Preset(name="t", policies=(OffloadResults(), SummariseHistory()))
MESSAGES = [{"role": "system", "content": "s"}, *({"role": "user", "content": str(n)} for n in range(6))]


async def nobody(_: bytes, __: str) -> UpstreamResponse:
    """Be asked by mistake."""
    raise AssertionError


MEANS = Means(Bounds(1_000, 2_000, 100), nobody, "m", lambda _: 8_000)


def occasion(preset: Preset = SUMMARISING, shift: int = 0, *entries: Compacted) -> Occasion:
    """Return the occasion of a request whose first messages the client may have dropped."""
    envelope = open_envelope(json.dumps({"model": "m", "messages": MESSAGES}).encode())
    history = Reader(ChatAdapter()).read(envelope)
    known = Known(Identity("t", None), b"r", Recognition(Ledger("ses", entries), 1, shift), ())
    return Occasion(history, known, envelope, preset, MEANS, "read_offloaded", lambda: b"")


@given(st.integers(1, 3_000))
def test_a_retry_has_tighter_bounds(tokens: int) -> None:
    """Nothing is ever looser than it was, and the limit is what the retry may have."""
    bounds = MEANS.within(tokens).bounds
    assert bounds.limit_tokens == tokens
    assert bounds.trigger_tokens == min(1_000, tokens)
    assert bounds.target_tokens == min(100, tokens)


@pytest.mark.parametrize(
    ("preset", "wants"),
    [
        (SUMMARISING, True),
        (msgspec.structs.replace(SUMMARISING, shadow=True), False),
        (Preset(name="t", policies=(SummariseHistory(strategy="mechanical"),)), False),
        (Preset(name="t", policies=(OffloadResults(),)), False),
    ],
    ids=["summarise", "rehearsal", "mechanical", "no block"],
)
def test_who_wants_a_narrative(preset: Preset, *, wants: bool) -> None:
    """A rehearsal spends nothing, and the mechanical strategy asks nobody."""
    assert (occasion(preset).writer is not None) is wants


def test_the_policy_of_a_preset() -> None:
    """There is one at most."""
    assert summarise_policy(SUMMARISING) == SummariseHistory()
    assert summarise_policy(Preset(name="t")) is None


@given(st.integers(0, 50), st.integers(1, 7))
def test_positions_and_indices_are_two_names_of_one_message(shift: int, index: int) -> None:
    """Messages in front that the client no longer sends count as positions."""
    at = occasion(SUMMARISING, shift)
    assert at.position(index) == index - 1 + shift
    assert at.index(at.position(index)) == index


def test_the_block_in_force_is_that_of_this_length() -> None:
    """A block that was made for a longer history is not in force for a shorter one."""
    early, late = Compacted(made_at=4, cut=2), Compacted(made_at=9, cut=5)
    assert occasion(SUMMARISING, 0, early, late).folded == early
    assert occasion(SUMMARISING, 3, early, late).folded == late
    assert occasion(SUMMARISING, 0, late).folded is None


def test_a_request_that_was_answered_before_is_left_alone() -> None:
    """Unless it is far beyond what the model can take; and what cannot be read back leaves only where it must."""
    repeat, limit = MEANS.for_repeat().bounds, MEANS.at_limit().bounds
    assert repeat.trigger_tokens == repeat.limit_tokens == 2 * MEANS.bounds.limit_tokens
    assert limit == Bounds(2_000, 2_000, 100)
