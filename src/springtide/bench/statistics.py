"""Helpers of the benchmarks: contenders that take turns, and quartiles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def turned(sides: Sequence[T], by: int) -> Sequence[T]:
    """The contenders in an order that rotates with every round, so that none is always first."""
    by %= len(sides)
    return (*sides[by:], *sides[:by])


def quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [round(values[0], 3)] * 2
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return [round(low, 3), round(high, 3)]
