"""Stubs: what they show, what they cost, and how copies of them are recognised."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.rows import count_lines, to_bytes
from proxy.core.stub import (
    PREVIEW_TOKENS,
    STUB_START,
    StubSpec,
    find_markers,
    is_worthwhile,
    make_ref,
    render_stub,
)
from proxy.counting import Counter

COUNTER = Counter()
REF = make_ref(b"secret", b"root", b"original")
OTHER = make_ref(b"secret", b"root", b"another")

TEXTS = st.one_of(
    st.text(max_size=2_000),
    st.text(alphabet="a\n\r \x00🙂\ud800…[]", max_size=400),
    st.lists(st.tuples(st.sampled_from("ab \n\r🙂é"), st.integers(1, 900)), max_size=12).map(
        lambda runs: "".join(char * number for char, number in runs),
    ),
)


def spec(text: str, head: int = 10, tail: int = 5, tool: str | None = "read_offloaded") -> StubSpec:
    """Return the spec of a tool result."""
    return StubSpec(REF, tool, "result", COUNTER.count(text), count_lines(text), head, tail)


def stub_of(text: str, head: int = 10, tail: int = 5, tool: str | None = "read_offloaded") -> str:
    """Return the stub of a tool result."""
    return render_stub(text, spec(text, head, tail, tool), COUNTER.count)


def shown_lines(stub: str) -> list[str]:
    """Return the lines that a stub shows."""
    return [line for line in stub.split("\n")[1:-1] if not re.fullmatch(r"… [\d,]+ lines? not shown …", line)]


def test_the_whole_stub() -> None:
    """Head, first lines, gap, last lines and the call that reads on, each on its line."""
    text = "\n".join(f"line {number}" for number in range(1, 1_401))
    assert stub_of(text, 2, 1).split("\n") == [
        f"[offloaded {REF} · result · {COUNTER.count(text):,} tokens · 1,400 lines]",
        "line 1",
        "line 2",
        "… 1,397 lines not shown …",
        "line 1400",
        f'[to read it: read_offloaded(ref="{REF}", offset=3)]',
    ]
    assert stub_of(text).startswith(STUB_START)


def test_a_stub_that_cannot_be_read_names_no_tool() -> None:
    """Where the tool is not declared the stub says that the text cannot be read, and mentions no call."""
    stub = stub_of("a\n" * 50, tool=None)
    assert stub.endswith(f"[{REF} cannot be read in this request]")
    assert "read_offloaded" not in stub


def test_more_lines_wanted_than_there_are_means_both_ends() -> None:
    """Neither end takes the room of the other."""
    text = "\n".join(f"line {number:04} of a longer text" for number in range(600))
    shown = shown_lines(stub_of(text, 100_000, 100_000))
    heads = sum(line < "line 0300" for line in shown)
    assert abs(2 * heads - len(shown)) <= 1 < len(shown)
    few = stub_of("x\ny\nz", 100_000, 100_000)
    assert shown_lines(few) == ["x", "y", "z"]


def test_no_preview_is_two_lines() -> None:
    """With no lines to show, the stub is its head and its last line."""
    text = "x\n" * 99
    assert stub_of(text, 0, 0).split("\n") == [
        f"[offloaded {REF} · result · {COUNTER.count(text)} tokens · 100 lines]",
        f'[to read it: read_offloaded(ref="{REF}")]',
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x" * 1_000_000, ["x" * 300 + " …"]),
        ("\n" * 9_000, [""] * 15),
        ("a\r\n" * 50 + "b", ["a\r"] * 14 + ["b"]),
        (
            "\x00\x1b[31m\n\ud800\n" * 30 + "z",
            ["\x00\x1b[31m", "\ud800"] * 5 + ["\x00\x1b[31m", "\ud800"] * 2 + ["z"],
        ),
        ("first\n" + "y" * 5_000, ["first", "y" * 300 + " …"]),
        ("", [""]),
        ("one\ntwo", ["one", "two"]),
    ],
)
def test_lines_are_shown_verbatim_and_once(text: str, shown: list[str]) -> None:
    """Shown lines are those of the original, cut at 300 characters, whatever they hold."""
    assert shown_lines(stub_of(text)) == shown


def test_the_call_leads_to_the_first_row_that_is_not_shown_whole() -> None:
    """A cut line is where reading has to begin."""
    assert "offset=3)" in stub_of("a\nb\n" + "c" * 400 + "\nd" * 90)
    assert f'(ref="{REF}")' in stub_of("c" * 400 + "\nd" * 90)
    assert f'(ref="{REF}")' in stub_of("c" * 400)
    assert f'(ref="{REF}")' in stub_of("a\nb\nc")
    assert "offset=3)" in stub_of("a\nb\n" + "c" * 400)


def test_the_middle_of_the_preview_goes_first() -> None:
    """Over 400 tokens the lines in the middle are left out; the first and the last stay."""
    text = "\n".join(f"{number:04d} " + "lorem ipsum " * 20 for number in range(500))
    shown = shown_lines(stub_of(text, 100, 100))
    heads = [int(line[:4]) for line in shown]
    assert heads == [0, 1, 2, 3, 4, 496, 497, 498, 499]
    assert f"… {500 - len(shown)} lines not shown …" in stub_of(text, 100, 100)
    assert [len(line) for line in shown] == [245] * 9


def test_a_wide_line_does_not_cost_the_other_side() -> None:
    """A line too large for what is left ends its own side only."""
    text = "start\n" + "🙂⁂" * 150 + "\nmiddle" * 200 + "\nend 1\nend 2\nend 3"
    assert shown_lines(stub_of(text, 5, 3)) == ["start", "end 1", "end 2", "end 3"]


def test_first_and_last_line_are_shortened_rather_than_dropped() -> None:
    """When both do not fit, each gets half of the preview."""
    first, last = "ꙮ𒐫" * 200, "𓀀ꙮ" * 200
    shown = shown_lines(stub_of(f"{first}\nmiddle\n{last}", 5, 5))
    assert len(shown) == 2
    assert all(line.endswith(" …") and len(line) > 20 for line in shown)
    assert first.startswith(shown[0][:-2])
    assert last.startswith(shown[1][:-2])


@given(TEXTS, st.integers(0, 120), st.integers(0, 120))
def test_what_every_stub_keeps(text: str, head: int, tail: int) -> None:
    """Lines come from the original in order, the counts add up, and the limits hold."""
    stub = stub_of(text, head, tail)
    lines, shown = text.split("\n"), shown_lines(stub)
    assert all(len(line) <= 302 for line in shown)
    assert COUNTER.count("\n".join(shown)) <= PREVIEW_TOKENS + len(shown)
    gaps = re.findall(r"^… ([\d,]+) lines? not shown …$", stub, re.MULTILINE)
    hidden = [int(gap.replace(",", "")) for gap in gaps]
    if shown and not set(lines) & set(re.findall(r"^… .*$", stub, re.MULTILINE)):
        assert len(shown) + sum(hidden) == len(lines)
    if head and "not shown" not in text:
        assert lines[0].startswith(shown[0].removesuffix(" …")) or shown[0] == lines[0]
    assert stub == stub_of(text, head, tail)


@given(
    TEXTS,
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from(["read_offloaded", "read_offloaded_2", None]),
)
def test_a_copied_stub_is_found_whole(text: str, head: int, tail: int, tool: str | None) -> None:
    """A stub inside other text is found from its first to its last character."""
    stub = stub_of(text, head, tail, tool)
    around = f"{{before}} {stub} {{after}}"
    (marker,) = find_markers(around)
    assert marker.complete
    assert marker.ref == REF
    assert around[marker.start : marker.end] == stub


TEN = "\n".join(f"line {number}" for number in range(40))


@pytest.mark.parametrize(
    "damage",
    [
        lambda stub: stub.replace("line 1\n", ""),
        lambda stub: stub.replace("… 25 lines", "… 26 lines"),
        lambda stub: stub.replace("40 lines]", "41 lines]"),
        lambda stub: stub[: stub.index("line 3")],
        lambda stub: stub.replace(f'"{REF}"', f'"{OTHER}"'),
        lambda stub: stub.replace("line 2\n", "line 2 " + "x" * 300 + "\n"),
        lambda stub: stub[: stub.rindex("[")] + "[to read it: shout!]",
        lambda stub: stub.replace("40 lines]", "40 lines] and"),
        lambda stub: stub.replace("… 25 lines", f"… {'9' * 9_999} lines"),
    ],
)
def test_a_damaged_stub_is_not_complete(damage: Callable[[str], str]) -> None:
    """A stub with a line, a number or its end missing is reported, but not as the whole."""
    markers = find_markers(damage(stub_of(TEN)))
    assert markers
    assert markers[0].ref == REF
    assert not any(marker.complete for marker in markers)


def test_bare_refs_are_found() -> None:
    """A ref alone counts; what only resembles one does not."""
    text = f"see {REF} and ({OTHER}), not off_short, OFF_, [offloaded], off_{'1' * 26}"
    assert [(text[m.start : m.end], m.ref, m.complete) for m in find_markers(text)] == [
        (REF, REF, False),
        (OTHER, OTHER, False),
    ]
    assert find_markers("off_ [offloaded] off_abc … [truncated]") == []


def test_a_stub_inside_a_preview_belongs_to_the_outer_stub() -> None:
    """An original that imitates stubs, gaps and ends does not confuse the stub around it."""
    fake = stub_of("a\n" * 30).replace(REF, OTHER)
    text = "\n".join([fake, "… 7 lines not shown …", f'[to read it: x(ref="{OTHER}")]', "z\n" * 60])
    stub = stub_of(text, 20, 5)
    assert OTHER in stub
    assert [(m.ref, m.complete, m.end - m.start) for m in find_markers(stub)] == [(REF, True, len(stub))]


def test_two_copies_are_two_markers() -> None:
    """A cut copy in front of a whole one does not swallow it."""
    stub = stub_of(TEN)
    assert [m.complete for m in find_markers(stub[:150] + "\n" + stub + stub)] == [False, True, True]


def test_many_forged_heads_take_no_long_time() -> None:
    """Thousands of heads and ends are looked at once each."""
    head = f"[offloaded {REF} · result · 1 token · 9 lines]"
    end = f'\n[to read it: read_offloaded(ref="{REF}")]'
    assert len(find_markers(head * 20_000)) == 20_000
    assert len(find_markers((head + "\nx" + end) * 5_000)) == 10_000


def test_a_ref_says_nothing_and_depends_on_everything() -> None:
    """Refs have their form, and another secret, root or original gives another ref."""
    assert re.fullmatch(r"off_[a-z2-7]{26}", REF)
    refs = {
        make_ref(secret, root, original)
        for secret in (b"secret", b"s" * 100, b"s" * 101)
        for root in (b"root", b"rooto")
        for original in (b"original", b"riginal")
    }
    assert len(refs) == 12
    assert make_ref(b"secret", b"root", b"original") == REF


def test_a_stub_must_be_worth_it() -> None:
    """At most half of the original, by tokens and by bytes."""
    text = "\n".join(f"value {number}" for number in range(400))
    stub = stub_of(text)
    assert is_worthwhile(stub, text, COUNTER.count(text), COUNTER.count)
    assert not is_worthwhile(stub, text, 2 * COUNTER.count(stub) - 1, COUNTER.count)
    small = "x" * (2 * len(to_bytes(stub)) - 1)
    assert not is_worthwhile(stub, small, 100_000, COUNTER.count)
