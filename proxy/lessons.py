"""What refusals teach: how large a window really is, and how far our estimates are off.

A lesson belongs to one tenant: another one's account may have other limits at the same upstream. It holds for a day, so
that a model that was given more room gets it, and is kept as a fact of the tenant, so that replicas and restarts know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from proxy.core.memo import Memo
from proxy.core.overflow import Overflow
from proxy.core.window import LEAST_TOKENS, MOST_TOKENS, is_plausible

LIFE_SECONDS: Final = 86_400.0

_KEPT: Final = 4_096
_PREFIX: Final = "window|"
_LONGEST_NAME: Final = 512
_LEAST_ESTIMATE_TOKENS: Final = 1_000  # less says too little about a ratio
_LOWEST: Final = 0.5
_HIGHEST: Final = 4.0


class Place(Struct, frozen=True):
    """Whose requests, to which upstream (its origin), for which model."""

    tenant: str
    upstream: str
    model: str


class Refusal(Struct, frozen=True):
    """A prompt that did not fit: what we took it for, the answer that was asked for, and what the upstream says."""

    overflow: Overflow
    sent_tokens: int
    output_tokens: int = 0


class Lesson(Struct, frozen=True, array_like=True):
    """What is known since `at` (seconds since the epoch).

    `is_told`: the upstream named the window; otherwise it is known only that less than this fits. `ratio`: tokens of
    the upstream for each of ours, 0 when nothing was learnt about it.
    """

    window_tokens: int
    is_told: bool
    ratio: float
    at: float

    @property
    def is_sound(self) -> bool:
        """Whether the numbers can be true; what comes out of a store may be anything."""
        return is_plausible(self.window_tokens) and (self.ratio == 0 or _LOWEST <= self.ratio <= _HIGHEST)


_DECODER: Final = msgspec.json.Decoder(Lesson)


class Lessons:
    """The lessons of all tenants that this process heard of."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._known: Memo[Place, Lesson] = Memo(_KEPT)

    def find(self, place: Place) -> Lesson | None:
        """Return what holds at a place, or None."""
        lesson = self._known.get(place)
        return lesson if lesson is not None and self._clock() - lesson.at < LIFE_SECONDS else None

    def learn(self, place: Place, refusal: Refusal, ratio: float) -> Lesson:
        """Take in a refusal; `ratio` is what our estimates were multiplied with so far."""
        told, before = refusal.overflow.window_tokens, self.find(place)
        if told is not None:
            window, is_told = told, True
        elif before is not None and before.is_told:
            window, is_told = before.window_tokens, True
        else:
            window, is_told = _bound(refusal, ratio, before), False
        lesson = Lesson(window, is_told, _ratio(refusal, window if is_told else None, before), self._clock())
        self._known.put(place, lesson)
        return lesson

    def recall(self, tenant: str, facts: Mapping[str, bytes]) -> None:
        """Take in what a store kept for a tenant; newer lessons of this process stay."""
        for key, value in facts.items():
            place, lesson = _place_of(tenant, key), _decode(value)
            if place is not None and lesson is not None:
                known = self._known.get(place)
                if known is None or known.at < lesson.at:
                    self._known.put(place, lesson)


def fact_of(place: Place, lesson: Lesson) -> tuple[str, bytes]:
    """Return key and value under which a lesson is kept for its tenant."""
    name = place.model[:_LONGEST_NAME].encode("utf-8", "backslashreplace").decode()
    return f"{_PREFIX}{place.upstream}|{name}", msgspec.json.encode(lesson)


def _bound(refusal: Refusal, ratio: float, before: Lesson | None) -> int:
    """Return what is certainly too much: as large as what was refused."""
    prompt = refusal.overflow.prompt_tokens or int(refusal.sent_tokens * ratio)
    refused = min(MOST_TOKENS, max(LEAST_TOKENS, prompt + refusal.output_tokens))
    return refused if before is None else min(refused, before.window_tokens)


def _ratio(refusal: Refusal, window_tokens: int | None, before: Lesson | None) -> float:
    """Return the ratio that the told count gives, or at least must have been since the window was passed."""
    known = before.ratio if before is not None else 0.0
    if refusal.sent_tokens < _LEAST_ESTIMATE_TOKENS:
        return known
    prompt = refusal.overflow.prompt_tokens
    if prompt is not None:
        return _clamped(prompt / refusal.sent_tokens)
    if window_tokens is None:
        return known
    return max(known, _clamped((window_tokens - refusal.output_tokens) / refusal.sent_tokens))


def _clamped(ratio: float) -> float:
    return min(_HIGHEST, max(_LOWEST, ratio))


def _place_of(tenant: str, key: str) -> Place | None:
    if not key.startswith(_PREFIX):
        return None
    upstream, separator, model = key.removeprefix(_PREFIX).partition("|")
    return Place(tenant, upstream, model) if separator else None


def _decode(value: bytes) -> Lesson | None:
    try:
        lesson = _DECODER.decode(value)
    except msgspec.DecodeError:
        return None
    return lesson if lesson.is_sound else None
