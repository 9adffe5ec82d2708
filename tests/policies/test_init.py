"""Policies are found by being there."""

from __future__ import annotations

from policies import discover


def test_every_policy_is_found_under_its_name() -> None:
    """The name in the configuration is the tag of the class, and each says in a line what it does."""
    found = discover()
    assert {"offload_results", "offload_user_messages"} <= set(found)
    assert all(cls.name() == name and cls.summary for name, cls in found.items())
