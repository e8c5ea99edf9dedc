"""How many slots degrees take on Spark, where the stages of a batch take turns on all of them.

An operator has at least one replica, but one that works for a hundredth of the time takes no slot of its own: the others lend
it theirs. So a chain of five light operators runs on one slot, and on a cluster nobody pays for five executors.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

SPARE = 1.5
"""Slots for a second of work a second, for an operator that was not granted more than one replica."""
TOO_LITTLE = 0.05
"""A part of a slot that is not worth another one."""


def taken(degrees: npt.NDArray[np.int64], work: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The slots that the last axis takes together. ``work``: seconds of work a second, NaN where it is not known.

    >>> taken(np.array([4, 1, 1]), np.array([3.2, 0.01, 0.4])).item()  # 4 + 0.015 + 0.6
    5
    >>> taken(np.array([4, 1, 1]), np.array([3.2, 0.01, np.nan])).item()  # 4 + 0.015 + 1
    5
    """
    own = np.where((degrees > 1) | np.isnan(work), degrees, np.minimum(1.0, SPARE * work))
    found: npt.NDArray[np.int64] = np.maximum(1, np.ceil(own.sum(axis=-1) - TOO_LITTLE)).astype(np.int64)
    return found


def slots(degrees: Mapping[str, int], work: Mapping[str, float]) -> int:
    """The same of operators by name; one of which no work is told takes as many as its degree."""
    if not degrees:
        return 1
    known = np.array([work.get(name, np.nan) for name in degrees], dtype=np.float64)
    return int(taken(np.array(list(degrees.values()), dtype=np.int64), known))
