"""Holt's exponential smoothing: a level, and a damped trend."""

from __future__ import annotations

from dataclasses import dataclass

from springtide.policy.forecast import ForecastPlugin, State
from springtide.policy.forecast.window import LARGEST
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Holt(ForecastPlugin):
    """Double exponential smoothing with a damped trend: level + (φ + φ² + … + φ^steps)·trend, not below 0.

    Holt (1957); the damping is by Gardner and McKenzie (1985), because an undamped trend is mostly too large far ahead. After
    each value y, with the shares α of the level and β of the trend:

        level' = α·y + (1 − α)·(level + φ·trend)
        trend' = β·(level' − level) + (1 − β)·φ·trend

    The first value is the first level, and the trend begins at 0.

    >>> holt = Holt(alpha=0.5, beta=0.5, damping=1.0)
    >>> state = holt.update(holt.update(holt.initial(), 10), 20)  # level 15, trend 2.5
    >>> holt.ahead(state), holt.ahead(state, 3)
    (17.5, 22.5)
    """

    name = "holt"
    source = "Holt (1957); Gardner and McKenzie (1985)"
    summary = "a smoothed level and a damped trend"

    alpha: float = parameter(0.7, minimum=0.001, maximum=1, help="share of a new value in the level")
    beta: float = parameter(0.2, minimum=0, maximum=1, help="share of a new change in the trend")
    damping: float = parameter(0.95, minimum=0, maximum=1, help="the share of the trend that remains an interval later, φ")

    def initial(self) -> State:
        return {"level": None, "trend": 0.0}

    def update(self, state: State, value: float) -> State:
        value = min(float(value), LARGEST)
        level = state["level"]
        if level is None:
            return {"level": value, "trend": 0.0}
        fading = self.damping * state["trend"]
        new = self.alpha * value + (1 - self.alpha) * (level + fading)
        return {"level": new, "trend": self.beta * (new - level) + (1 - self.beta) * fading}

    def ahead(self, state: State, steps: int = 1) -> float | None:
        if state["level"] is None:
            return None
        return max(0.0, self.extended(state, steps))

    def extended(self, state: State, steps: int) -> float:
        """The forecast before a season is added; it may be below 0."""
        rest = self.damping
        total: float = rest * (1 - rest**steps) / (1 - rest) if rest < 1 else steps
        extended: float = state["level"] + total * state["trend"]
        return extended
