"""The curves of ``regression`` through many series at once: a graph may have a thousand operators, each with its forecast.

To take a step of the arithmetic for all series, and then the next, is several times quicker than to take them one by one.
Formulas and numbers are those of ``regression``: added up in the same order, with Python's logarithms and powers, as numpy's
own differ from them, and from machine to machine, in the last digit. (From Python 3.12 on ``sum`` rounds less than numpy does;
there the two may differ in the last digit after all.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.policy.forecast import Forecaster, State
from springtide.policy.forecast.regression import FEWEST, LARGEST_EXPONENT, NARROWEST, Curve, axis, next_window, times
from springtide.policy.forecast.window import slid

FEW = 8
"""Fewer series are quicker one by one. Of a single one numpy would also add up in another order."""

Array = npt.NDArray[np.float64]
"""A column for each series; where it has rows, one for each time."""
Row = tuple[str, float, float, float, float | None]
"""What a Curve has; without its name, as it takes longer to make one than to fit it."""
Fit = Callable[[Array, Array], Sequence[Row]]
"""The curves through windows that are equally long, given also their Σ(y − ȳ)²."""


def update(forecaster: Forecaster, states: Sequence[State], values: Sequence[float], size: int, fit: Fit) -> list[State]:
    """The states after one more value each: what the forecaster would make of them one by one."""
    after: list[State] = [{}] * len(states)
    for alike in _alike([len(state["window"]) for state in states]):
        if len(alike) < FEW or len(states[alike[0]]["window"]) + 1 < FEWEST:
            found = [forecaster.update(states[i], values[i]) for i in alike]
        else:
            found = _updated([slid(states[i]["window"], values[i], size) for i in alike], fit)
        for i, state in zip(alike, found, strict=True):
            after[i] = state
    return after


def next_windows(states: Sequence[State], size: int) -> list[float]:
    """``next_window`` of each."""
    sums = [0.0] * len(states)
    for alike in _alike([(len(state["window"]), state["curve"][0]) for state in states]):
        some = [states[i] for i in alike]
        if len(some) < FEW:
            found = [next_window(state, size) for state in some]
        else:
            shapes, a, b, _, limits = zip(*[state["curve"] for state in some], strict=True)
            last = len(some[0]["window"])
            found = _added(_at(shapes[0], np.array(a), np.array(b), limits, last + 1, last + size)).tolist()
        for i, each in zip(alike, found, strict=True):
            sums[i] = each
    return sums


def linear(y: Array, spread: Array) -> list[Row]:
    """The lines a·t + b."""
    return _line("linear", y, spread)


def logarithmic(y: Array, spread: Array) -> list[Row]:
    """The curves a·ln t + b."""
    return _line("logarithmic", y, spread)


def exponential(y: Array, spread: Array, cap: float) -> list[Row]:
    """The curves e^(a·t + b), at most ``cap`` times the largest value; with a 0 in it, a window's R² is −∞."""
    positive = y.min(axis=0) > 0.0
    a, b = _slope("linear", _each(math.log, np.where(positive, y, 1.0)))
    limits = cap * y.max(axis=0)
    errors = y - _at("exponential", a, b, limits, 1, len(y))
    r2 = np.where(positive, 1.0 - _added(errors * errors) / spread, -math.inf)
    return list(zip(repeat("exponential"), a.tolist(), b.tolist(), r2.tolist(), limits.tolist(), strict=False))


def _updated(windows: Sequence[list[float]], fit: Fit) -> list[State]:
    """Of windows that are equally long, and long enough for a curve. Level ones are fitted with the others, and replaced."""
    y = np.array(windows).T.copy()
    level = y.max(axis=0) - y.min(axis=0) < NARROWEST
    errors = y - _added(y) / len(y)
    curves = fit(y, np.where(level, 1.0, _added(_each(pow, errors, repeat(2)))))
    found = [list(curve) for curve in curves]
    for i in np.flatnonzero(level).tolist():
        found[i] = list(Curve("linear", 0.0, windows[i][-1], 1.0))
    return [{"window": window, "curve": curve} for window, curve in zip(windows, found, strict=True)]


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
    """The curves from one time to another, both included."""
    line = a * np.array(axis(shape, first, last))[:, None] + b
    if shape == "exponential":
        values: Array = np.minimum(limits, _each(math.exp, np.minimum(line, LARGEST_EXPONENT)))
    else:
        values = np.maximum(0.0, line)
    return values


def _added(y: Array) -> Array:
    """The sum over the times, from the first to the last."""
    total: Array = y.sum(axis=0, initial=0.0)
    return total


def _each(function: Callable[..., float], y: Array, *others: Iterable[Any]) -> Array:
    """A function of one number after the other."""
    return np.fromiter(map(function, y.ravel().tolist(), *others), np.float64, y.size).reshape(y.shape)


def _alike(keys: Sequence[Any]) -> Iterator[list[int]]:
    """Which series have the same key."""
    found: dict[Any, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    yield from found.values()
