"""The best of line, logarithm and exponential: AUTOSCALE+'s forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from springtide.policy.forecast import State, many, regression
from springtide.policy.forecast.regression import Curve, CurvePlugin
from springtide.policy.registry import parameter

_R2 = itemgetter(Curve._fields.index("r2"))


@dataclass(frozen=True)
class BestFit(CurvePlugin):
    """The curve with the largest R² among a line, a logarithm and an exponential through the last ``window`` values.

    AUTOSCALE+ (DABS-Storm, section 4.1) fits all three to the last window and sums the best curve over the next window
    (equation 3): ``ahead`` for 1, 2, … steps. R² is compared in the units of the series; if two are equal, the first of the
    three wins, so a constant series is linear. Until three values are known, the forecast is the last value.

    >>> best = BestFit()
    >>> state = best.initial()
    >>> for value in (1, 2, 4, 8, 16, 32):
    ...     state = best.update(state, value)
    >>> state["curve"][0], round(best.ahead(state) or 0, 6)
    ('exponential', 64.0)
    """

    name = "best-fit"
    source = "DABS-Storm (Kotto-Kombi et al.), section 4.1, equation 3"
    summary = "the best of line, logarithm and exponential through the last values"

    window: int = parameter(6, "values", 3, 1_000, "how many values the curves go through (DABS-Storm: 60 s of 10 s each)")
    cap: float = parameter(3.0, "times", 1, 1_000, "an exponential is at most this many times the largest value in the window")
    linear_log: bool = parameter(False, help="leave the exponential out, as the authors' code does")

    def update_all(self, states: Sequence[State], values: Sequence[float]) -> list[State]:
        """``update`` for many series, each with its value."""
        return many.update(self, states, values, self.window, self._fit_all)

    def _fit(self, values: Sequence[float], spread: float) -> Curve:
        best = regression.linear(values, spread)
        for other in (
            regression.logarithmic(values, spread),
            None if self.linear_log else regression.exponential(values, spread, self.cap),
        ):
            if other is not None and other.r2 > best.r2:
                best = other
        return best

    def _fit_all(self, windows: many.Array, spread: many.Array) -> list[many.Row]:
        shapes = [many.linear(windows, spread), many.logarithmic(windows, spread)]
        if not self.linear_log:
            shapes.append(many.exponential(windows, spread, self.cap))
        return [max(curves, key=_R2) for curves in zip(*shapes, strict=True)]  # the first, if several are equal
