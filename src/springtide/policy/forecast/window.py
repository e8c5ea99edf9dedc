"""The window of the last values of a series, which forecasters store."""

from __future__ import annotations

from collections.abc import Sequence

LARGEST = 1e100
"""Upper limit of a value. No rate comes near it, and squares and sums of values below it stay finite."""


def slid(values: Sequence[float], value: float, size: int) -> list[float]:
    """The last ``size`` values, including the new value.

    >>> slid([1.0, 2.0, 3.0], 4.0, size=3)
    [2.0, 3.0, 4.0]
    """
    return [*values[max(0, len(values) + 1 - size) :], min(float(value), LARGEST)]
