"""The last values of a series, as forecasters keep them."""

from __future__ import annotations

from collections.abc import Sequence

LARGEST = 1e100
"""A larger value counts as this one. No rate comes near it, and squares and sums of what is below stay finite."""


def slid(values: Sequence[float], value: float, size: int) -> list[float]:
    """The last ``size`` values, the new one included.

    >>> slid([1.0, 2.0, 3.0], 4.0, size=3)
    [2.0, 3.0, 4.0]
    """
    return [*values[max(0, len(values) + 1 - size) :], min(float(value), LARGEST)]
