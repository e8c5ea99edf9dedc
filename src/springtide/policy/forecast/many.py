"""The curves of ``regression`` for many series at once: a graph may have a thousand operators, each with its forecast.

Vectorised arithmetic over all series is several times faster than series by series. Formulas and results are those of
``regression``: sums are in the same order, and logarithms and powers are Python's, because numpy's differ from them in the
last digit, and differ between machines. (From Python 3.12 on, ``sum`` rounds less than numpy does; there the last digit may
differ after all.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.policy.forecast import Forecaster, State
from springtide.policy.forecast.regression import LARGEST_EXPONENT, MIN_SPREAD, MIN_VALUES, Curve, axis, next_window, times
from springtide.policy.forecast.window import slid

MIN_VECTORISED = 8
"""Fewer series are faster one by one. For a single series numpy would also add in another order."""

Array = npt.NDArray[np.float64]
"""A column for each series, and, if it is a matrix, a row for each time."""
Row = tuple[str, float, float, float, float | None]
"""The fields of a Curve as a plain tuple, because making a Curve takes longer than fitting it."""
Fit = Callable[[Array, Array], Sequence[Row]]
"""Fits curves to windows of equal length, given also their Σ(y − ȳ)²."""


def update(forecaster: Forecaster, states: Sequence[State], values: Sequence[float], size: int, fit: Fit) -> list[State]:
    """The states of several series after another value each, equal to ``forecaster.update`` series by series."""
    after: list[State] = [{}] * len(states)
    for alike in _groups([len(state["window"]) for state in states]):
        if len(alike) < MIN_VECTORISED or len(states[alike[0]]["window"]) + 1 < MIN_VALUES:
            updated = [forecaster.update(states[i], values[i]) for i in alike]
        else:
            updated = _updated([slid(states[i]["window"], values[i], size) for i in alike], fit)
        for i, state in zip(alike, updated, strict=True):
            after[i] = state
    return after


def next_windows(states: Sequence[State], size: int) -> list[float]:
    sums = [0.0] * len(states)
    for alike in _groups([(len(state["window"]), state["curve"][0]) for state in states]):
        group = [states[i] for i in alike]
        if len(group) < MIN_VECTORISED:
            group_sums = [next_window(state, size) for state in group]
        else:
            shapes, a, b, _, limits = zip(*[state["curve"] for state in group], strict=True)
            last = len(group[0]["window"])
            group_sums = _added(_at(shapes[0], np.array(a), np.array(b), limits, last + 1, last + size)).tolist()
        for i, total in zip(alike, group_sums, strict=True):
            sums[i] = total
    return sums


def linear(y: Array, spread: Array) -> list[Row]:
    """The lines a·t + b."""
    return _line("linear", y, spread)


def logarithmic(y: Array, spread: Array) -> list[Row]:
    """The curves a·ln t + b."""
    return _line("logarithmic", y, spread)


def exponential(y: Array, spread: Array, cap: float) -> list[Row]:
    """The curves e^(a·t + b), at most ``cap`` times the largest value; the R² of a window with a 0 is −∞."""
    positive = y.min(axis=0) > 0.0
    a, b = _slope("linear", _each(math.log, np.where(positive, y, 1.0)))
    limits = cap * y.max(axis=0)
    errors = y - _at("exponential", a, b, limits, 1, len(y))
    r2 = np.where(positive, 1.0 - _added(errors * errors) / spread, -math.inf)
    return list(zip(repeat("exponential"), a.tolist(), b.tolist(), r2.tolist(), limits.tolist(), strict=False))


def _updated(windows: Sequence[list[float]], fit: Fit) -> list[State]:
    """The states for windows of equal length. Constant windows are fitted with the others, and then get a level line."""
    y = np.array(windows).T.copy()
    level = y.max(axis=0) - y.min(axis=0) < MIN_SPREAD
    errors = y - _added(y) / len(y)
    curves = fit(y, np.where(level, 1.0, _added(_each(pow, errors, repeat(2)))))
    fitted = [list(curve) for curve in curves]
    for i in np.flatnonzero(level).tolist():
        fitted[i] = list(Curve("linear", 0.0, windows[i][-1], 1.0))
    return [{"window": window, "curve": curve} for window, curve in zip(windows, fitted, strict=True)]


def _line(shape: str, y: Array, spread: Array) -> list[Row]:
    a, b = _slope(shape, y)
    r2 = a * a * times(shape, len(y)).squares / spread
    return list(zip(repeat(shape), a.tolist(), b.tolist(), r2.tolist(), repeat(None), strict=False))


def _slope(shape: str, y: Array) -> tuple[Array, Array]:
    """a = Σ(x − x̄)·y / Σ(x − x̄)², b = ȳ − a·x̄."""
    middle, centred, squares = times(shape, len(y))
    a = _added(np.array(centred)[:, None] * y) / squares
    return a, _added(y) / len(y) - a * middle


def _at(shape: str, a: Array, b: Array, limits: Any, first: int, last: int) -> Array:
    """The curves' values from the first to the last time, both included."""
    line = a * np.array(axis(shape, first, last))[:, None] + b
    if shape == "exponential":
        values: Array = np.minimum(limits, _each(math.exp, np.minimum(line, LARGEST_EXPONENT)))
    else:
        values = np.maximum(0.0, line)
    return values


def _added(y: Array) -> Array:
    """The sums over the times, added from the first to the last."""
    total: Array = y.sum(axis=0, initial=0.0)
    return total


def _each(function: Callable[..., float], y: Array, *others: Iterable[Any]) -> Array:
    """Apply a function of Python's floats to each element."""
    return np.fromiter(map(function, y.ravel().tolist(), *others), np.float64, y.size).reshape(y.shape)


def _groups(keys: Sequence[Any]) -> Iterator[list[int]]:
    """The places of equal keys, grouped."""
    groups: dict[Any, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    yield from groups.values()
