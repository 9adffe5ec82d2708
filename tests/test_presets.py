"""Presets: the built-in ones, and what extends them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from policies import discover
from policies.summarise_history import SummariseHistory
from proxy.presets import BUILT_IN_TABLES, Preset, built_in, lineage, preset_table, resolve_presets
from proxy.tables import Checker, Wrong
from proxy.units import Size


def resolve(**tables: dict[str, Any]) -> dict[str, Preset]:
    """Resolve presets written as in a file."""
    return resolve_presets(tables)


def policy(preset: Preset, name: str) -> Any:  # each policy has other knobs
    """Return a policy of a preset by its name."""
    return next(p for p in preset.policies if p.name() == name)


def names(preset: Preset) -> list[str]:
    """Return the names of a preset's policies, in order."""
    return [p.name() for p in preset.policies]


def test_the_built_in_presets_are_those_that_are_promised() -> None:
    """Names, sizes and limits are what the documentation says."""
    presets = built_in()
    assert set(presets) == {"off", "safe", "shadow", "balanced", "deep", "deepagents", "astreus"}
    assert presets["balanced"].trigger == Size(share=0.5, tokens=100_000)
    assert presets["balanced"].limit == Size(share=0.85)
    assert presets["balanced"].target == Size(share=0.1)
    assert presets["deep"].trigger == Size(share=0.25, tokens=50_000)
    assert presets["deep"].target == Size(share=0.05, tokens=10_000)
    assert presets["deepagents"].trigger == Size(share=0.85)
    assert presets["astreus"].trigger == Size(tokens=8000)
    assert all(p.read_tokens == 8000 and p.rounds == 8 for p in presets.values())


def test_off_does_nothing_and_safe_never_compacts() -> None:
    """`off` has no policies; `safe` offloads alone, so it has no sizes of a compaction."""
    presets = built_in()
    assert presets["off"] == Preset(name="off")
    assert names(presets["safe"]) == ["offload_results", "offload_user_messages"]
    assert (presets["safe"].trigger, presets["safe"].limit, presets["safe"].target) == (None, None, None)


def test_shadow_decides_as_balanced() -> None:
    """`shadow` differs from `balanced` in what it sends alone."""
    presets = built_in()
    balanced = msgspec.structs.replace(presets["balanced"], name="shadow", extends="balanced", shadow=True)
    assert presets["shadow"] == balanced


def test_what_the_built_in_presets_offload() -> None:
    """The limits of results and user texts, and how `deepagents` counts and previews."""
    presets = built_in()
    limits = {name: policy(p, "offload_results").over_tokens for name, p in presets.items() if p.policies}
    assert limits == {
        "safe": 8000,
        "balanced": 8000,
        "shadow": 8000,
        "deep": 2000,
        "deepagents": 20_000,
        "astreus": 8000,
    }
    imitated = policy(presets["deepagents"], "offload_results")
    assert (imitated.head_lines, imitated.tail_lines, imitated.counting) == (5, 5, "characters")
    assert imitated.per_turn_tokens is None
    assert policy(presets["deepagents"], "offload_user_messages").over_tokens == 50_000


def test_what_stands_in_for_other_systems() -> None:
    """A summary in four sections; the last three messages, the best steps and a summary in three tenths."""
    (deep,) = [p for p in built_in()["deepagents"].policies if isinstance(p, SummariseHistory)]
    headings = [line for line in (deep.prompt or "").splitlines() if line.startswith("##")]
    assert headings == ["## SESSION INTENT", "## SUMMARY", "## ARTIFACTS", "## NEXT STEPS"]
    assert built_in()["deepagents"].target == Size(share=0.1)
    (astreus,) = [p for p in built_in()["astreus"].policies if isinstance(p, SummariseHistory)]
    assert astreus == SummariseHistory(strategy="hybrid", keep_steps=1, keep_messages=3, ratio=0.3)
    assert built_in()["astreus"].trigger == Size(tokens=8000)


def test_the_built_in_tables_are_as_a_file_could_hold_them() -> None:
    """Apart from the mark of `shadow`, they pass the same checks as a user's."""
    for name, table in BUILT_IN_TABLES.items():
        written = {key: value for key, value in table.items() if key != "shadow"}
        Checker({}, lambda _: False).check(preset_table(), written, ("presets", name))


