"""`python -m bench`: starts everything, measures, prints."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import uvloop

from bench.cells import CONFIG, all_cells
from bench.load import Failed
from bench.process import Target, running
from bench.report import as_json, as_table
from bench.rounds import Targets, measure_all
from proxy.demo.process import GatewayProcess


def main() -> int:
    """Run the benchmark; returns the exit code."""
    asked = _arguments()
    cells = [cell for cell in all_cells() if asked.only in cell.name]
    if not cells:
        sys.stderr.write(f"no cell has {asked.only!r} in its name: {', '.join(c.name for c in all_cells())}\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="ullage-bench-") as folder, running("bench.upstream") as upstream:
        url = f"http://127.0.0.1:{upstream.port}/v1"
        config = Path(folder, "bench.toml")
        config.write_text(CONFIG, "utf-8")
        with (
            running("bench.relay", url) as relay,
            GatewayProcess(Path(folder), url, "--config", str(config)) as gateway,
        ):
            targets = Targets(Target("gateway", gateway.port, gateway.pid), relay, Target("direct", upstream.port))
            try:
                measured = uvloop.run(measure_all(cells, targets, asked.rounds))
            except Failed as failed:
                sys.stderr.write(f"{failed}\n")
                return 1
    sys.stdout.write(f"{as_json(measured).decode() if asked.json else as_table(measured)}\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What the gateway costs next to a bare relay.")
    parser.add_argument("--only", default="", metavar="TEXT", help='cells whose name has this in it: "400 KB whole"')
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help="turns of each target in a cell; default 8")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
