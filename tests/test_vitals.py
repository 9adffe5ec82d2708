"""The state of the process."""

from __future__ import annotations

from proxy.vitals import Vitals


def test_a_new_process_is_not_draining() -> None:
    """A process serves until it is told to end."""
    assert not Vitals().draining
