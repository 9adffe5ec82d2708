"""How many tokens a request may have: the model's window, the preset's limit, and what was learnt about our counts."""

from __future__ import annotations

from proxy.counting import Calibration
from proxy.presets import Preset
from proxy.settings import Settings

DEFAULT_WINDOW_TOKENS = 128_000  # of models that nobody said anything about


class Budget:
    """Knows the room of models, and learns from usage that upstreams report how far our estimates are off."""

    def __init__(self) -> None:
        self._calibration = Calibration()

    def room(self, settings: Settings, preset: Preset, upstream: str, model: str) -> int:
        """Return how many tokens, by our estimates, fit into a request to this model."""
        window = settings.window_for(model) or DEFAULT_WINDOW_TOKENS
        limit = preset.limit.within(window) if preset.limit is not None else None
        return int((limit or window) / self._calibration.limit_ratio(upstream, model))

    def learn(self, upstream: str, model: str, estimate_tokens: int, usage: dict[str, object] | None) -> None:
        """Take in what a request of one round was reported to cost; odd reports are passed over."""
        reported = usage.get("prompt_tokens") if usage else None
        if isinstance(reported, int) and not isinstance(reported, bool) and reported < 1 << 40:
            self._calibration.learn(upstream, model, estimate_tokens, reported)
