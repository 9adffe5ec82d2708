"""How many tokens fit."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from proxy.budget import Asking, Budget, Sent
from proxy.core.overflow import Overflow
from proxy.core.window import Window
from proxy.counting import Counter
from proxy.lessons import Place, Refusal
from proxy.presets import Preset
from proxy.room import Output
from proxy.settings import Model, Settings
from proxy.units import Size
from proxy.windows import DEFAULT_WINDOW_TOKENS

SETTINGS = Settings(models={"gpt-x": Model(window=10_000), "gpt-wide": Model(window=128_000)})
PRESET = Preset(name="p", limit=Size(share=0.85))
UP = "http://up"
NOBODY = Asking()
COUNTER = Counter()


def room(budget: Budget, limit: Size | None, model: str = "gpt-x", asking: Asking = NOBODY) -> int:
    """Return the room under a preset with this limit."""
    return budget.room(SETTINGS, Preset(name="p", limit=limit), UP, model, asking)


def place(model: str, tenant: str = "t") -> Place:
    """Return the place of a tenant's requests for a model."""
    return Place(tenant, UP, model)


def refused(budget: Budget, model: str, window: int | None, prompt: int | None = None, sent: int = 10_000) -> Refusal:
    """Have a prompt refused."""
    refusal = Refusal(Overflow(window, prompt), sent)
    budget.refused(place(model), refusal)
    return refusal


def test_the_limit_is_of_the_window() -> None:
    """A share counts of the model's window; without a limit the window itself does, less a margin for our counts."""
    budget = Budget()
    assert 0.9 * 8_500 < room(budget, Size(share=0.85)) < 8_500
    assert 0.9 * 10_000 < room(budget, None) < 10_000
    assert 0.9 * DEFAULT_WINDOW_TOKENS < room(budget, None, "gpt-unknown") < DEFAULT_WINDOW_TOKENS


def test_the_answer_has_its_room() -> None:
    """What the request asks for is not filled with its prompt."""
    budget = Budget()
    assert 0.9 * 6_000 < room(budget, None, asking=Asking(output=Output(4_000))) < 6_000


def test_reported_usage_corrects_it() -> None:
    """Where a tokenizer counts twice what we do, half as much fits."""
    budget = Budget()
    before = room(budget, None)
    for _ in range(3):
        assert not budget.learn(UP, "gpt-x", 5_000, {"prompt_tokens": 10_000})
    assert abs(room(budget, None) - before / 2) < 2


@pytest.mark.parametrize("reported", [None, "9", True, -5, 1.5, 10**30, {}])
def test_odd_reports_teach_nothing(reported: object) -> None:
    """Only a plain positive number counts."""
    budget = Budget()
    before = room(budget, None)
    for _ in range(5):
        assert not budget.learn(UP, "gpt-x", 5_000, {"prompt_tokens": reported})
        assert not budget.learn(UP, "gpt-x", 5_000, None)
    assert room(budget, None) == before


CUT = Sent(b'{"messages":[{"role":"user","content":"' + b"12 " * 4_000 + b'"}]}', 3_000)  # twice as many tokens


@pytest.mark.anyio
async def test_a_cut_prompt_is_told_and_teaches_nothing() -> None:
    """Its count says nothing about the tokenizer, and somebody has to set the window right."""
    budget = Budget()
    before = room(budget, None)
    usage: dict[str, object] = {"prompt_tokens": 2_000}
    assert budget.learn(UP, "gpt-x", CUT.estimate_tokens, usage)
    with capture_logs() as logs:
        assert await budget.examine(COUNTER, place("gpt-x"), CUT, usage)
    assert [(line["event"], line["log_level"]) for line in logs] == [("prompt_cut_by_upstream", "warning")]
    assert room(budget, None) == before


@pytest.mark.anyio
async def test_a_low_report_can_be_honest() -> None:
    """Then the like of it is not counted again; but no more is sent because of it."""
    budget = Budget()
    before = room(budget, None)
    indented = Sent(b'{"messages":[{"role":"user","content":"' + b" " * 12_000 + b'"}]}', 3_000)
    usage: dict[str, object] = {"prompt_tokens": 1_500}
    assert budget.learn(UP, "gpt-x", 3_000, usage)
    with capture_logs() as logs:
        assert not await budget.examine(COUNTER, place("gpt-x"), indented, usage)
    assert not logs
    assert not budget.learn(UP, "gpt-x", 3_000, usage)
    assert not budget.learn(UP, "gpt-x", 3_000, usage)
    assert room(budget, None) == before
    assert budget.learn(UP, "gpt-x", 3_000, {"prompt_tokens": 900})
    assert not budget.learn(UP, "gpt-x", 900, {"prompt_tokens": 90}), "small prompts tell nothing"


