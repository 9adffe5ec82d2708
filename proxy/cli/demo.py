"""`ullage demo`: the main job from end to end, without a key and without a network."""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from proxy.cli.options import json_option
from proxy.cli.output import print_json, print_table
from proxy.errors import ProxyError

if TYPE_CHECKING:
    from proxy.demo.recording import Recording
    from proxy.demo.replay import Outcome

_CALLS = ("call", "answer", "received", "sent", "edits", "")
_ORIGINALS = ("ref", "original", "lines", "bytes", "exact")


class NoClient(ProxyError):
    """The client that the demonstration drives is not installed."""

    code = "no_client"


@click.command("demo")
@json_option
def command(*, as_json: bool) -> None:
    """Play a recorded agent session through a real gateway and check what came of it.

    Needs no key and no network: the provider is a scripted one that ships with the gateway, and the store is in
    a temporary folder. Exit code 1 if anything is not as it has to be.
    """
    if find_spec("openai") is None:
        raise NoClient('the demo drives the official OpenAI client: pip install "ullage[demo]"')

    from proxy.demo.recording import demonstration
    from proxy.demo.replay import run_demonstration

    recording = demonstration()
    with tempfile.TemporaryDirectory(prefix="ullage-demo-") as folder:
        outcome = run_demonstration(recording, Path(folder))
    present(recording, outcome, as_json=as_json)


def present(recording: Recording, outcome: Outcome, *, as_json: bool) -> None:
    """Print what came of it, and leave with exit code 1 unless all is well."""
    if as_json:
        print_json(_facts(recording, outcome))
    else:
        _show(recording, outcome)
    if not outcome.ok:
        sys.exit(1)


def _show(recording: Recording, outcome: Outcome) -> None:
    calls = _calls(outcome)
    received, sent = _total(calls, "received"), _total(calls, "sent")
    click.echo(f"A recorded coding session ({recording.source.partition(' ')[0]}, {recording.licence}):")
    click.echo("OpenAI's client -> ullage -> a scripted provider. Tokens per call:\n")
    total = {"call": None, "answer": "total", "received": received, "sent": sent, "edits": None, "notes": ()}
    print_table(_CALLS, [row | {"": ", ".join(row["notes"])} for row in [*calls, total]])
    click.echo("\nOffloaded and recovered:\n")
    print_table(_ORIGINALS, [row | {"exact": "yes" if row["exact"] else "NO"} for row in _originals(outcome)])
    click.echo()
    for finding in outcome.findings:
        click.echo(f"{'ok   ' if finding.ok else 'WRONG'}  {finding.text}")
    if outcome.ok:
        click.echo(f"\n{1 - sent / received:.0%} fewer tokens sent, nothing lost. Next: ullage serve")


def _facts(recording: Recording, outcome: Outcome) -> dict[str, Any]:
    return {
        "session": {"id": recording.id, "source": recording.source, "licence": recording.licence},
        "calls": _calls(outcome),
        "originals": _originals(outcome),
        "findings": [{"text": finding.text, "ok": finding.ok} for finding in outcome.findings],
        "ok": outcome.ok,
    }


def _calls(outcome: Outcome) -> list[dict[str, Any]]:
    return [
        {
            "call": number,
            "answer": "streamed" if turn.heard.streamed else "whole",
            "received": turn.heard.received_tokens,
            "sent": turn.heard.sent_tokens,
            "edits": turn.heard.edits,
            "notes": turn.notes,
        }
        for number, turn in enumerate(outcome.turns, 1)
    ]


def _originals(outcome: Outcome) -> list[dict[str, Any]]:
    return [
        {
            "ref": original.ref,
            "original": original.name,
            "lines": original.text.count("\n") + 1,
            "bytes": len(original.text.encode()),
            "exact": original.exact,
        }
        for original in outcome.originals
    ]


def _total(rows: list[dict[str, Any]], column: str) -> int:
    return sum(row[column] for row in rows)
