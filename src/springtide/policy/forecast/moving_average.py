"""The mean of the last values."""

from __future__ import annotations

from dataclasses import dataclass

from springtide.policy.forecast import ForecastPlugin, State
from springtide.policy.forecast.window import slid
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class MovingAverage(ForecastPlugin):
    """The mean of the last ``window`` values, however far ahead. It smooths noise, and lags behind changes.

    >>> average = MovingAverage(window=2)
    >>> state = average.initial()
    >>> for value in (100, 4, 6):
    ...     state = average.update(state, value)
    >>> average.ahead(state)
    5.0
    """

    name = "moving-average"
    source = "Springtide"
    summary = "the mean of the last values"

    window: int = parameter(6, "values", 1, 1_000, "the number of values in the mean")

    def initial(self) -> State:
        return {"window": []}

    def update(self, state: State, value: float) -> State:
        return {"window": slid(state["window"], value, self.window)}

    def ahead(self, state: State, steps: int = 1) -> float | None:
        values = state["window"]
        return sum(values) / len(values) if values else None
