"""A prompt that was refused as too long is made shorter, once."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from proxy.compaction import Compacted
from proxy.core.compaction import Bounds
from proxy.core.overflow import Overflow
from proxy.counting import Counter
from proxy.experience import Experience
from proxy.lessons import Place
from proxy.presets import Preset
from proxy.settings import Settings
from proxy.shortening import Shortener
from proxy.upstream import Transport
from tests.test_breaking import Writer, compact, preset, talk, tells
from tests.test_compaction import Desk

pytestmark = pytest.mark.anyio
ORIGIN = "https://up.example"
ROOMY = Bounds(trigger_tokens=50_000, limit_tokens=100_000, target_tokens=2_500)
TOLD = Overflow(window_tokens=4_000)


def shortener(desk: Desk) -> tuple[Shortener, Experience]:
    """Return a shortener with what it learns."""
    questions = Transport(httpx.MockTransport(lambda _: httpx.Response(404)))
    learnt = Experience(desk.compactor.sessions, Counter(), questions)
    return Shortener(desk.compactor, learnt, ORIGIN, Settings), learnt


async def refused(desk: Desk, chosen: Preset | None = None, steps: int = 90) -> Compacted:
    """Return a request that went upstream raw."""
    return await compact(desk, talk(steps), chosen or preset(), Writer(tells), ROOMY)


async def test_it_is_compacted_to_what_fits() -> None:
    """The window that the refusal names holds from now on, and the request is within it."""
    desk = Desk()
    shortens, learnt = shortener(desk)
    long = await refused(desk)
    room = await shortens.room(long, TOLD)
    assert room is not None
    assert room < 4_000
    shorter = await shortens.shorten(long, room)
    assert shorter is not None
    assert shorter.compactions == 1
    assert shorter.sent_tokens <= room
    assert learnt.budget.window(Settings(), Place("t", ORIGIN, "m")).tokens == 4_000


async def test_what_cannot_be_made_shorter_is_not_tried() -> None:
    """A rehearsal sends the client's own body, and one message of the user cannot be cut."""
    desk = Desk()
    shortens, _ = shortener(desk)
    shadow = msgspec.structs.replace(preset(), shadow=True)
    assert await shortens.shorten(await refused(desk, shadow), 1_000) is None
    assert await shortens.shorten(await refused(Desk(), steps=0), 10) is None
    assert await shortens.shorten(await refused(desk), 0) is None


async def test_a_fault_of_ours_leaves_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an answer, too."""
    desk = Desk()
    shortens, _ = shortener(desk)
    long = await refused(desk)

    async def breaks(_: object) -> Compacted:
        raise RuntimeError("ours")

    monkeypatch.setattr(desk.compactor, "compact", breaks)
    assert await shortens.shorten(long, 1_000) is None
