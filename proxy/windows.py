"""The context windows of models: what upstreams told, what the shipped table says, what is assumed of the rest.

The table (`data/windows.json.gz`, made by `scripts/update-windows`) is keyed by provider and model, since one model has
other windows elsewhere. Asked are the upstream's own provider first, then those that the folders of the name stand for,
then the makers of models, then all others together: the window that most of them have, of equals the smallest. Each
looks for the exact name before the one without date or tag; only a name that nobody knows is taken for its family's.
"""

from __future__ import annotations

import gzip
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from proxy.core.memo import Memo
from proxy.core.model_names import families, variants
from proxy.core.window import Window
from proxy.providers import MAKERS, Address, address_of, provider_of_host, providers_of_path

DEFAULT_WINDOW_TOKENS: Final = 128_000
"""Of models that nobody said anything about."""
LOOPBACK_WINDOW_TOKENS: Final = 32_000
"""The same on this machine, where memory decides."""
OLLAMA_WINDOW_TOKENS: Final = 4_096
"""What Ollama gives every model unless it is told otherwise; it cuts longer prompts without a word."""

_FILE: Final = Path(__file__).with_name("data") / "windows.json.gz"
_KEPT: Final = 4_096

Row: TypeAlias = tuple[int, ...]
"""Window, longest answer (0: not known), and the longest prompt where that is less than the window."""


class WindowTable:
    """What is publicly known, by provider and canonical model name."""

    def __init__(self, rows: Mapping[str, Mapping[str, Row]]) -> None:
        self._rows = rows
        self._elsewhere: dict[str, list[Row]] = {}
        for models in rows.values():
            for name, row in models.items():
                self._elsewhere.setdefault(name, []).append(row)
        self._names = sorted(self._elsewhere)

    def find(self, host: str, model: str) -> Window | None:
        """Return the window of a model at an upstream of this host name; None when nobody knows it."""
        own = provider_of_host(host)
        asked = [*([own] if own else []), *providers_of_path(model), *MAKERS]
        row = self._named(list(variants(model)), asked)
        if row is None:
            row = next((row for family in families(model) if (row := self._related(family, asked))), None)
        return None if row is None else _window(row)

    def _named(self, names: Sequence[str], providers: Iterable[str]) -> Row | None:
        """Return the row of the first provider that knows one of the names, or what most of the others say."""
        tables = (self._rows[provider] for provider in providers if provider in self._rows)
        row = next((models[name] for models in tables for name in names if name in models), None)
        return row or next((row for name in names if (row := _usual(self._elsewhere.get(name, ())))), None)

    def _related(self, family: str, providers: Iterable[str]) -> Row | None:
        """Return what the model of this name has, or else most models whose name begins with it."""
        row = self._named([family], providers)
        return row or _usual(row for name in self._members(family) for row in self._elsewhere[name])

    def _members(self, family: str) -> Iterator[str]:
        beginning = f"{family}-"
        for at in range(bisect_left(self._names, beginning), len(self._names)):
            if not self._names[at].startswith(beginning):
                return
            yield self._names[at]


@cache
def shipped_table() -> WindowTable:
    """Return the table that came with the gateway; it is read once, when first needed."""
    return WindowTable(msgspec.json.decode(gzip.decompress(_FILE.read_bytes()), type=dict[str, dict[str, Row]]))


class Windows:
    """The windows of all models at all upstreams, as far as they are known to everybody."""

    def __init__(self, table: WindowTable | None = None) -> None:
        self._table = table
        self._discovered: Memo[tuple[str, str], Window] = Memo(_KEPT)
        self._looked_up: Memo[tuple[str, str], Window] = Memo(_KEPT)

    def put(self, upstream: str, model: str, window: Window) -> None:
        """Keep what the upstream of this origin told about one of its models."""
        self._discovered.put((upstream, model), msgspec.structs.replace(window, source="discovered"))

    def discovered(self, upstream: str, model: str) -> Window | None:
        """Return what the upstream told about its model, or None."""
        return self._discovered.get((upstream, model))

    def find(self, upstream: str, model: str) -> Window:
        """Return the window of a model at the upstream of this origin: told, known, or assumed."""
        key = upstream, model
        window = self._discovered.get(key) or self._looked_up.get(key)
        if window is None:
            window = self._look_up(address_of(upstream), model)
            self._looked_up.put(key, window)
        return window

    def _look_up(self, address: Address, model: str) -> Window:
        # The table tells what a model could have; Ollama gives what its settings say.
        if address.is_ollama:
            return Window(OLLAMA_WINDOW_TOKENS)
        known = (self._table or shipped_table()).find(address.host, model)
        return known or Window(LOOPBACK_WINDOW_TOKENS if address.is_loopback else DEFAULT_WINDOW_TOKENS)


def _usual(rows: Iterable[Row]) -> Row | None:
    """Return the row that occurs most often, of equals the smallest; None of none."""
    counted = Counter(rows)
    return min(counted, key=lambda row: (-counted[row], row)) if counted else None


def _window(row: Row) -> Window:
    tokens, answer, *prompt = row
    return Window(tokens, answer or None, "table", prompt[0] if prompt else None)
