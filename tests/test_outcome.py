"""What the answer says of the gateway's own work."""

from __future__ import annotations

import re

import msgspec
import pytest

from proxy.outcome import Outcome
from tests.core.test_plan import asked
from tests.test_compaction import PRESET, Desk

pytestmark = pytest.mark.anyio


def said(outcome: Outcome) -> dict[str, str]:
    """Return the headers by name."""
    return {name.decode(): value.decode() for name, value in outcome.headers()}


async def test_applied_edits_are_counted() -> None:
    """In force, new, and the tokens of both sides; no edit at all is `none`."""
    desk = Desk()
    compacted = await desk.compact(asked())
    headers = said(Outcome(0, compacted=compacted))
    assert headers["x-ullage-compaction"] == "applied; edits=1; new=1; compactions=0"
    assert headers["x-ullage-session"] == compacted.ledger.id
    assert headers["x-ullage-tokens"] == f"received={compacted.received_tokens}, sent={compacted.sent_tokens}"
    again = said(Outcome(0, compacted=await desk.compact(asked())))
    assert again["x-ullage-compaction"] == "applied; edits=1; new=0; compactions=0"
    assert said(Outcome(0, compacted=await desk.compact(asked("small"))))["x-ullage-compaction"] == "none"


async def test_shadow_and_bypass_say_so() -> None:
    """Shadow names what would have been; a bypass names its reason and that all was sent."""
    compacted = await Desk().compact(asked(), msgspec.structs.replace(PRESET, shadow=True))
    assert said(Outcome(0, compacted=compacted))["x-ullage-compaction"].startswith("shadow; edits=1;")
    headers = said(Outcome(400, compacted=compacted, bypassed="tool_refused"))
    assert headers["x-ullage-compaction"] == "bypassed; reason=tool_refused"
    received, sent = re.findall(r"\d+", headers["x-ullage-tokens"])
    assert received == sent


def test_without_a_plan_bytes_tell_tokens() -> None:
    """A relayed body is estimated, and belongs to no session."""
    headers = said(Outcome(400))
    assert headers["x-ullage-tokens"] == "received=100, sent=100"
    assert "x-ullage-session" not in headers
    assert re.fullmatch(r"plan;dur=[\d.]+, upstream;dur=[\d.]+", headers["server-timing"])
