"""A replay and its judgement; that all is well is what the test of `ullage demo` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.demo.model import ScriptedModel
from proxy.demo.process import GatewayProcess
from proxy.demo.recording import demonstration
from proxy.demo.replay import Replay
from proxy.demo.upstream import ScriptedUpstream


@pytest.mark.e2e
def test_a_gateway_that_does_nothing_is_found_out(tmp_path: Path) -> None:
    """Under the preset `off` the answers are right, but nothing was recovered, so the outcome is not."""
    config = tmp_path / "off.toml"
    config.write_text('[defaults]\npreset = "off"\n', "utf-8")
    model = ScriptedModel()
    with (
        ScriptedUpstream(model) as upstream,
        GatewayProcess(tmp_path, upstream.url, "--config", str(config)) as gateway,
    ):
        outcome = Replay(demonstration(), model, gateway).run()
    assert not outcome.ok
    assert outcome.originals == []
    assert [finding.ok for finding in outcome.findings] == [True, False, False, True]
