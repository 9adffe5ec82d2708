"""Raw tables beside types."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from proxy.tables import Checker, Wrong, dotted, suggest


class Inner(msgspec.Struct, frozen=True):
    """A table in a table."""

    number: Annotated[int, Meta(ge=1)] = 1
    word: Literal["a", "b"] | None = None


class Outer(msgspec.Struct, frozen=True):
    """A table."""

    inner: Inner = Inner()
    named: dict[str, Inner] = {}
    words: tuple[str, ...] = ()
    one_or_more: str | tuple[str, ...] = ""
    switch: bool = False
    key: Annotated[str, Meta(min_length=1, extra={"secret": True})] | None = None

    def __post_init__(self) -> None:
        if self.words == ("forbidden",):
            raise Wrong(("words",), "this word is forbidden")


def check(value: object, *, environ: dict[str, str] | None = None, textual: bool = False) -> object:
    """Check a raw table against `Outer`."""
    return Checker(environ or {}, lambda _: textual).check(Outer, value)


def problem(value: object, **more: dict[str, str]) -> tuple[str, str]:
    """Return where and what is wrong with a raw table."""
    with pytest.raises(Wrong) as caught:
        check(value, **more)  # type: ignore[arg-type]  # `environ` alone is passed on
    return dotted(caught.value.path), caught.value.problem


def test_what_is_right_comes_back_as_plain_data() -> None:
    """The result converts to the type."""
    plain = check({"named": {"x": {"number": 2}}, "words": ["a"]})
    assert msgspec.convert(plain, Outer) == Outer(named={"x": Inner(number=2)}, words=("a",))


def test_unknown_keys_are_named_with_their_path_and_the_nearest_known_one() -> None:
    """A key that does not exist is no silent default."""
    assert problem({"named": {"a.b": {"nunber": 1}}}) == (
        'named."a.b".nunber',
        "no such key; did you mean number?",
    )


def test_wrong_types_say_what_may_be_written() -> None:
    """The mend names the form in words, not the Python type alone."""
    assert problem({"inner": {"number": "1"}}) == (
        "inner.number",
        "Expected `int`, got `str`; write a whole number",
    )
    assert problem({"inner": 5})[1].endswith("; write a table")
    assert problem({"inner": {"word": "c"}})[1].endswith('; write "a" or "b"')
    assert problem({"one_or_more": 1})[1].endswith('; write text in quotes or a list: ["…", "…"]')


def test_a_struct_may_refuse_values_together() -> None:
    """What `__post_init__` refuses is told with the whole path."""
    assert problem({"words": ["forbidden"]}) == ("words", "this word is forbidden")


def test_variables_stand_for_values() -> None:
    """`env:NAME` is replaced, in lists too, and converted to the type of the key."""
    environ = {"N": "7", "W": "hello", "S": "true"}
    plain = check({"inner": {"number": "env:N"}, "words": ["env:W", "x"], "switch": "env:S"}, environ=environ)
    assert msgspec.convert(plain, Outer) == Outer(inner=Inner(number=7), words=("hello", "x"), switch=True)


def test_a_missing_variable_is_an_error_except_for_optional_credentials() -> None:
    """A credential that may be unset is unset; elsewhere the mend names the variable. Empty is missing."""
    assert check({"key": "env:K"}) == {}
    assert check({"key": "env:K"}, environ={"K": ""}) == {}
    where, what = problem({"words": ["env:W"]})
    assert where == "words"
    assert "variable W is not set; set it" in what


def test_text_from_the_environment_is_read_leniently() -> None:
    """Numbers and switches may be text there, and words make a list."""
    value = {"inner": {"number": "7"}, "words": "a b", "one_or_more": "a", "switch": "false"}
    plain = check(value, textual=True)
    assert msgspec.convert(plain, Outer) == Outer(inner=Inner(number=7), words=("a", "b"), one_or_more="a")


def test_suggestions() -> None:
    """The nearest word if there is one, else all."""
    assert suggest("prot", ["port", "host"]) == "did you mean port?"
    assert suggest("zzz", ["port", "host"]) == "known: host, port"
    assert suggest("zzz", []) == "leave it out"
