"""The script that makes the table of windows."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "update-windows"
SOURCE = "litellm/model_prices_and_context_window_backup.json"


def row(
    prompt: object, answer: object = None, provider: str = "openai", mode: str | None = "chat"
) -> dict[str, object]:
    """Return a row of the source."""
    return {"max_input_tokens": prompt, "max_output_tokens": answer, "litellm_provider": provider, "mode": mode}


def make(folder: Path, rows: dict[str, dict[str, object]]) -> dict[str, dict[str, list[int]]]:
    """Run the script on a wheel with these rows, return the table."""
    wheel = folder / "litellm-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(SOURCE, json.dumps(rows))
        archive.writestr(
            "litellm-9.9.9.dist-info/licenses/LICENSE", "Other terms\n---\nMIT License\n\nCopyright Somebody\n"
        )
    command = [sys.executable, str(SCRIPT), "--from", str(wheel), "--to", str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True)
    table: dict[str, dict[str, list[int]]] = json.loads(
        gzip.decompress((folder / "data" / "windows.json.gz").read_bytes())
    )
    return table


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"),
    [
        (128_000, 16_384, [128_000, 16_384]),
        (272_000, 128_000, [400_000, 128_000, 272_000]),
        (922_000, 128_000, [1_050_000, 128_000, 922_000]),
        (1_050_000, 128_000, [1_050_000, 128_000]),
        (2_048, 2_048, [2_048, 2_048]),
        (997_952, 32_768, [997_952, 32_768]),
        (8_192, None, [8_192, 0]),
        (8_192, 32_768, [8_192, 8_192]),
    ],
)
def test_input_caps_are_told_from_windows(tmp_path: Path, prompt: int, answer: int | None, expected: list[int]) -> None:
    """A number that only becomes a usual size together with the answer is the longest prompt."""
    assert make(tmp_path, {"m": row(prompt, answer)}) == {"openai": {"m": expected}}


def test_only_models_that_chat_and_have_a_window_are_taken(tmp_path: Path) -> None:
    """Neither embeddings nor groups of prices nor examples."""
    rows = {
        "a": row(8_192),
        "b": row(8_192, mode="embedding"),
        "c": row(None),
        "d": row("max input tokens"),
        "e": row(8_192, mode=None),
        "f": row(True),
    }
    assert make(tmp_path, rows) == {"openai": {"a": [8_192, 0]}}


def test_names_and_providers_are_brought_together(tmp_path: Path) -> None:
    """The smallest of several rows stays, a dated one only where it says something else."""
    rows = {
        "azure/gpt-x": row(128_000, 1_000, "azure"),
        "azure/eu/gpt-x": row(64_000, 1_000, "azure"),
        "gpt-x-2024-05-13": row(128_000),
        "gpt-x-2024-08-06": row(64_000),
        "ft:gpt-x": row(128_000),
        "us.anthropic.claude-x-v1:0": row(200_000, None, "bedrock_converse"),
    }
    assert make(tmp_path, rows) == {
        "azure": {"gpt-x": [64_000, 1_000]},
        "bedrock": {"anthropic-claude-x-v1-0": [200_000, 0]},
        "openai": {"gpt-x": [128_000, 0], "gpt-x-2024-08-06": [64_000, 0]},
    }


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    """In whatever order its rows are; the licence and the version stand beside the table."""
    rows = {"b": row(8_192), "a": row(4_096, None, "groq"), "c": row(16_384)}
    make(tmp_path, rows)
    first = (tmp_path / "data" / "windows.json.gz").read_bytes()
    make(tmp_path, dict(reversed(rows.items())))
    assert (tmp_path / "data" / "windows.json.gz").read_bytes() == first
    notice = (tmp_path / "data" / "NOTICE").read_text("utf-8")
    assert "litellm 9.9.9" in notice
    assert notice.endswith("MIT licence:\n\nCopyright Somebody\n")
