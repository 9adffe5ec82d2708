"""Usage over rounds follows one rule, and odd usage harms nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from msgspec import Raw

from proxy.core.usage import merge_usage, sum_usage
from tests.core.wire.test_raw import json_values


def raw(value: Any) -> Raw | None:
    """Return usage as it came; "missing" for none."""
    return None if value == "missing" else Raw(json.dumps(value).encode())


def merged(*rounds: Any) -> Any:
    """Return what the client is told."""
    usage = merge_usage([raw(usage) for usage in rounds])
    return None if usage is None else json.loads(bytes(usage))


def use(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    """Return usage."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **details}


def test_prompt_of_the_last_round_and_completions_summed() -> None:
    """The client's meter shows the last prompt; what was generated is counted in all rounds, details included."""
    rounds = [
        use(
            1000,
            20,
            prompt_tokens_details={"cached_tokens": 1},
            completion_tokens_details={"reasoning_tokens": 5, "a": 1},
        ),
        use(
            6000,
            30,
            prompt_tokens_details={"cached_tokens": 9},
            completion_tokens_details={"reasoning_tokens": 7},
            cost=0.5,
        ),
    ]
    assert merged(*rounds) == {
        **use(6000, 50),
        "prompt_tokens_details": {"cached_tokens": 9},
        "completion_tokens_details": {"reasoning_tokens": 12, "a": 1},
        "cost": 0.5,
    }


def test_one_round_is_told_as_it_came() -> None:
    """Spelling included."""
    data = Raw(b'{"prompt_tokens": 1.0, "completion_tokens":2e0}')
    assert merge_usage([data]) == data
    assert merge_usage([None, data]) == data
    assert merge_usage([Raw(b"[1]"), data]) == data
    assert merge_usage([]) is None


ODD = {
    "cached outside": use(500, 400, total_tokens=13900, prompt_tokens_details={"cached_tokens": 13000}),
    "null": None,
    "missing": "missing",
    "strings": {"prompt_tokens": "12", "completion_tokens": "3", "total_tokens": "15"},
    "negative": use(-5, -1),
    "null fields": {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
    "null details": use(1, 2, prompt_tokens_details=None, completion_tokens_details=None),
    "odd details": use(1, 2, prompt_tokens_details=[1], completion_tokens_details="x"),
    "empty": {},
    "list": [1, 2],
    "word": "n/a",
    "only total": {"total_tokens": 7},
    "huge": use(10**30, 1),
    "booleans": {"completion_tokens": True},
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_usage_of_the_last_round_is_passed_on(kind: str) -> None:
    """What is no number stays what it was."""
    last = ODD[kind]
    got = merged(use(10, 5), last)
    if not isinstance(last, dict):
        assert got == (None if last == "missing" else last)
        return
    for key, value in last.items():
        if key not in ("completion_tokens", "total_tokens", "completion_tokens_details"):
            assert got[key] == value
    completion = last.get("completion_tokens")
    if not isinstance(completion, int) or completion is True or completion < 0:
        assert got.get("completion_tokens") == completion
        assert got.get("total_tokens") == last.get("total_tokens")


@pytest.mark.parametrize("kind", ODD)
def test_odd_usage_of_an_earlier_round_adds_what_can_be_added(kind: str) -> None:
    """Numbers are added, everything else is left out."""
    got = merged(ODD[kind], use(10, 5))
    extra = {"cached outside": 400, "null details": 2, "odd details": 2, "huge": 1}.get(kind, 0)
    assert got == use(10, 5 + extra)


def test_the_full_sum_counts_everything() -> None:
    """Statistics get prompts and completions of all rounds, nested counts too."""
    first = use(1000, 20, prompt_tokens_details={"cached_tokens": 100, "x": None}, queue_time=0.5)
    assert sum_usage([raw(first), None, raw(use(6000, 30, prompt_tokens_details={"cached_tokens": 5}))]) == {
        **use(7000, 50),
        "prompt_tokens_details": {"cached_tokens": 105},
        "queue_time": 0.5,
    }
    assert sum_usage([raw("n/a"), None]) is None
    assert sum_usage([raw({"a": 1}), raw({"a": {"b": 2}})]) == {"a": {"b": 2}}
    assert sum_usage([raw({"a": {"b": 2}}), raw({"a": 1})]) == {"a": 1}


@given(json_values, json_values, json_values)
def test_no_usage_of_any_shape_breaks_anything(first: object, second: object, third: object) -> None:
    """Whatever JSON comes as usage, there is an answer, and it is JSON."""
    rounds = [raw(first), raw(second), raw(third)]
    usage = merge_usage(rounds)
    assert usage is None or json.loads(bytes(usage)) is not ...
    sum_usage(rounds)
