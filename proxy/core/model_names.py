"""The many spellings of one model's name.

Clients, providers and tables write the same model as `gpt-4o`, `openai/gpt-4o`, `gpt-4o-2024-08-06`,
`ft:gpt-4o:org::id`, `models/gpt-4o`, `gpt-4o:free` or `us.openai.gpt-4o-v1:0`. A canonical name has lower case, no
path, no region, and hyphens alone between its words; variants are what is left without dates, tags and makers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_LONGEST: Final = 256  # characters; more is nobody's model
_FINE_TUNED: Final = re.compile(r"^ft:([^:]+).*$|^(.+):ft-.*$", re.DOTALL)
_REGION: Final = re.compile(r"^(?:us|eu|apac|au|jp|ca|global|us-gov)\.(?=[a-z0-9-]+\.)")
_MAKER: Final = re.compile(r"^[a-z0-9]+\.(?=[a-z])")  # amazon's way: anthropic.claude-…, meta.llama3-…
_BREAK: Final = re.compile(r"[^0-9a-z]+")
_REVISION: Final = re.compile(r"-(?:\d{4}-\d\d-\d\d|\d{8}|\d{6}|\d{4}|\d\d-\d{4}|latest|preview|v\d(?:-\d+)?)$")


def canonical(model: str) -> str:
    """Return the name without path, fine-tuning, region and spelling; "" when nothing is left."""
    return _BREAK.sub("-", _plain(model)).strip("-")


def path_of(model: str) -> tuple[str, ...]:
    """Return what stands before the name: `openrouter/google/gemini-x` gives openrouter and google."""
    *path, _ = model[:_LONGEST].lower().split("/")
    return tuple(path)


def variants(model: str) -> Iterator[str]:
    """Yield the canonical spellings that mean this very model, the exact one first, none twice."""
    plain = _plain(model)
    seen: set[str] = set()
    for spelling in (plain, plain.partition(":")[0], _MAKER.sub("", plain), _MAKER.sub("", plain.partition(":")[0])):
        name = _BREAK.sub("-", spelling).strip("-")
        while name and name not in seen:
            seen.add(name)
            yield name
            name = _REVISION.sub("", name)


def families(model: str) -> Iterator[str]:
    """Yield ever shorter beginnings of the name, as long as a digit in it tells one generation from another."""
    name = canonical(model)
    while (name := name.rpartition("-")[0]) and any(character.isdigit() for character in name):
        yield name


def _plain(model: str) -> str:
    name = model[:_LONGEST].lower().strip()
    tuned = _FINE_TUNED.match(name)
    if tuned is not None:
        name = tuned[1] or tuned[2]
    return _REGION.sub("", name.rpartition("/")[2])
