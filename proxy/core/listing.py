"""What upstreams tell about the windows of their models, in each dialect; anything odd tells nothing.

Only plain numbers of tokens are taken out of an answer, by model. What a model was trained with (`n_ctx_train`,
`model_info`) is not what it is served with, and is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from proxy.core.window import Window, is_plausible
from proxy.core.wire.raw import read_any

_MOST_MODELS: Final = 4_096

# Where an entry of a model list keeps its numbers; the first that is there counts.
_WINDOW: Final = (
    ("top_provider", "context_length"),  # OpenRouter: of the provider that will probably answer
    ("loaded_context_length",),  # LM Studio
    ("max_model_len",),  # vLLM, SGLang
    ("context_window",),  # Groq, Vercel
    ("context_length",),  # OpenRouter, Together, Fireworks, Moonshot, Ollama's list of running models
    ("max_context_length",),  # Mistral
    ("context_size",),  # Novita
    ("capabilities", "limits", "max_context_window_tokens"),  # GitHub Copilot
    ("metadata", "context_length"),  # DeepInfra
    ("max_input_tokens",),  # Anthropic
    ("limits", "max_input_tokens"),  # GitHub Models
)
_ANSWER: Final = (
    ("top_provider", "max_completion_tokens"),
    ("max_completion_tokens",),
    ("max_output_tokens",),
    ("capabilities", "limits", "max_output_tokens"),
    ("limits", "max_output_tokens"),
    ("metadata", "max_tokens"),
    ("max_tokens",),
)
_PROMPT: Final = (("capabilities", "limits", "max_prompt_tokens"),)
_NAMES: Final = ("id", "name", "model", "key")
_NUM_CTX: Final = re.compile(r"^\s*num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)


class Listing(Struct, frozen=True):
    """The windows in a list of models, and who owns the models by the list: that gives local servers away."""

    windows: dict[str, Window]
    owners: frozenset[str]


def read_listing(body: bytes) -> Listing:
    """Return what a list of models says, in OpenAI's form or a bare list, or in Ollama's."""
    windows: dict[str, Window] = {}
    owners: set[str] = set()
    for entry in _entries(read_any(body)):
        owner = entry.get("owned_by")
        if isinstance(owner, str):
            owners.add(owner)
        window = _window(entry)
        if window is not None:
            windows |= dict.fromkeys(_names(entry), window)
    return Listing(windows, frozenset(owners))


def read_loaded(body: bytes, model: str) -> Window | None:
    """Return the window of a model in LM Studio's list: that of the loaded model, not what could be loaded."""
    for entry in _entries(read_any(body)):
        if model in _names(entry):
            tokens = entry.get("loaded_context_length")
            return Window(tokens) if isinstance(tokens, int) and is_plausible(tokens) else None
    return None


def read_running(body: bytes, model: str) -> Window | None:
    """Return the window of a model in Ollama's list of running ones (`/api/ps`)."""
    windows = read_listing(body).windows
    return windows.get(model) or windows.get(f"{model}:latest")


def read_shown(body: bytes) -> Window | None:
    """Return the window that a model of Ollama is set to (`/api/show`); None when the server's default holds."""
    shown = read_any(body)
    parameters = shown.get("parameters") if isinstance(shown, dict) else None
    found = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    tokens = int(found[1]) if found else 0
    return Window(tokens) if is_plausible(tokens) else None


def read_props(body: bytes) -> Window | None:
    """Return the window of each slot of llama.cpp (`/props`)."""
    props = read_any(body)
    tokens = _number(props, (("default_generation_settings", "n_ctx"),)) if isinstance(props, dict) else None
    return Window(tokens) if tokens is not None else None


def _entries(value: object) -> Iterator[dict[str, object]]:
    if isinstance(value, dict):
        value = next((value[key] for key in ("data", "models") if isinstance(value.get(key), list)), [])
    if isinstance(value, list):
        yield from (entry for entry in value[:_MOST_MODELS] if isinstance(entry, dict))


def _names(entry: dict[str, object]) -> list[str]:
    aliases = entry.get("aliases")
    names = [entry.get(key) for key in _NAMES] + (aliases[:8] if isinstance(aliases, list) else [])
    return [name for name in names if isinstance(name, str)]


def _window(entry: dict[str, object]) -> Window | None:
    tokens = _number(entry, _WINDOW)
    if tokens is None:
        return None
    answer, prompt = _number(entry, _ANSWER), _number(entry, _PROMPT)
    return Window(
        tokens,
        max_output_tokens=min(answer, tokens) if answer is not None else None,
        max_input_tokens=prompt if prompt is not None and prompt < tokens else None,
    )


def _number(entry: dict[str, object], paths: tuple[tuple[str, ...], ...]) -> int | None:
    for path in paths:
        value: object = entry
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int) and is_plausible(value):
            return value
    return None