def test_knobs_are_merged_one_by_one() -> None:
    """A preset changes what it names and has the rest from below."""
    mine = resolve(mine={"extends": "deep", "limit": "70%", "offload_results": {"head_lines": 3}})["mine"]
    assert (policy(mine, "offload_results").over_tokens, policy(mine, "offload_results").head_lines) == (
        2000,
        3,
    )
    assert (mine.trigger, mine.limit) == (Size(share=0.25, tokens=50_000), Size(share=0.7))
    assert mine.extends == "deep"


def test_a_size_replaces_the_one_below_whole() -> None:
    """`{ tokens = … }` over `{ share, tokens }` leaves no share behind."""
    mine = resolve(mine={"extends": "balanced", "trigger": {"tokens": 5}})["mine"]
    assert mine.trigger == Size(tokens=5)


def test_presets_extend_presets_of_the_file_in_any_order() -> None:
    """A preset may extend one that is written below it, and is a shadow if that is one."""
    presets = resolve(a={"extends": "b", "rounds": 2}, b={"extends": "shadow", "read_tokens": 500})
    assert (presets["a"].rounds, presets["a"].read_tokens, presets["a"].shadow) == (2, 500, True)


def test_policies_are_switched_off_and_on() -> None:
    """`false` takes a policy out, `true` brings it with its own defaults or leaves it as it is."""
    presets = resolve(
        out={"extends": "deep", "offload_results": False},
        again={"extends": "out", "offload_results": True},
        kept={"extends": "deep", "offload_results": True},
        alone={"offload_results": True},
    )
    assert "offload_results" not in names(presets["out"])
    assert policy(presets["again"], "offload_results") == discover()["offload_results"]()
    assert policy(presets["kept"], "offload_results").over_tokens == 2000
    assert names(presets["alone"]) == ["offload_results"]


def test_the_order_of_writing_does_not_matter() -> None:
    """The chain runs in one order."""
    one = resolve(p={"offload_results": True, "offload_user_messages": True})["p"]
    two = resolve(p={"offload_user_messages": True, "offload_results": True})["p"]
    assert one == two


def test_a_compaction_has_all_its_sizes() -> None:
    """A preset that compacts, or says when, has the other sizes from `balanced`."""
    presets = resolve(a={"trigger": 5000}, b={"summarise_history": {"keep_steps": 1}})
    assert (presets["a"].trigger, presets["a"].target) == (Size(tokens=5000), Size(share=0.1))
    assert presets["b"].trigger == built_in()["balanced"].trigger
    assert resolve(c={"offload_results": True})["c"].trigger is None


@pytest.mark.parametrize(
    ("tables", "path", "problem"),
    [
        ({"a": {"extends": "balancd"}}, ("presets", "a", "extends"), "did you mean balanced?"),
        ({"a": {"extends": "a"}}, ("presets", "a", "extends"), "circle (a -> a)"),
        ({"a": {"extends": "b"}, "b": {"extends": "a"}}, ("presets", "b", "extends"), "circle (a -> b -> a)"),
        ({"balanced": {}}, ("presets", "balanced"), 'write extends = "balanced"'),
    ],
)
def test_wrong_chains_are_refused(tables: dict[str, dict[str, Any]], path: tuple[str, ...], problem: str) -> None:
    """Unknown names, circles and names that are taken are told with path and mend."""
    with pytest.raises(Wrong) as caught:
        resolve_presets(tables)
    assert caught.value.path == path
    assert problem in caught.value.problem


def test_lineage_is_told_from_the_preset_down() -> None:
    """The preset itself comes first, then what it extends."""
    assert list(lineage("shadow", BUILT_IN_TABLES)) == ["shadow", "balanced", "safe"]


def test_every_discovered_policy_has_a_table() -> None:
    """A new policy needs no line here to be configured."""
    assert set(discover()) <= set(preset_table().__struct_fields__)


@pytest.mark.parametrize(
    "table",
    [
        {"summarise_history": {"strategy": "hybrid", "keep_steps": 3, "keep_messages": 2, "ratio": 0.3}},
        {"summarise_history": {"model": "gpt-4o-mini", "wait_seconds": "20s", "prompt": "Be short."}},
        {"truncate_inputs": {"over_chars": 2000}},
        {"clear_reasoning": False},
    ],
)
def test_tables_of_policies_are_checked(table: dict[str, Any]) -> None:
    """What the contract names is accepted, misspelt knobs are not."""
    checker = Checker({}, lambda _: False)
    checker.check(preset_table(), table)
    name = next(iter(table))
    with pytest.raises(Wrong, match="no such key"):
        checker.check(preset_table(), {name: {"colour": 1}})
