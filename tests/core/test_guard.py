"""Copied stubs are found, exact ones are replaced in any spelling, and nothing else changes by a byte."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.guard import BadCopies, Watch, explain, restore
from tests.core.copies import (
    DAMAGED,
    GUARD,
    HEAD,
    ORIGINAL,
    OTHER,
    REF,
    SPELLINGS,
    STUB,
    Stubs,
    ref_of,
    spell_shortly,
    spelled,
    spellings,
    stub_of,
)

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="["), max_size=20)
# Lone surrogates included, but no two that make a pair.
ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=30).map(
    lambda text: text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
)


def written(text: str) -> str:
    """Return arguments with this raw JSON string as their content."""
    return f'{{ "path":"a.md", "content":"{text}", "n":1.0}}'


@given(ANY_TEXT, TEXTS, TEXTS, st.data())
def test_a_copy_in_any_spelling_becomes_the_original(
    original: str, before: str, after: str, draw: st.DataObject
) -> None:
    """Whatever the text is and however the stub is escaped, the leaf is the original's and other bytes are the same."""
    stub = stub_of(original)
    head, tail = spelled(before, spell_shortly), spelled(after, spell_shortly)
    restored = restore(written(head + draw.draw(spellings(stub)) + tail), Stubs(original), is_json=True)
    assert isinstance(restored, str)
    start, _, rest = written("|").partition("|")
    assert restored.startswith(start + head)
    assert restored.endswith(tail + rest)
    assert json.loads(restored)["content"] == before + original + after
    restored.encode()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_several_copies_in_any_place(spelling: str) -> None:
    """Keys, lists, nested objects, the same stub twice, stubs of two policies: each is replaced where it stands."""
    spell = SPELLINGS[spelling]
    first, second = spelled(STUB, spell), spelled(stub_of(OTHER, "user"), spell)
    arguments = f'{{"{first}":["{second}{first}",{{"a":"{first} and {second}","b":[1e5]}}]}}'
    restored = restore(arguments, GUARD, is_json=True)
    assert isinstance(restored, str)
    assert json.loads(restored) == {ORIGINAL: [OTHER + ORIGINAL, {"a": f"{ORIGINAL} and {OTHER}", "b": [1e5]}]}


def test_free_text_is_not_json() -> None:
    """The input of a custom tool is taken as it is: nothing is unescaped, nothing is escaped."""
    assert restore(f"*** Begin \\n\n{STUB}\n*** End", GUARD, is_json=False) == f"*** Begin \\n\n{ORIGINAL}\n*** End"
    assert restore(spelled(STUB, spell_shortly), GUARD, is_json=False) == BadCopies((REF,))


def test_halves_of_a_pair_are_one_character() -> None:
    """An emoji that came in two deltas is the same emoji."""
    halves = written(spelled(STUB, spell_shortly).replace("🙂", "\ud83d\ude42"))
    restored = restore(halves, GUARD, is_json=True)
    assert isinstance(restored, str)
    assert json.loads(restored)["content"] == ORIGINAL


LOOK_ALIKES = [
    "",
    "not json",
    "off_ [offloaded] off_abc ... [truncated] \\u00e9",
    f"read {REF} and {ref_of(OTHER)}",
    f"[offloaded {ref_of('nobody')} · result · 5 tokens · 1 line]",
    f"[offloaded  {REF}]",
    f"[Offloaded {REF}]",
    "[offloaded off_",
    f"[offloaded {REF[:-1]}",
    f"[off[offloaded{REF}",
]


@pytest.mark.parametrize("text", LOOK_ALIKES)
@pytest.mark.parametrize("is_json", [True, False])
def test_look_alikes_are_text(text: str, is_json: bool) -> None:
    """Bare refs, unknown refs and similar words stay, also in arguments that are no JSON."""
    assert restore(text, GUARD, is_json=is_json) == text
    assert restore(written(text), GUARD, is_json=is_json) == written(text)


