"""How many tokens a request may have: the model's window, room for the answer, the preset's limit, what was learnt.

The window is the configured one, else what a refusal taught, else what the upstream told, else what the table says,
else a default. A configured window is the most that is ever used; but an upstream that refuses less is believed, since
otherwise every long request would be refused again.
"""

from __future__ import annotations

import asyncio
from typing import cast

import structlog
from msgspec import Struct
from msgspec.structs import replace

from proxy.core.compaction import Bounds
from proxy.core.memo import Memo
from proxy.core.overflow import is_truncated
from proxy.core.prompt_text import prompt_texts
from proxy.core.window import Window
from proxy.counting import Calibration, Counter
from proxy.lessons import Lesson, Lessons, Place, Refusal, fact_of
from proxy.presets import Preset
from proxy.room import Output, room
from proxy.settings import Settings
from proxy.windows import Windows

log = structlog.get_logger()

_HARDER = 0.7  # of what was refused is tried once more at most
_SUSPICIOUS = 0.8  # of what is expected; an estimate by size is seldom so much too high
_LEAST_TOKENS = 1_000
_LEAST_RATIO = 0.4  # no tokenizer makes so few of a text: what reports less counts something else
_KEPT = 4_096
_FREE = Output()


class Asking(Struct, frozen=True):
    """Who asks, and for what answer."""

    tenant: str = ""
    output: Output = _FREE


_NOBODY = Asking()


class Sent(Struct, frozen=True):
    """What went upstream, and what we took it for."""

    body: bytes
    estimate_tokens: int
    is_counted: bool = True  # token by token, as limits are compared with; else by size, which teaches nothing


