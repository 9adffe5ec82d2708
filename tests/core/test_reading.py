"""Reading back: declaration, arguments, pages, hits, history and index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.reading import (
    HistoryCall,
    HistoryEntry,
    IndexItem,
    ReadOptions,
    ReadRequest,
    Refusal,
    bad_arguments,
    bad_pattern,
    erased_ref,
    expired_ref,
    offset_beyond,
    parse_request,
    render_history,
    render_index,
    render_page,
    row_bytes,
    store_unavailable,
    unknown_ref,
)
from proxy.counting import Counter
from proxy.patterns import compile_pattern

COUNTER = Counter()
REF = "off_" + "ab" * 13
HEAD = re.compile(r"@@ rows (\d+)-(\d+) of (\d+)( .*)?@@")
CONTINUES = re.compile(r"rows? ([\d, -]+) continues? in the next")

TEXTS = st.one_of(
    st.text(max_size=500),
    st.text(alphabet="a\n\r é🙂\ud800@", max_size=500),
    st.lists(st.tuples(st.sampled_from("ab \n\r🙂é\U0010fffe"), st.integers(1, 5_000)), max_size=6).map(
        lambda runs: "".join(char * number for char, number in runs),
    ),
    st.lists(st.text(alphabet="abc 0123", max_size=40), max_size=300).map("\n".join),
)


class Page:
    """An answer, read the way a model would."""

    def __init__(self, answer: str) -> None:
        head, _, body = answer.partition("\n")
        found = HEAD.fullmatch(head)
        assert found, head
        self.first, self.last, self.total = (int(found[group]) for group in (1, 2, 3))
        self.note = found[4] or ""
        self.rows = body.split("\n") if self.last else []
        following = re.search(r"next offset=(\d+)", self.note)
        self.next = int(following[1]) if following else None
        runs = CONTINUES.search(self.note)
        self.continuing = set(_numbers(runs[1])) if runs else set()


def _numbers(runs: str) -> Iterator[int]:
    for run in runs.split(", "):
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)


def options(budget: int = 8_000) -> ReadOptions:
    """Return options for answers of a budget."""
    return ReadOptions(budget, COUNTER.count, compile_pattern, row_bytes(budget))


def read(text: str, budget: int = 8_000, **fields: object) -> str:
    """Return the answer for some arguments."""
    request = parse_request(json.dumps({"ref": REF, **fields}))
    assert isinstance(request, ReadRequest)
    return render_page(text, request, options(budget))


def read_all(text: str, budget: int, **fields: object) -> list[Page]:
    """Follow the next offset from page to page."""
    pages = [Page(read(text, budget, **fields))]
    while (following := pages[-1].next) is not None:
        pages.append(Page(read(text, budget, offset=following, **fields)))
    return pages


def put_together(pages: list[Page]) -> str:
    """Join the rows of all pages as their heads say."""
    rows = [
        row if number in page.continuing else row + "\n"
        for page in pages
        for number, row in enumerate(page.rows, page.first)
    ]
    return "".join(rows).removesuffix("\n")


# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"ref": "REF"}', ReadRequest(REF)),
        ('{"ref": "REF", "offset": 5, "limit": 2, "pattern": "x"}', ReadRequest(REF, 5, 2, "x")),
        ('{"ref": " REF\\n"}', ReadRequest(REF)),
        ('{"ref": "`REF`"}', ReadRequest(REF)),
        ('{"ref": ["REF"]}', ReadRequest(REF)),
        ('{"ref": "[offloaded REF · result · 1 token · 9 lines]"}', ReadRequest(REF)),
        ('{"ref": "History"}', ReadRequest("history")),
        ('{"ref": "INDEX ", "unknown": {"a": 1}}', ReadRequest("index")),
        ('{"ref": "REF", "offset": "5", "limit": " 7 "}', ReadRequest(REF, 5, 7)),
        ('{"ref": "REF", "offset": 5.0, "limit": "1,000"}', ReadRequest(REF, 5, 1_000)),
        ('{"ref": "REF", "offset": "5.0", "limit": 1e2}', ReadRequest(REF, 5, 100)),
        ('{"ref": "REF", "offset": 0, "limit": 0}', ReadRequest(REF)),
        ('{"ref": "REF", "limit": -1}', ReadRequest(REF)),
        ('{"ref": "REF", "offset": null, "limit": null, "pattern": null}', ReadRequest(REF)),
        ('{"ref": "REF", "offset": "", "limit": "null", "pattern": ""}', ReadRequest(REF)),
        ('{"ref": "REF", "pattern": 404}', ReadRequest(REF, pattern="404")),
        ('{"ref": "REF", "pattern": " "}', ReadRequest(REF, pattern=" ")),
        ('"{\\"ref\\": \\"REF\\"}"', ReadRequest(REF)),
        ("REF", ReadRequest(REF)),
        ('"REF"', ReadRequest(REF)),
    ],
)
def test_clear_arguments_are_understood(arguments: str, expected: ReadRequest) -> None:
    """Spellings with one meaning are taken for it."""
    assert parse_request(arguments.replace("REF", REF)) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "no ref"),
        ("  ", "no ref"),
        ("{}", "no ref"),
        ("null", "no ref"),
        ('{"offset": 3}', "no ref"),
        ('{"ref": null}', "no ref"),
        ('{"ref": 5}', "not a string"),
        ("[1]", "not a JSON object"),
        ("7", "not a JSON object"),
        ('{"ref": "REF"', "not valid JSON"),
        ("not json", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"ref": "\ud800"}', "not valid JSON"),
        ('{"ref": "REF", "offset": "five"}', "offset"),
        ('{"ref": "REF", "offset": 2.5}', "offset"),
        ('{"ref": "REF", "offset": -3}', "negative"),
        ('{"ref": "REF", "offset": true}', "offset"),
        ('{"ref": "REF", "offset": [1]}', "offset"),
        ('{"ref": "REF", "limit": "all"}', "limit"),
        ('{"ref": "REF", "limit": {}}', "limit"),
        ('{"ref": "REF", "pattern": ["a"]}', "pattern"),
        ('{"ref": "REF", "pattern": false}', "pattern"),
    ],
)
def test_unclear_arguments_are_refused_with_the_way_out(arguments: str, words: str) -> None:
    """The refusal names what is wrong and how to call."""
    refusal = parse_request(arguments.replace("REF", REF))
    assert isinstance(refusal, Refusal)
    assert words in refusal.text
    assert '"ref"' in refusal.text
    assert len(refusal.text) < 500


@pytest.mark.parametrize(
    "ref", ["", " ", "off_short", "../../etc/passwd", f"{REF} or off_{'c' * 26}", "OFF_" + "A" * 26]
)
def test_what_is_no_ref_is_refused_as_an_unknown_one(ref: str) -> None:
    """Refs of a wrong form cannot be told from refs of nobody."""
    assert parse_request(json.dumps({"ref": ref})) == unknown_ref()


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists), st.text())
def test_no_arguments_raise(value: object, text: str) -> None:
    """Whatever a model writes is a request or a refusal."""
    for arguments in (
        text,
        json.dumps(value),
        json.dumps({"ref": REF, "offset": value, "limit": value, text: value}),
    ):
        assert isinstance(parse_request(arguments), ReadRequest | Refusal)


def test_refusals_say_whether_they_are_final() -> None:
    """Each says it in so many words, and what to do instead."""
    final = [
        unknown_ref(),
        erased_ref(),
        expired_ref(),
        bad_pattern("x"),
        bad_arguments("x"),
        offset_beyond(9, 3),
    ]
    for refusal in final:
        assert refusal.final
        assert re.search(r"\bis final\b", refusal.text)
        assert re.search(r"\b(call|run)\b", refusal.text, re.IGNORECASE)
        assert not refusal.text.startswith("@@")
    assert not store_unavailable().final
    assert "not final" in store_unavailable().text


# ---- pages


def test_a_page_of_an_original() -> None:
    """The head gives the rows shown, how many there are and where to go on; the rows follow verbatim."""
    text = "\n".join(f"row {number}" for number in range(1, 401))
    answer = read(text, offset=100, limit=3)
    assert answer == "@@ rows 100-102 of 400 · next offset=103 @@\nrow 100\nrow 101\nrow 102"
    assert read(text, offset=400) == "@@ rows 400-400 of 400 · end @@\nrow 400"
    assert read("") == "@@ rows 1-1 of 1 · end @@\n"


def test_the_head_names_rows_that_continue() -> None:
    """Pieces of long lines are named, in runs."""
    text = "a\n" + "b" * 6_500 + "\n" + "c" * 2_500 + "\nd"
    page = Page(read(text))
    assert "rows 2-4, 6 continue in the next" in page.note
    assert page.continuing == {2, 3, 4, 6}
    assert "row 2 continues in the next" in read(text, offset=2, limit=1)
    assert put_together([page]) == text


@settings(deadline=None)
@given(TEXTS, st.integers(200, 9_000))
def test_all_pages_together_are_the_text(text: str, budget: int) -> None:
    """For any text and budget: exact, never over the budget, and always getting on."""
    pages = read_all(text, budget)
    assert put_together(pages) == text
    assert all(page.total == pages[0].total for page in pages)
    assert pages[-1].last == pages[-1].total
    for before, page in pairwise(pages):
        assert page.first == before.last + 1 == before.next


@settings(deadline=None)
@given(TEXTS, st.integers(200, 9_000), st.integers(1, 400), st.one_of(st.none(), st.just("a"), st.just("^")))
def test_no_answer_is_over_its_budget(text: str, budget: int, offset: int, pattern: str | None) -> None:
    """The whole answer, head included, stays within the budget."""
    answer = read(text, budget, offset=offset, **({} if pattern is None else {"pattern": pattern}))
    assert COUNTER.count(answer) <= budget


def test_a_row_above_the_budget_is_shown_all_the_same() -> None:
    """With rows larger than the budget each page still has one."""
    request = ReadRequest(REF)
    text = "\n".join("qx7-" * 400 for _ in range(5))
    answer = render_page(text, request, ReadOptions(200, COUNTER.count, compile_pattern))
    assert Page(answer).rows == ["qx7-" * 400]


@pytest.mark.parametrize("char", ["a", " ", "\n", "=", "🙂", "\U0010fffe"])
def test_a_megabyte_of_one_character_is_read_to_the_end(char: str) -> None:
    """Pathological texts are paged exactly too."""
    text = char * 250_000
    page = Page(read(text))
    assert COUNTER.count(read(text)) <= 8_000
    last = Page(read(text, offset=page.total))
    assert last.next is None
    assert put_together([page]) == text[: len(put_together([page]))]


def test_pages_are_well_filled() -> None:
    """A page of ordinary lines uses most of its budget."""
    text = "\n".join(f"2026-01-01 worker {number} finished in {number % 97} ms" for number in range(3_000))
    assert COUNTER.count(read(text)) > 7_600


@pytest.mark.parametrize("offset", [401, 10**30])
def test_an_offset_behind_the_end_is_refused(offset: int) -> None:
    """The refusal gives the rows that there are."""
    answer = read("\n".join("x" * 400), offset=offset)
    assert "rows 1 to 400" in answer
    assert not answer.startswith("@@")


# ---- hits


def test_hits_are_numbered_rows() -> None:
    """The head gives the number of hits, each hit its row and text."""
    text = "\n".join(f"row {number:03d}" for number in range(1, 401))
    expected = "@@ rows 77-390 of 400 · 2 hits · end @@\n77: row 077\n390: row 390"
    assert read(text, pattern="row (077|390)") == expected
    assert read(text, pattern="077").startswith("@@ rows 77-77 of 400 · 1 hit · end @@\n")


def test_hits_are_paged() -> None:
    """Offset is the row from which hits are shown, limit how many."""
    text = "\n".join(f"row {number:03d}" for number in range(1, 401))
    assert read(text, pattern="7$", offset=20, limit=2) == (
        "@@ rows 27-37 of 400 · 40 hits, 2 shown · next offset=38 @@\n27: row 027\n37: row 037"
    )
    pages = read_all(text, 200, pattern="7$")
    assert len(pages) > 1
    assert [row for page in pages for row in page.rows] == [f"{n}: row {n:03d}" for n in range(7, 400, 10)]


def test_no_hit_says_so() -> None:
    """No hit at all and no more hits are told apart."""
    assert "0-0 of 3 · 0 hits" in read("a\nb\nc", pattern="x")
    assert "1 hit, none from row 2 on" in read("a\nb\nc", pattern="a", offset=2)


def test_a_hit_in_a_long_line_is_its_row() -> None:
    """A match over the seam of two rows is found, and the head says that the row continues."""
    text = "x" * 1_998 + "needle" + "y" * 3_000
    page = Page(read(text, pattern="needle"))
    assert page.rows == ["1: " + text[:2_000]]
    assert page.continuing == {1}


def test_a_bad_pattern_is_refused() -> None:
    """The answer names the fault and holds nothing of the text."""
    answer = read("secret", pattern="([")
    assert "missing ]" in answer
    assert "final" in answer
    assert "secret" not in answer


# ---- history and index


def test_history_shows_messages_unescaped() -> None:
    """Each message has a header line and its text as it is; calls are shown with id, name and arguments."""
    call = HistoryCall("call_1", "grep", '{"q": "\\n"}')
    entries = [
        HistoryEntry(1, "user", None, None, 'say "é"\n\ttwice'),
        HistoryEntry(2, "assistant", None, None, "", (call,)),
        HistoryEntry(3, "tool", "call_1", "grep", "found"),
        HistoryEntry(4, "user", None, "an\nne", ""),
    ]
    assert render_history(entries).split("\n") == [
        "--- message 1 · user ---",
        'say "é"',
        "\ttwice",
        "--- message 2 · assistant ---",
        'call_1 grep {"q": "\\n"}',
        "--- message 3 · tool · call_1 · grep ---",
        "found",
        "--- message 4 · user · an ne ---",
    ]


def test_index_has_a_line_for_each_ref() -> None:
    """Ref, kind, tool, size and the start of the first line; an empty index says so."""
    items = [
        IndexItem(REF, "result", "grep", 12_345, 400, "first\r"),
        IndexItem("off_" + "c" * 26, "user", None, 9_000, 1, "x" * 500),
    ]
    assert render_index(items).split("\n") == [
        f"{REF} · result · grep · 12,345 tokens · 400 lines · first ",
        f"off_{'c' * 26} · user · - · 9,000 tokens · 1 line · {'x' * 80}",
    ]
    assert render_index([]) == "Nothing is stored for this conversation."
