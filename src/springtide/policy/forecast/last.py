"""The next value is the last one: what every other forecaster has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from springtide.policy.forecast import ForecastPlugin, State


@dataclass(frozen=True)
class Last(ForecastPlugin):
    """Forecasts the last value, however far ahead.

    >>> last = Last()
    >>> last.ahead(last.update(last.update(last.initial(), 3.0), 5.0))
    5.0
    """

    name = "last"
    source = "Springtide"
    summary = "the last value"

    def initial(self) -> State:
        return {"last": None}

    def update(self, state: State, value: float) -> State:
        return {"last": float(value)}

    def ahead(self, state: State, steps: int = 1) -> float | None:
        last: float | None = state["last"]
        return last
