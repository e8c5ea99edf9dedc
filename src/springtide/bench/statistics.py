"""What benchmarks have in common: sides that take turns, and the spread of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def turned(sides: Sequence[T], by: int) -> Sequence[T]:
    """The sides in another order for every round, so that none is always the first."""
    by %= len(sides)
    return (*sides[by:], *sides[:by])


def quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [round(values[0], 3)] * 2
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return [round(low, 3), round(high, 3)]
