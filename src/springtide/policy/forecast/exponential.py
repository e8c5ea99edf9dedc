"""An exponential through the last values, for series that grow by factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from springtide.policy.forecast import regression
from springtide.policy.forecast.regression import Curve, CurvePlugin
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class ExponentialCurve(CurvePlugin):
    """The curve e^(a·t + b) through the last ``window`` values, t counted from 1, capped.

    The line a·t + b is fitted to the logarithms by least squares, so there is no curve for a window with a 0: then, and until
    three values are known, the forecast is the last value. Without the cap, the curve through 10, 10, 10, 10, 10, 200 would
    forecast 74 for the next step, and 626 for the sixth.

    >>> exponential = ExponentialCurve()
    >>> state = exponential.initial()
    >>> for value in (1, 2, 4, 8):
    ...     state = exponential.update(state, value)
    >>> [round(exponential.ahead(state, steps) or 0, 6) for steps in (1, 2)]  # 2 steps: 32, the cap is 3 · 8
    [16.0, 24.0]
    """

    name = "exponential"
    source = "DABS-Storm (Kotto-Kombi et al.), section 4.1"
    summary = "an exponential through the last values, capped"

    window: int = parameter(6, "values", 3, 1_000, "how many values the curve goes through (DABS-Storm: 60 s of 10 s each)")
    cap: float = parameter(3.0, "times", 1, 1_000, "a forecast is at most this many times the largest value in the window")

    def _fit(self, values: Sequence[float], spread: float) -> Curve | None:
        return regression.exponential(values, spread, self.cap)
