"""Quantiles of any number of weighted values in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

ACCURACY = 0.01
"""The relative error of a quantile is at most this. Nobody reads a latency more precisely than to 1 %."""

MIN_MAGNITUDE = 1e-6
"""Values closer to zero than this count as zero. Creation times are in microseconds, so no latency lies between."""

_WIDTH = math.log1p(ACCURACY)


@dataclass
class Sketch:
    """A histogram whose buckets grow geometrically: each is wider than the bucket below it by a share of ``ACCURACY``.

    Source: DDSketch (Masson, Rim and Lee, VLDB 2019), with the mean of a bucket in place of its middle, so that a bucket
    with a single value returns it exactly. The mean of all values is exact. From a microsecond to 30 years there are 3,470
    buckets, and as many for negative values, which occur where two clocks differ.

    >>> sketch = Sketch()
    >>> for value in (0.1, 0.3, 0.3):
    ...     sketch.add(value, weight=2)
    >>> round(sketch.quantile(0.5), 6), round(sketch.mean, 6)
    (0.3, 0.233333)
    """

    weight: float = 0.0
    total: float = 0.0
    _buckets: dict[int, tuple[float, float]] = field(default_factory=dict)  # by number: weight, weighted sum of values

    def add(self, value: float, weight: float = 1.0) -> None:
        """Count a value ``weight`` times."""
        number = _bucket(value)
        counted, total = self._buckets.get(number, (0.0, 0.0))
        self._buckets[number] = (counted + weight, total + value * weight)
        self.weight += weight
        self.total += value * weight

    @property
    def mean(self) -> float:
        return self.total / self.weight

    @property
    def size(self) -> int:
        """The number of buckets in use, which determines the memory."""
        return len(self._buckets)

    def quantile(self, share: float) -> float:
        """The least value that this share of the weight does not exceed, with a relative error of at most ``ACCURACY``."""
        below, value = 0.0, math.nan
        for number in sorted(self._buckets):
            weight, total = self._buckets[number]
            below, value = below + weight, total / weight
            if below >= share * self.weight - 1e-9:
                break
        return value


def _bucket(value: float) -> int:
    """The number of a value's bucket; it grows with the value, is 0 around zero, and negative for negative values."""
    if abs(value) < MIN_MAGNITUDE:
        return 0
    number = 1 + math.floor(math.log(abs(value) / MIN_MAGNITUDE) / _WIDTH)
    return number if value > 0 else -number
