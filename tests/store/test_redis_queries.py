"""How lists of several tenants become one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadRequest
from proxy.store.base import PageRequest
from proxy.store.redis_queries import Row, _before, _page


@given(st.lists(st.lists(st.integers(1, 30), unique=True, max_size=8), max_size=4), st.integers(4, 9))
def test_pages_show_everything_once(numbers: list[list[int]], limit: int) -> None:
    """Going through several lists shows each item once, newest first, although numbers may be the same."""
    lists = [[Row(n, (n, tenant)) for n in sorted(of_one, reverse=True)] for tenant, of_one in enumerate(numbers)]
    found, request = [], PageRequest(limit)
    for _ in range(40):
        before = request.position
        rest = [[row for row in rows if before is None or row.number < before][: limit + 1] for rows in lists]
        page = _page(rest, request)
        assert len(page.data) <= limit
        found += page.data
        if page.next is None:
            break
        request = PageRequest(limit, page.next)
    assert len(found) == len(set(found)) == sum(map(len, numbers))
    assert [n for n, _ in found] == sorted((n for n, _ in found), reverse=True)


def test_what_the_server_dropped_takes_no_room() -> None:
    """Items that are gone are left out, and the list goes on after them."""
    page = _page([[Row(5, "a"), Row(4, None), Row(3, "b")]], PageRequest(2))
    assert page.data == ["a"]
    assert PageRequest(cursor=page.next).position == 4


def test_the_end_of_a_page() -> None:
    """The next page begins below its cursor."""
    assert _before(PageRequest()) == "+inf"
    assert _before(PageRequest(cursor=_page([[Row(7, 1), Row(6, 2)]], PageRequest(1)).next)) == "(7"
    with pytest.raises(BadRequest):
        _before(PageRequest(cursor="nonsense"))
