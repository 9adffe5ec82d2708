"""How commands print."""

from __future__ import annotations

import pytest

from proxy.cli.output import print_json, print_table


def test_a_table_is_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers stand on the right, text on the left, nothing is shortened, None is a dash."""
    print_table(("name", "count"), [{"name": "x" * 120, "count": 5}, {"name": "y", "count": None}])
    assert capsys.readouterr().out == f"name{' ' * 116}  count\n{'x' * 120}      5\ny{' ' * 119}      -\n"


def test_a_table_without_rows_has_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list still shows what it is a list of."""
    print_table(("a", "b"), [])
    assert capsys.readouterr().out == "a  b\n"


def test_json_is_indented(capsys: pytest.CaptureFixture[str]) -> None:
    """Readable for people, too, and not escaped."""
    print_json({"a": ["ü"]})
    assert capsys.readouterr().out == '{\n  "a": [\n    "ü"\n  ]\n}\n'
