"""The demand of arrivals: the least constant capacity that keeps their queue short, as opposed to their mean."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt


def demand(arrivals: Sequence[float] | npt.NDArray[np.float64], patience_s: float) -> float:
    """The least constant capacity, in records/s, at which no record of these seconds waits longer than ``patience_s``.

    At capacity c the queue is never longer than c·patience if no n consecutive seconds bring more than c·(n + patience)
    records; so c is the maximum of sum/(n + patience) over all ranges of seconds.

    >>> demand([100, 100, 100], 0.0)
    100.0
    >>> demand([0, 120, 0], 0.5)  # 120 records, 40 of which may wait at the end of their second
    80.0
    """
    came = np.concatenate([[0.0], np.cumsum(np.asarray(arrivals, dtype=np.float64))])
    if len(came) < 2:
        return 0.0
    first, last, lengths = _ranges(len(came))
    return float(np.max((came[last] - came[first]) / (lengths + patience_s)))


@lru_cache(maxsize=64)
def _ranges(count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The starts, ends and lengths of all ranges, cached because finding them takes most of the time."""
    first, last = np.triu_indices(count, 1)
    return first, last, last - first
