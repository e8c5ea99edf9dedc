"""The slots that degrees occupy on Spark, where the stages of a batch use all slots in turn.

An operator has at least one replica, but an operator that works 1 % of the time shares the slots of others. So a chain of five
light operators runs on one slot, and does not need five executors.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

SLOTS_PER_WORK = 1.5
"""Slots per second of work a second, for an operator with one replica."""
NEGLIGIBLE_SLOT = 0.05
"""Smaller parts of a slot are not rounded up."""


def taken(degrees: npt.NDArray[np.int64], work: npt.NDArray[np.float64], reading: float = 0.0) -> npt.NDArray[np.int64]:
    """The slots that the last axis takes together. ``work``: seconds of work a second, NaN where it is not known. ``reading``:
    that of the sources, which have no degree; as their work fills the slots, they get half as many more.

    >>> taken(np.array([4, 1, 1]), np.array([3.2, 0.01, 0.4])).item()  # 4 + 0.015 + 0.6
    5
    >>> taken(np.array([4, 1, 1]), np.array([3.2, 0.01, np.nan])).item()  # 4 + 0.015 + 1
    5
    """
    own = np.where((degrees > 1) | np.isnan(work), degrees, np.minimum(1.0, SLOTS_PER_WORK * work))
    wanted = np.ceil(own.sum(axis=-1) + SLOTS_PER_WORK * reading - NEGLIGIBLE_SLOT)
    found: npt.NDArray[np.int64] = np.maximum(1, wanted).astype(np.int64)
    return found


def slots(degrees: Mapping[str, int], work: Mapping[str, float], reading: float = 0.0) -> int:
    """The slots of operators by name; an operator of unknown work takes as many as its degree.

    >>> slots({"parse": 1, "keep": 1}, {"parse": 0.3, "keep": 0.02}), slots({"parse": 1}, {"parse": 0.3}, reading=0.6)
    (1, 2)
    """
    if not degrees:
        return 1
    known = np.array([work.get(name, np.nan) for name in degrees], dtype=np.float64)
    return int(taken(np.array(list(degrees.values()), dtype=np.int64), known, reading))
