"""Holt's smoothing with a season, which is found in the series itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from springtide.policy.forecast import ForecastPlugin, State
from springtide.policy.forecast.holt import Holt
from springtide.policy.forecast.season import season
from springtide.policy.forecast.window import slid
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class HoltWinters(ForecastPlugin):
    """Holt's level and trend of the series without its season, plus the season: Winters (1960), with an additive season.

    After each value y, with the season's value s of that time and the share γ of the season:

        level, trend: as Holt's, of y − s
        s' = γ·(y − level') + (1 − γ)·s

    The length of the season comes from the autocorrelation of the last ``history`` values (``season.py``), which is computed
    whenever a sixteenth of the history is new. When the length changes, the season is computed again from the history. Without
    a significant season the forecast is Holt's. The season is additive because rates can be 0.

    >>> import math
    >>> model = HoltWinters()
    >>> state = model.initial()
    >>> for t in range(120):
    ...     state = model.update(state, 100 + 50 * math.sin(2 * math.pi * t / 24))
    >>> len(state["season"]), round(model.ahead(state, 6) or 0)  # t = 125: 100 + 50 · sin(75°) = 148.3
    (24, 148)
    """

    name = "holt-winters"
    source = "Winters (1960); the season by autocorrelation"
    summary = "a level, a trend, and a season of a length that it finds by itself"

    alpha: float = parameter(0.7, minimum=0.001, maximum=1, help="share of a new value in the level")
    beta: float = parameter(0.2, minimum=0, maximum=1, help="share of a new change in the trend")
    gamma: float = parameter(0.2, minimum=0, maximum=1, help="share of a new value in the season")
    damping: float = parameter(0.95, minimum=0, maximum=1, help="the share of the trend that remains an interval later, φ")
    history: int = parameter(
        1024, "values", 16, 20_000, "how many values are searched for a season; a season has at most half as many"
    )

    @cached_property
    def _holt(self) -> Holt:
        return Holt(self.alpha, self.beta, self.damping)

    def initial(self) -> State:
        return {"history": [], "unsearched": 0, "season": [], "holt": self._holt.initial()}

    def update(self, state: State, value: float) -> State:
        """``season``: its additions to the next values, in their order."""
        history = slid(state["history"], value, self.history)
        unsearched = state["unsearched"] + 1
        if unsearched >= max(8, len(history) // 16):
            unsearched, length = 0, season(history, known=len(state["season"]))
            if length != len(state["season"]):
                return {"history": history, "unsearched": 0, **self._begun(history, length)}
        return {"history": history, "unsearched": unsearched, **self._followed(state, history[-1])}

    def ahead(self, state: State, steps: int = 1) -> float | None:
        if not state["season"]:
            return self._holt.ahead(state["holt"], steps)
        lift: float = state["season"][(steps - 1) % len(state["season"])]
        return max(0.0, self._holt.extended(state["holt"], steps) + lift)

    def _followed(self, state: State, value: float) -> dict[str, Any]:
        """Season, level and trend after a value."""
        if not state["season"]:
            return {"season": [], "holt": self._holt.update(state["holt"], value)}
        lift, *later = state["season"]
        holt = self._holt.update(state["holt"], value - lift)
        return {"season": [*later, self.gamma * (value - holt["level"]) + (1 - self.gamma) * lift], "holt": holt}

    def _begun(self, history: Sequence[float], length: int) -> dict[str, Any]:
        """Season, level and trend at the end of a history: the mean season, and Holt's smoothing of the rest."""
        lifts = _mean_season(history, length)
        holt = self._holt.initial()
        for i, value in enumerate(history):
            holt = self._holt.update(holt, value - lifts[(i - len(history)) % length] if length else value)
        return {"season": lifts, "holt": holt}


def _mean_season(values: Sequence[float], length: int) -> list[float]:
    """The mean height of each time of the season above the trend, over all complete seasons up to the end."""
    if not length:
        return []
    seasons = [values[end - length : end] for end in range(len(values), length - 1, -length)]
    means = [sum(season) / length for season in seasons]
    slope = (means[0] - means[-1]) / ((len(seasons) - 1) * length)
    middle = (length - 1) / 2
    return [
        sum(season[i] - mean for season, mean in zip(seasons, means, strict=True)) / len(seasons) - slope * (i - middle)
        for i in range(length)
    ]