class Budget:
    """Knows the room of models, and learns from what upstreams report and refuse."""

    def __init__(self, windows: Windows | None = None, lessons: Lessons | None = None) -> None:
        self.windows = windows or Windows()
        self.lessons = lessons or Lessons()
        self._calibration = Calibration()
        self._suspicions: Memo[tuple[str, str], int] = Memo(_KEPT)
        self._honest: Memo[tuple[str, str], float] = Memo(_KEPT)  # lowest ratios that counting has confirmed

    def window(self, settings: Settings, place: Place) -> Window:
        """Return the window of a model as this tenant has it."""
        window = self.windows.find(place.upstream, place.model)
        configured = settings.window_for(place.model)
        if configured is not None:
            window = Window(configured, window.max_output_tokens, "configured")
        lesson = self.lessons.find(place)
        return window if lesson is None else _corrected(window, lesson)

    def room(self, settings: Settings, preset: Preset, upstream: str, model: str, asking: Asking = _NOBODY) -> int:
        """Return how many tokens, by our estimates, fit into a request to this model."""
        place = Place(asking.tenant, upstream, model)
        tokens = room(self.window(settings, place), asking.output, preset.limit)
        return max(1, int(tokens / self._limit_ratio(place)))

    def fitting(self, settings: Settings, upstream: str, model: str) -> int:
        """Return the window of a model in tokens as we count them."""
        place = Place("", upstream, model)
        return max(1, int(self.window(settings, place).tokens / self._limit_ratio(place)))

    def bounds(
        self, settings: Settings, preset: Preset, upstream: str, model: str, asking: Asking = _NOBODY
    ) -> Bounds | None:
        """Return where compactions start, what is never passed and how far they go; None where there are none."""
        if preset.trigger is None or preset.target is None:
            return None
        place = Place(asking.tenant, upstream, model)
        window, ratio = self.window(settings, place).tokens, self._limit_ratio(place)
        limit = self.room(settings, preset, upstream, model, asking)
        trigger = preset.trigger.within(window) or window
        target = preset.target.within(window) or window
        return Bounds(
            trigger_tokens=min(limit, int(trigger / ratio)), limit_tokens=limit, target_tokens=int(target / ratio)
        )

    def learn(
        self,
        upstream: str,
        model: str,
        estimate_tokens: int,
        usage: dict[str, object] | None,
        *,
        is_counted: bool = True,
    ) -> bool:
        """Take in what a request of one round was reported to cost; odd reports are passed over.

        Returns whether the report is so low that the upstream may have cut the prompt: then nothing is learnt, and
        `examine` finds out.
        """
        reported = _reported(usage)
        if reported is None:
            return False
        ratio = reported / max(1, estimate_tokens)
        if self._is_suspicious(upstream, model, ratio) and estimate_tokens > _LEAST_TOKENS:
            return self._is_next(upstream, model)
        if is_counted and ratio >= _LEAST_RATIO:
            self._calibration.learn(upstream, model, estimate_tokens, reported)
        return False

    async def examine(self, counter: Counter, place: Place, sent: Sent, usage: dict[str, object] | None) -> bool:
        """Count a suspicious prompt; say in the log if it was cut, else learn from it. Returns whether it was cut.

        That takes a thread and no time of the loop; similar reports about the model are not suspicious afterwards.
        """
        reported = _reported(usage) or 0
        counted = sum(await counter.count_large(await asyncio.to_thread(prompt_texts, sent.body)))
        if is_truncated(counted, reported):
            log.warning(
                "prompt_cut_by_upstream",
                upstream=place.upstream,
                model=place.model,
                sent_tokens=counted,
                reported_tokens=reported,
                mend="set the window that the upstream really has: [models.NAME] window = …",
            )
            return True
        ratio = reported / max(1, sent.estimate_tokens)
        key = place.upstream, place.model
        if ratio < _LEAST_RATIO:
            return False
        self._honest.put(key, min(self._honest.get(key) or 1.0, ratio))
        if sent.is_counted:
            self._calibration.learn(place.upstream, place.model, sent.estimate_tokens, reported)
        return False

    def refused(self, place: Place, refusal: Refusal) -> tuple[str, bytes]:
        """Take in that a prompt did not fit; returns key and value of the fact to be kept for the tenant."""
        lesson = self.lessons.learn(place, refusal, self._calibration.ratio(place.upstream, place.model))
        return fact_of(place, lesson)

    def retry_room(self, settings: Settings, preset: Preset, place: Place, refusal: Refusal) -> int | None:
        """Return how many tokens, by our estimates, the one retry may have after `refused`.

        None: no prompt would fit beside the answer that is asked for, so trying again is in vain.
        """
        told = refusal.overflow
        if told.window_tokens is not None and (told.output_tokens or 0) >= told.window_tokens:
            return None
        asking = Asking(place.tenant, Output(refusal.output_tokens or None))
        fits = self.room(settings, preset, place.upstream, place.model, asking)
        return max(1, min(fits, int(refusal.sent_tokens * _HARDER)))

    def _is_next(self, upstream: str, model: str) -> bool:
        """Say whether a suspicion is looked into: the first of a model, the second, the fourth and so on.

        Counting takes time, and who reads the log has read it after the first.
        """
        count = (self._suspicions.get((upstream, model)) or 0) + 1
        self._suspicions.put((upstream, model), count)
        return count & (count - 1) == 0

    def _is_suspicious(self, upstream: str, model: str, ratio: float) -> bool:
        expected = self._honest.get((upstream, model)) or max(1.0, self._calibration.ratio(upstream, model))
        return ratio < _SUSPICIOUS * expected

    def _limit_ratio(self, place: Place) -> float:
        """Return what counts are multiplied with for limits: an upstream that reports fewer tokens is not believed."""
        known = max(Calibration.MARGIN, self._calibration.limit_ratio(place.upstream, place.model))
        lesson = self.lessons.find(place)
        return known if lesson is None else max(known, lesson.ratio * Calibration.MARGIN)


def _reported(usage: dict[str, object] | None) -> int | None:
    reported = usage.get("prompt_tokens") if usage else None
    is_count = isinstance(reported, int) and not isinstance(reported, bool) and 0 < reported < 1 << 40
    return cast("int", reported) if is_count else None


def _corrected(window: Window, lesson: Lesson) -> Window:
    """Return the window after a refusal; one that the upstream named beats all but a smaller configured one."""
    if lesson.window_tokens >= window.tokens and (window.source == "configured" or not lesson.is_told):
        return window
    return replace(window, tokens=lesson.window_tokens, source="learnt", max_input_tokens=None)
