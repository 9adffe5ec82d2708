"""Decision rules, one file each; this package and the entry points `ullage.policies` are searched for them.

To add one, add a file with a frozen `Policy` subclass whose tag is its name in the configuration.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points

from proxy.core.policy import Candidate, CompactionPolicy, Offload, Policy, View

__all__ = ["Candidate", "CompactionPolicy", "Offload", "Policy", "View", "discover"]


@cache
def discover() -> dict[str, type[Policy]]:
    """Return all policies by their name in the configuration."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    classes = [*Policy.__subclasses__(), *CompactionPolicy.__subclasses__()]
    found = {cls.name(): cls for cls in classes if cls.__module__.startswith(f"{__name__}.")}
    for point in entry_points(group="ullage.policies"):
        cls = point.load()
        found[cls.name()] = cls
    return dict(sorted(found.items()))