DAMAGES = {
    "head": HEAD,
    "first half": STUB[: len(STUB) // 2],
    "all but one": STUB[:-1],
    "changed": DAMAGED,
    "longer ref": STUB.replace(REF, REF + "a"),
    "indented": STUB.replace("\n", "\n  "),
    "nested": json.dumps({"content": STUB}),
    "second": f"{STUB} {DAMAGED}",
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_copy_is_told(kind: str) -> None:
    """There is no saying what it stands for, whole copies beside it or not."""
    assert restore(written(spelled(DAMAGES[kind], spell_shortly)), GUARD, is_json=True) == BadCopies((REF,))


def test_a_copy_cannot_be_restored_without_its_original_or_in_broken_json() -> None:
    """A text that is not at hand, and arguments that were cut or have an escape that JSON does not know."""
    copy = spelled(STUB, spell_shortly)
    assert restore(written(copy), Stubs(ORIGINAL, lost=[ORIGINAL]), is_json=True) == BadCopies((REF,))
    for broken in ('{"a":"' + copy, written(copy) + "}", written(copy + "\\x"), "[" * 100_000 + copy):
        assert restore(broken, GUARD, is_json=True) == BadCopies((REF,))


def test_a_stub_inside_a_copied_stub_is_part_of_it() -> None:
    """An original may begin with a stub; its copy is one copy, and what is put in is not looked at again."""
    outer = f"{STUB}\n" * 30
    restored = restore(written(spelled(stub_of(outer), spell_shortly)), Stubs(ORIGINAL, outer), is_json=True)
    assert isinstance(restored, str)
    assert json.loads(restored)["content"] == outer


def test_the_model_is_told_what_to_read() -> None:
    """Each ref once, with the tool under its name here; without the tool that it cannot be read."""
    told = explain(BadCopies((REF, ref_of(OTHER))), "read_offloaded_2")
    assert told.count(f'read_offloaded_2(ref="{REF}")') == told.count(ref_of(OTHER)) == 1
    assert "cannot be read" in explain(BadCopies((REF,)), None)
    assert restore(told, GUARD, is_json=False) == told, "a model that quotes it is not told again"


# -- while calls stream


def waits(text: str, cuts: list[int]) -> list[bool]:
    """Return after which pieces of a text what follows has to wait."""
    watch = Watch(GUARD)
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(text)), len(text)]
    out = []
    for start, stop in pairwise(places):
        watch.follow(0, text[start:stop])
        out.append(watch.must_wait)
    return out


@given(st.lists(st.integers(0, 400), max_size=8), TEXTS)
def test_a_head_is_found_in_any_pieces(cuts: list[int], before: str) -> None:
    """However the call is cut, nothing from the head on leaves before the copy is known."""
    text = written(spelled(before + STUB, spell_shortly))
    start = text.index("[offloaded")
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(text)), len(text)]
    for stop, must_wait in zip(places[1:], waits(text, cuts), strict=True):
        assert must_wait is (stop > start)
    watch = Watch(GUARD)
    watch.follow(3, text)
    assert watch.has_found
    watch.settle()
    assert watch.must_wait
    watch.rest()
    assert not watch.must_wait


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_look_alikes_wait_only_while_they_may_be_a_head(text: str) -> None:
    """Byte by byte: only an end that a known head begins with waits, and the next byte lets it go."""
    heads = [f"[offloaded {ref}" for ref in GUARD.refs]
    for stop, must_wait in enumerate(waits(text, list(range(len(text)))), 1):
        tail = text[:stop][text[:stop].rfind("[") :]
        assert must_wait is ("[" in text[:stop] and any(head.startswith(tail) for head in heads))
    watch = Watch(GUARD)
    watch.follow(0, text)
    watch.settle()
    assert not watch.must_wait


def test_calls_are_followed_apart() -> None:
    """The beginning of one call and the end of another make no head; each waits for its own."""
    watch = Watch(GUARD)
    watch.follow(0, HEAD[:12])
    watch.follow(1, HEAD[12:])
    assert (watch.has_found, watch.must_wait) == (False, True)
    watch.follow(0, "x")
    assert not watch.must_wait


FRAME = '{"choices": [{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":%s}}]}}]}'


@pytest.mark.parametrize(
    ("piece", "skipped"),
    [
        ("plain", True),
        ('"choices":', True),
        ("a[b", False),
        ('"choices":[', False),
        ('{"tool_calls":[offloaded', False),
        ("[", False),
    ],
)
def test_frames_without_a_bracket_of_their_own_are_skipped(piece: str, skipped: bool) -> None:
    """A head cannot begin in them; keys in the text cannot pass for those of a chunk."""
    frame = FRAME % json.dumps(piece)
    assert Watch(GUARD).can_skip(frame.encode()) is skipped
    assert Watch(GUARD).can_skip(frame.encode() * 2) is skipped
    waiting = Watch(GUARD)
    waiting.follow(0, "[off")
    assert not waiting.can_skip(frame.encode())
