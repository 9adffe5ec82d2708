"""What refusals teach, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.overflow import Overflow
from proxy.core.window import is_plausible
from proxy.lessons import LIFE_SECONDS, Lesson, Lessons, Place, Refusal, fact_of

HERE = Place("t_1", "https://up.example.org", "m")
OTHER = Place("t_2", "https://up.example.org", "m")


class Clock:
    """A clock that is set by hand."""

    now = 1_000_000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


def refusal(window: int | None = None, prompt: int | None = None, sent: int = 10_000, output: int = 0) -> Refusal:
    """Return a refusal of a prompt that we took for `sent` tokens."""
    return Refusal(Overflow(window, prompt), sent, output)


def test_a_named_window_and_count_are_learnt() -> None:
    """For the tenant whose request was refused, and for no other."""
    lessons = Lessons()
    lesson = lessons.learn(HERE, refusal(16_000, 32_000), 1.0)
    assert (lesson.window_tokens, lesson.is_told, lesson.ratio) == (16_000, True, 3.2)
    assert lessons.find(HERE) == lesson
    assert lessons.find(OTHER) is None


def test_without_a_number_less_than_the_refused_fits() -> None:
    """Each refusal lowers the bound, none raises it."""
    lessons = Lessons()
    assert lessons.learn(HERE, refusal(sent=10_000, output=500), 1.2).window_tokens == 12_500
    assert lessons.learn(HERE, refusal(sent=20_000), 1.2).window_tokens == 12_500
    second = lessons.learn(HERE, refusal(sent=8_000), 1.2)
    assert (second.window_tokens, second.is_told, second.ratio) == (9_600, False, 0.0)


def test_a_named_window_outlives_refusals_without_one() -> None:
    """These then say that our estimates are too low."""
    lessons = Lessons()
    lessons.learn(HERE, refusal(16_000), 1.0)
    lesson = lessons.learn(HERE, refusal(sent=8_000), 1.0)
    assert (lesson.window_tokens, lesson.is_told, lesson.ratio) == (16_000, True, 2.0)


def test_a_later_named_window_replaces_the_earlier() -> None:
    """Also a larger one: the model got more room."""
    lessons = Lessons()
    lessons.learn(HERE, refusal(16_000), 1.0)
    assert lessons.learn(HERE, refusal(32_000, 40_000), 1.0).window_tokens == 32_000


def test_short_prompts_teach_no_ratio() -> None:
    """Templates weigh too much in them."""
    assert Lessons().learn(HERE, refusal(512, 900, sent=300), 1.0).ratio == 0


def test_lessons_are_forgotten_after_a_day() -> None:
    """A model that was given more room gets it."""
    clock = Clock()
    lessons = Lessons(clock)
    lessons.learn(HERE, refusal(16_000), 1.0)
    clock.now += LIFE_SECONDS - 1
    assert lessons.find(HERE) is not None
    clock.now += 1
    assert lessons.find(HERE) is None
    assert lessons.learn(HERE, refusal(sent=20_000), 1.0).window_tokens == 20_000


def test_facts_carry_lessons_to_other_processes() -> None:
    """The newer one of two wins, and other facts are left alone."""
    clock = Clock()
    ours, theirs = Lessons(clock), Lessons(clock)
    key, value = fact_of(HERE, ours.learn(HERE, refusal(16_000), 1.0))
    theirs.recall("t_1", {key: value, "no-tool|any|m": b"1"})
    assert theirs.find(HERE) == ours.find(HERE)
    assert theirs.find(OTHER) is None
    clock.now += 10
    newer = theirs.learn(HERE, refusal(8_000), 1.0)
    theirs.recall("t_1", {key: value})
    assert theirs.find(HERE) == newer


@pytest.mark.parametrize("model", ["m", "a|b", "", "\ud83d", "x" * 5_000])
def test_any_name_makes_a_key(model: str) -> None:
    """Stores take neither half characters nor endless keys."""
    place = Place("t_1", "http://[::1]:8000", model)
    key, value = fact_of(place, Lesson(8_192, is_told=True, ratio=0.0, at=1.0))
    key.encode()
    assert len(key) < 1_000
    lessons = Lessons(lambda: 2.0)
    lessons.recall("t_1", {key: value})
    assert (lessons.find(place) is not None) == (model in ("m", "a|b", ""))


@pytest.mark.parametrize(
    "value", [b"", b"1", b"{}", b"[1,true,1.0,1]", b"[8192,true,99,1]", b"[true,true,1,1]", b"\xff"]
)
def test_damaged_facts_teach_nothing(value: bytes) -> None:
    """A store may hold what another version wrote."""
    lessons = Lessons(lambda: 2.0)
    lessons.recall("t_1", {"window|https://up.example.org|m": value, "window|": b"[8192,true,1,1]"})
    assert lessons.find(HERE) is None


@given(
    refusals=st.lists(
        st.builds(
            refusal,
            window=st.none() | st.integers(256, 1 << 31),
            prompt=st.none() | st.integers(1, 1 << 31),
            sent=st.integers(0, 1 << 24),
            output=st.integers(0, 1 << 24),
        ),
        min_size=1,
        max_size=6,
    ),
    ratio=st.floats(0.5, 3.0),
)
def test_every_lesson_is_sound_and_survives_the_store(refusals: list[Refusal], ratio: float) -> None:
    """Whatever upstreams refuse, windows and ratios stay in bounds."""
    lessons, others = Lessons(lambda: 5.0), Lessons(lambda: 6.0)
    for item in refusals:
        lesson = lessons.learn(HERE, item, ratio)
        assert lesson.is_sound
        assert is_plausible(lesson.window_tokens)
    key, value = fact_of(HERE, lesson)
    others.recall("t_1", {key: value})
    assert others.find(HERE) == lesson
