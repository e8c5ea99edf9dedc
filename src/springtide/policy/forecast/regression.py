"""Curves through a window of values, by least squares in closed form.

AUTOSCALE+ (DABS-Storm, section 4.1) fits a line, a logarithm and an exponential to a window and takes the best. Time is counted
from 1 in the window, so the value after n others has t = n + 1. The measure of a curve f is R² = 1 − Σ(y − f(t))²/Σ(y − ȳ)² in
the units of the series, also for the exponential, whose a and b are fitted to ln y.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from springtide.policy.forecast import ForecastPlugin, State
from springtide.policy.forecast.window import slid

MIN_VALUES = 3
"""The fewest values for a curve. Each of the curves goes exactly through any two points, whatever their noise."""

MIN_SPREAD = 1e-150
"""Values that differ by less count as equal, because the square of a smaller difference underflows to 0."""


LARGEST_EXPONENT = 700.0
"""Upper limit of an exponent, because e^710 overflows a float."""


class Curve(NamedTuple):
    """A fitted curve: a·t + b, a·ln t + b, or e^(a·t + b) up to a limit; and its R²."""

    shape: str
    a: float
    b: float
    r2: float
    limit: float | None = None

    def at(self, t: int) -> float:
        """The curve's value, not below 0."""
        if self.limit is not None:
            return _exp(self.a * t + self.b, self.limit)
        return max(0.0, self.a * (math.log(t) if self.shape == "logarithmic" else t) + self.b)


class CurvePlugin(ForecastPlugin):
    """A forecaster that fits a curve to its window with every value, and stores it, because several forecasts may use it."""

    window: int

    def initial(self) -> State:
        return {"window": [], "curve": None}

    def update(self, state: State, value: float) -> State:
        return update(state, value, self.window, self._fit)

    def ahead(self, state: State, steps: int = 1) -> float | None:
        """The curve's value ``steps`` intervals after the window's last value."""
        if state["curve"] is None:
            return None
        return Curve(*state["curve"]).at(len(state["window"]) + steps)

    @abstractmethod
    def _fit(self, values: Sequence[float], spread: float) -> Curve | None:
        """The curve through the values, given also their Σ(y − ȳ)²; None if there is none."""


def update(state: State, value: float, size: int, fit: Callable[[Sequence[float], float], Curve | None]) -> State:
    """The state after another value: the window and its curve.

    The curve is a level line through the last value if there are too few values, if all are equal, or if ``fit`` finds none.
    """
    values = slid(state["window"], value, size)
    curve = None
    if len(values) >= MIN_VALUES and max(values) - min(values) >= MIN_SPREAD:
        mean = sum(values) / len(values)
        curve = fit(values, sum([(value - mean) ** 2 for value in values]))
    return {"window": values, "curve": list(curve or Curve("linear", 0.0, values[-1], 1.0))}


def next_window(state: State, size: int) -> float:
    """The sum of the curve's next ``size`` values."""
    curve, last = Curve(*state["curve"]), len(state["window"])
    return sum([curve.at(last + step) for step in range(1, size + 1)])


def linear(values: Sequence[float], spread: float) -> Curve:
    """The line a·t + b."""
    return _line("linear", values, spread)


def logarithmic(values: Sequence[float], spread: float) -> Curve:
    """The curve a·ln t + b: a line over ln t."""
    return _line("logarithmic", values, spread)


def exponential(values: Sequence[float], spread: float, cap: float) -> Curve | None:
    """The curve e^(a·t + b), at most ``cap`` times the largest value; None if a value is 0, which has no logarithm."""
    if min(values) <= 0.0:
        return None
    middle, centred, squares = times("linear", len(values))
    logs = [math.log(value) for value in values]
    a = sum(map(mul, centred, logs)) / squares
    b = sum(logs) / len(logs) - a * middle
    limit = cap * max(values)
    errors = [value - _exp(a * t + b, limit) for t, value in enumerate(values, 1)]
    return Curve("exponential", a, b, 1.0 - sum([error * error for error in errors]) / spread, limit)


class Times(NamedTuple):
    """Statistics of the times 1..n, or of their logarithms: the mean, the deviations from it, and the sum of their squares."""

    mean: float
    centred: tuple[float, ...]
    squares: float


@lru_cache(maxsize=256)
def times(shape: str, n: int) -> Times:
    """The statistics from which a curve's slope is computed."""
    over = axis(shape, 1, n)
    mean = math.fsum(over) / n
    centred = tuple(t - mean for t in over)
    return Times(mean, centred, math.fsum(c * c for c in centred))


@lru_cache(maxsize=256)
def axis(shape: str, first: int, last: int) -> tuple[float, ...]:
    """The times from the first to the last, or their logarithms: the axis over which a curve, or its logarithm, is a line."""
    return tuple(math.log(t) if shape == "logarithmic" else float(t) for t in range(first, last + 1))


def _line(shape: str, values: Sequence[float], spread: float) -> Curve:
    """a = Σ(x − x̄)·y / Σ(x − x̄)², b = ȳ − a·x̄; the R² of a line is a²·Σ(x − x̄)² / Σ(y − ȳ)²."""
    middle, centred, squares = times(shape, len(values))
    a = sum(map(mul, centred, values)) / squares
    b = sum(values) / len(values) - a * middle
    return Curve(shape, a, b, a * a * squares / spread)


def _exp(exponent: float, limit: float) -> float:
    """e^exponent, at most the limit."""
    return min(limit, math.exp(min(exponent, LARGEST_EXPONENT)))
