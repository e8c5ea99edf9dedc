"""Quantiles of any number of weighted values in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

ACCURACY = 0.01
"""A quantile differs from the exact one by at most this share of it: nobody reads a latency more closely than to 1 %."""

LEAST = 1e-6
"""Values nearer to zero than this share the bucket of zero. Creation times are in microseconds, so nothing lies between."""

_WIDTH = math.log1p(ACCURACY)


@dataclass
class Sketch:
    """A histogram whose buckets grow geometrically, each by ``ACCURACY`` wider than the one below it.

    Source: DDSketch (Masson, Rim and Lee, VLDB 2019), with the mean of a bucket in place of its middle, so that a bucket
    which got one value only returns it as it came. The mean of all values is exact. From a microsecond to 30 years there
    are 3,470 buckets, and as many for negative values, which clocks that differ produce.

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
        there, total = self._buckets.get(number, (0.0, 0.0))
        self._buckets[number] = (there + weight, total + value * weight)
        self.weight += weight
        self.total += value * weight

    @property
    def mean(self) -> float:
        return self.total / self.weight

    @property
    def size(self) -> int:
        """How many buckets are in use: what it costs in memory."""
        return len(self._buckets)

    def quantile(self, share: float) -> float:
        """The least value that this share of the weight does not exceed, to within ``ACCURACY`` of itself."""
        below, value = 0.0, math.nan
        for number in sorted(self._buckets):
            weight, total = self._buckets[number]
            below, value = below + weight, total / weight
            if below >= share * self.weight - 1e-9:
                break
        return value


def _bucket(value: float) -> int:
    """A number that grows with the value: 0 around zero, negative for negative values."""
    if abs(value) < LEAST:
        return 0
    number = 1 + math.floor(math.log(abs(value) / LEAST) / _WIDTH)
    return number if value > 0 else -number
