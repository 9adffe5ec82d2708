"""Stubs of a made-up request, and the ways in which a model may spell one of them in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence

from hypothesis import strategies as st

from proxy.core.rows import count_lines
from proxy.core.stub import StubSpec, make_ref, render_stub
from tests.core.conversations import byte_count
from tests.playbook import TOOL

ORIGINAL = "\n".join(f'line {number} "é" \\ 🙂' for number in range(40))
OTHER = "something else\n" * 50


def ref_of(text: str) -> str:
    """Return the ref of a text."""
    return make_ref(b"s" * 32, b"root", text.encode("utf-8", "surrogatepass"))


def stub_of(text: str, kind: str = "result") -> str:
    """Return the stub of a text."""
    spec = StubSpec(
        ref=ref_of(text), tool=TOOL, kind=kind, tokens=1234, lines=count_lines(text), head_lines=3, tail_lines=2
    )
    return render_stub(text, spec, byte_count)


class Stubs:
    """A guard over these texts; each has two stubs, as if it had been moved out under two policies."""

    def __init__(self, *texts: str, lost: Collection[str] = ()) -> None:
        self._texts = {ref_of(text): text for text in texts}
        self._lost = lost

    @property
    def refs(self) -> Collection[str]:
        """The refs of all texts."""
        return self._texts.keys()

    def stubs(self, ref: str) -> Sequence[str]:
        """Return both stubs of a text."""
        return [stub_of(self._texts[ref], kind) for kind in ("user", "result")]

    def original(self, ref: str) -> str | None:
        """Return a text, unless it is lost."""
        text = self._texts[ref]
        return None if text in self._lost else text


GUARD = Stubs(ORIGINAL, OTHER)
STUB = stub_of(ORIGINAL)
REF = ref_of(ORIGINAL)
HEAD = f"[offloaded {REF} · result"
DAMAGED = STUB.replace("line 1 ", "line one ")

_SHORT = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\r": "\\r"}
_ASCII = frozenset("abcdefghijklmnopqrstuvwxyz_[ 234567")


def spell_by_codes(character: str) -> str:
    """Return a character as a code, two of them where it takes a pair; letters that no encoder escapes stay."""
    if character in _ASCII:
        return character
    data = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[i]:02x}{data[i + 1]:02X}" for i in range(0, len(data), 2))


def spell_shortly(character: str) -> str:
    """Return a character by its short escape, or as it is."""
    return _SHORT.get(character, json.dumps(character, ensure_ascii=False)[1:-1])


def spell_usually(character: str) -> str:
    """Return a character as Python writes it by default."""
    return json.dumps(character)[1:-1]


def spell_in_lines(character: str) -> str:
    """Return a character with raw line ends, which strict parsers refuse."""
    return character if character == "\n" else spell_shortly(character)


Spell = Callable[[str], str]
SPELLINGS: dict[str, Spell] = {
    "codes": spell_by_codes,
    "short": spell_shortly,
    "usual": spell_usually,
    "raw lines": spell_in_lines,
}


def spelled(text: str, spell: Spell) -> str:
    """Return what stands between the quotes of a JSON string."""
    return "".join(map(spell, text))


@st.composite
def spellings(draw: st.DrawFn, text: str) -> str:
    """Draw a spelling in which each character is escaped in a way of its own."""
    kinds = list(SPELLINGS.values())
    picked = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=40))
    return "".join(kinds[picked[at % len(picked)]](character) for at, character in enumerate(text))
