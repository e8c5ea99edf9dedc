"""What the records of a task cost, by key: what a task tells, and all that groupings learn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]


LONGEST_S = 1e9
"""No key's records of one batch take 30 years: a clock that went wrong says so."""


@dataclass(frozen=True, eq=False)
class TaskCosts:
    """One task of one operator in one batch: for each distinct key its number of records and the seconds they took.

    ``task`` is the number of the task among the operator's, from 0: its replica. ``keys`` are in rising order. What cannot
    be a cost, such as a negative one, is left out, so that nobody who learns from reports has to look for it.
    """

    task: int
    keys: Hashes
    counts: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        sound = _sound(self.seconds) & (self.counts > 0)
        if not sound.all():
            for name in ("keys", "counts", "seconds"):
                object.__setattr__(self, name, getattr(self, name)[sound])

    @classmethod
    def of(cls, task: int, keys: Hashes, seconds: npt.NDArray[np.float64]) -> TaskCosts:
        """Sums per key of what each record took.

        >>> costs = TaskCosts.of(0, np.array([7, 5, 7], dtype=np.uint64), np.array([1.0, 2.0, 4.0]))
        >>> costs.keys.tolist(), costs.counts.tolist(), costs.seconds.tolist()
        ([5, 7], [1, 2], [2.0, 5.0])
        """
        sound = _sound(seconds)
        distinct, places = np.unique(keys[sound], return_inverse=True)
        counts = np.bincount(places, minlength=len(distinct))
        sums = np.bincount(places, weights=seconds[sound], minlength=len(distinct)).astype(np.float64)
        return cls(task, distinct, counts, sums)

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @property
    def total_s(self) -> float:
        return float(self.seconds.sum())


def _sound(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which can be costs; not a number is neither more nor less than anything."""
    return (seconds >= 0) & (seconds <= LONGEST_S)
