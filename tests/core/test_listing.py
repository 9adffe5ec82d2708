"""Windows in the lists and properties of upstreams."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.listing import read_listing, read_loaded, read_props, read_running, read_shown
from proxy.core.window import Window

ENTRIES: dict[str, tuple[dict[str, object], Window | None]] = {
    "vllm": ({"owned_by": "vllm", "max_model_len": 32_768}, Window(32_768)),
    "openrouter": (
        {"context_length": 200_000, "top_provider": {"context_length": 131_072, "max_completion_tokens": 8_192}},
        Window(131_072, 8_192),
    ),
    "openrouter without a provider": (
        {"context_length": 200_000, "top_provider": {"context_length": None}},
        Window(200_000),
    ),
    "groq": ({"context_window": 131_072, "max_completion_tokens": 65_536}, Window(131_072, 65_536)),
    "mistral": ({"max_context_length": 32_768, "aliases": ["m-latest"]}, Window(32_768)),
    "anthropic": ({"max_input_tokens": 200_000, "max_tokens": 64_000}, Window(200_000, 64_000)),
    "copilot": (
        {
            "capabilities": {
                "limits": {
                    "max_context_window_tokens": 128_000,
                    "max_prompt_tokens": 64_000,
                    "max_output_tokens": 4_096,
                }
            }
        },
        Window(128_000, 4_096, max_input_tokens=64_000),
    ),
    "an answer as long as the window": ({"context_window": 8_192, "max_tokens": 32_768}, Window(8_192, 8_192)),
    "openai": ({"owned_by": "openai", "created": 1_700_000_000}, None),
    "llama.cpp": ({"owned_by": "llamacpp", "meta": {"n_ctx_train": 131_072, "n_params": 8_000_000_000}}, None),
    "odd numbers": ({"context_length": "8192", "max_model_len": True, "context_window": -1}, None),
}


@pytest.mark.parametrize(("entry", "window"), ENTRIES.values(), ids=ENTRIES)
def test_every_providers_entry_is_read(entry: dict[str, object], window: Window | None) -> None:
    """In its own fields, and only in these."""
    for body in ({"object": "list", "data": [{"id": "m", **entry}]}, [{"id": "m", **entry}]):
        listing = read_listing(json.dumps(body).encode())
        assert listing.windows.get("m") == window
        assert listing.owners == ({entry["owned_by"]} if "owned_by" in entry else set())


def test_other_names_count_as_well() -> None:
    """Providers list the names that stand for the newest of a kind."""
    body = {"data": [{"id": "m-2411", **ENTRIES["mistral"][0]}]}
    assert read_listing(json.dumps(body).encode()).windows == dict.fromkeys(("m-2411", "m-latest"), Window(32_768))


def test_ollama_says_with_what_it_runs_a_model() -> None:
    """Under the name with its tag, in the list; or what it was set to."""
    running = json.dumps({"models": [{"name": "qwen3:latest", "context_length": 8_192}]}).encode()
    assert read_running(running, "qwen3") == read_running(running, "qwen3:latest") == Window(8_192)
    assert read_running(running, "llama3") is None
    shown = {
        "parameters": 'stop "<x>"\nnum_ctx                        16384',
        "model_info": {"q.context_length": 40_960},
    }
    assert read_shown(json.dumps(shown).encode()) == Window(16_384)
    del shown["parameters"]
    assert read_shown(json.dumps(shown).encode()) is None


def test_llama_cpp_says_how_large_a_slot_is() -> None:
    """What it was trained with does not count."""
    assert read_props(b'{"default_generation_settings":{"n_ctx":8192},"total_slots":4}') == Window(8_192)
    assert read_props(b'{"role":"router"}') is None


def test_lm_studio_says_what_it_loaded() -> None:
    """A model that is not loaded has no window yet."""
    entries = [{"id": "a", "max_context_length": 32_768, "loaded_context_length": 4_096}]
    entries.append({"id": "b", "max_context_length": 32_768})
    body = json.dumps({"data": entries}).encode()
    assert read_loaded(body, "a") == Window(4_096)
    assert read_loaded(body, "b") is None
    assert read_loaded(body, "c") is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["data", "models", "id", "context_length", "top_provider", "aliases", "default_generation_settings"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(body=VALUES.map(json.dumps).map(str.encode) | st.binary())
def test_odd_answers_tell_nothing(body: bytes) -> None:
    """Nothing raises, and what comes out are windows."""
    assert all(window.tokens >= 256 for window in read_listing(body).windows.values())
    for found in (read_loaded(body, "m"), read_running(body, "m"), read_shown(body), read_props(body)):
        assert found is None or found.tokens >= 256
