"""What `config show` and `config schema` print."""

from __future__ import annotations

from pathlib import Path

import msgspec

from policies import discover
from proxy.settings_loader import Loaded, load
from proxy.settings_view import effective, schema, to_toml

FILE = """
[server]
admin_key = "planted-1"
port = "env:P"
[upstreams."a.b"]
base_url = "http://h"
api_key = "planted-2"
[store]
url = "memory:"
[presets.low]
extends = "deep"
target = { share = "5%", tokens = 10 }
[presets.mine]
extends = "low"
[presets.mine.offload_results]
head_lines = 3
"""


def loaded(folder: Path, text: str = FILE) -> Loaded:
    """Load a configuration."""
    path = folder / "ullage.toml"
    path.write_text(text, "utf-8")
    return load(path, {"P": "99"})


def test_every_value_has_its_source(tmp_path: Path) -> None:
    """File, variable, default, and for presets the one that said it."""
    lines = {line.key: line for line in effective(loaded(tmp_path))}
    file = str(tmp_path / "ullage.toml")
    assert (lines["server.port"].value, lines["server.port"].origin) == (99, f"{file} (env:P)")
    assert lines["server.host"].origin == "default"
    assert lines["presets.mine.offload_results.head_lines"].origin == file
    assert lines["presets.mine.offload_results.over_tokens"].origin == "preset deep"
    assert lines["presets.mine.offload_results.tail_lines"].origin == "default"
    assert lines["presets.mine.target"].origin == f"{file} (preset low)"
    assert lines["presets.mine.limit"].origin == "preset balanced"
    assert to_toml(lines["server.host"], with_origin=True) == 'server.host = "127.0.0.1"  # default'


def test_credentials_are_hidden(tmp_path: Path) -> None:
    """No key is printed."""
    text = "\n".join(to_toml(line, with_origin=True) for line in effective(loaded(tmp_path)))
    assert "planted" not in text
    assert 'server.admin_key = "****"' in text


def test_what_is_shown_can_be_loaded_again(tmp_path: Path) -> None:
    """The output is a configuration file with the same effect."""
    first = loaded(tmp_path)
    text = "\n".join(to_toml(line, with_origin=True) for line in effective(first))
    again = loaded(tmp_path, text)
    assert [(x.key, x.value) for x in effective(again)] == [(x.key, x.value) for x in effective(first)]
    assert again.settings.presets == first.settings.presets


def test_the_schema_describes_every_table() -> None:
    """It is JSON, holds all policies with their knobs, and asks nobody to write a tag."""
    made = msgspec.json.decode(msgspec.json.encode(schema()))
    definitions = made["$defs"]
    assert {"Server", "Upstream", "Store", "Tenant", "PresetTable"} <= set(definitions)
    for policy in discover().values():
        assert set(definitions[policy.__name__]["properties"]) == set(policy.__struct_fields__)
        assert not definitions[policy.__name__].get("required")
    assert all("description" in field for field in definitions["Server"]["properties"].values())
    assert definitions["Server"]["properties"]["drain_seconds"]["type"] == ["number", "string"]
