"""The reader of what the reading tool answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.reading import ReadOptions, ReadRequest, render_page
from proxy.demo.pages import NotAPage, join_pages, parse_page
from proxy.patterns import compile_pattern

TEXTS = st.text(st.sampled_from("ab\n\r \t…é🙂@"), max_size=300)


def read(text: str, budget_tokens: int) -> list[str]:
    """Return all answers that it takes to read a text."""
    options = ReadOptions(budget_tokens, count=len, compile=compile_pattern, row_bytes=16)
    answers, offset = [], 1
    while True:
        answers.append(render_page(text, ReadRequest("r", offset), options))
        following = parse_page(answers[-1]).following
        if following is None:
            return answers
        offset = following


@given(text=TEXTS, budget=st.integers(80, 400))
def test_pages_add_up_to_the_text(text: str, budget: int) -> None:
    """Whatever the text and the size of a page, joined pages are the exact text."""
    pages = [parse_page(answer) for answer in read(text, budget)]
    assert join_pages(pages) == text
    assert {page.total for page in pages} == {sum(len(page.rows) for page in pages)}


def test_rows_that_go_on_are_told_by_runs() -> None:
    """The head folds neighbouring numbers."""
    page = parse_page("@@ rows 4-8 of 9 · next offset=9 · rows 4-6, 8 continue in the next @@\na\nb\nc\nd\ne")
    assert page.continued == {4, 5, 6, 8}
    assert join_pages([page]) == "abcd\ne"


def test_a_refusal_is_no_page() -> None:
    """Its text is kept, so that it can be shown."""
    with pytest.raises(NotAPage, match="Nothing is stored"):
        parse_page("Nothing is stored under this ref.")
