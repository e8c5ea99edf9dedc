"""A line through the last values: AUTOSCALE's forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from springtide.policy.forecast import State, many, regression
from springtide.policy.forecast.regression import Curve, CurvePlugin
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Linear(CurvePlugin):
    """The line a·t + b through the last ``window`` values by least squares, t counted from 1; not below 0.

    Until three values are known, the forecast is the last value.

    >>> linear = Linear()
    >>> state = linear.initial()
    >>> for value in (10, 12, 14, 16):
    ...     state = linear.update(state, value)
    >>> linear.ahead(state), linear.ahead(state, 3)
    (18.0, 22.0)
    """

    name = "linear"
    source = "DABS-Storm (Kotto-Kombi et al.), section 4.1; AUTOSCALE"
    summary = "a line through the last values"

    window: int = parameter(6, "values", 3, 1_000, "how many values the line goes through (DABS-Storm: 60 s of 10 s each)")

    def _fit(self, values: Sequence[float], spread: float) -> Curve:
        return regression.linear(values, spread)

    def update_all(self, states: Sequence[State], values: Sequence[float]) -> list[State]:
        """``update`` for many series, each with its value."""
        return many.update(self, states, values, self.window, many.linear)
