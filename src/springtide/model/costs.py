"""What the records of a task cost, by key: what a task tells, and all that groupings learn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class TaskCosts:
    """One task of one operator in one batch: for each distinct key its number of records and the seconds they took.

    ``task`` is the number of the task among the operator's, from 0: its replica. ``keys`` are in rising order.
    """

    task: int
    keys: Hashes
    counts: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]

    @classmethod
    def of(cls, task: int, keys: Hashes, seconds: npt.NDArray[np.float64]) -> TaskCosts:
        """Sums per key of what each record took. What cannot be a cost, negative or not finite, is left out.

        >>> costs = TaskCosts.of(0, np.array([7, 5, 7], dtype=np.uint64), np.array([1.0, 2.0, 4.0]))
        >>> costs.keys.tolist(), costs.counts.tolist(), costs.seconds.tolist()
        ([5, 7], [1, 2], [2.0, 5.0])
        """
        sound = np.isfinite(seconds) & (seconds >= 0)
        if not sound.all():
            keys, seconds = keys[sound], seconds[sound]
        distinct, places = np.unique(keys, return_inverse=True)
        counts = np.bincount(places, minlength=len(distinct))
        sums = np.bincount(places, weights=seconds, minlength=len(distinct)).astype(np.float64)
        return cls(task, distinct, counts, sums)

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @property
    def total_s(self) -> float:
        return float(self.seconds.sum())
