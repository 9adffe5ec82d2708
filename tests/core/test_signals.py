"""Events and commands are values."""

from __future__ import annotations

import typing

import pytest

from proxy.core import signals
from proxy.core.signals import Command, Emit, Event, InterceptOptions, Refused


@pytest.mark.parametrize(
    "kind", [*typing.get_args(Event), *typing.get_args(Command), InterceptOptions], ids=lambda kind: kind.__name__
)
def test_signals_are_frozen_and_can_be_matched(kind: type) -> None:
    """What was told or asked for cannot be changed later; fields can be taken out by position."""
    assert kind.__struct_config__.frozen  # type: ignore[attr-defined]  # the class is a Struct
    assert kind.__match_args__ == kind.__struct_fields__  # type: ignore[attr-defined]  # the class is a Struct
    assert kind.__doc__


def test_equal_signals_are_equal() -> None:
    """Scripts compare them as a whole."""
    assert Emit(b"a") == Emit(b"a") != Emit(b"b")
    assert signals.Reopen((), tool=True) != signals.Reopen((), tool=False)
    match Refused(500, b"x"):
        case Refused(status, body):
            assert (status, body) == (500, b"x")