def test_windows_have_an_order() -> None:
    """Configured, learnt, discovered, table, default."""
    budget = Budget()
    sources = []
    for model in ("nobody", "gpt-4o", "told", "refused", "gpt-x"):
        budget.windows.put(UP, "told", Window(50_000))
        sources.append(budget.window(SETTINGS, place(model)).source)
        if model == "told":
            budget.windows.put(UP, "refused", Window(50_000))
            refused(budget, "refused", 40_000)
    assert sources == ["default", "table", "discovered", "learnt", "configured"]


def test_a_named_window_beats_what_others_say() -> None:
    """In both directions: the upstream knows best."""
    budget = Budget()
    budget.windows.put(UP, "m", Window(50_000, 1_000, max_input_tokens=40_000))
    for told in (30_000, 90_000):
        refused(budget, "m", told, 100_000)
        assert budget.window(SETTINGS, place("m")) == Window(told, 1_000, "learnt")


def test_a_bound_only_lowers() -> None:
    """That a prompt did not fit says nothing about larger windows."""
    budget = Budget()
    budget.windows.put(UP, "m", Window(9_000))
    refused(budget, "m", None, sent=10_000)
    assert budget.window(SETTINGS, place("m")).source == "discovered"
    refused(budget, "m", None, sent=7_000)
    assert budget.window(SETTINGS, place("m")).source == "learnt"


def test_the_configured_window_is_the_most() -> None:
    """A refusal lowers it, since every long request would be refused again, but raises it never."""
    budget = Budget()
    refused(budget, "gpt-x", 64_000)
    assert budget.window(SETTINGS, place("gpt-x")).tokens == 10_000
    refused(budget, "gpt-wide", 16_000)
    assert budget.window(SETTINGS, place("gpt-wide")).tokens == 16_000


def test_what_one_tenant_learnt_is_its_own() -> None:
    """Another account may have other limits."""
    budget = Budget()
    refused(budget, "gpt-wide", 16_000)
    assert budget.window(SETTINGS, place("gpt-wide", "other")).tokens == 128_000


def test_one_refusal_teaches_the_ratio() -> None:
    """A tokenizer that counts three times what we do is not asked for too much again."""
    budget = Budget()
    refused(budget, "gpt-wide", 16_000, prompt=32_000, sent=10_000)
    fits = room(budget, Size(share=0.85), "gpt-wide", Asking("t"))
    assert 3.2 * fits <= 0.85 * 16_000
    assert room(budget, Size(share=0.85), "gpt-wide", Asking("other")) > fits


@pytest.mark.parametrize("window", [None, 8_000, 200_000])
def test_the_retry_is_shorter_than_what_was_refused(window: int | None) -> None:
    """Also where the named window would not make it so."""
    budget = Budget()
    refusal = refused(budget, "gpt-wide", window, sent=10_000)
    fits = budget.retry_room(SETTINGS, PRESET, place("gpt-wide"), refusal)
    assert fits is not None
    assert fits <= 7_000
    if window == 8_000:
        assert fits <= 0.85 * 8_000


def test_nothing_is_tried_where_the_answer_alone_is_too_large() -> None:
    """No prompt would fit beside it."""
    budget = Budget()
    refusal = Refusal(Overflow(32_768, 1_000, 40_000), 1_000, 40_000)
    budget.refused(place("m"), refusal)
    assert budget.retry_room(SETTINGS, PRESET, place("m"), refusal) is None


def test_a_fact_brings_a_lesson_back() -> None:
    """Another process knows what this one was taught."""
    budget, other = Budget(), Budget()
    key, value = budget.refused(place("gpt-wide"), Refusal(Overflow(16_000, 32_000), 10_000))
    other.lessons.recall("t", {key: value})
    assert other.window(SETTINGS, place("gpt-wide")) == budget.window(SETTINGS, place("gpt-wide"))
