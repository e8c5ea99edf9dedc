"""The costs of a task's records, by key: tasks report them, and groupings learn from nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]


MAX_COST_S = 1e9
"""Upper limit of the cost of a key's records in a batch: 30 years. A greater value comes from a faulty clock."""


@dataclass(frozen=True, eq=False)
class TaskCosts:
    """The costs of an operator's task in a batch: for each distinct key the number of its records and the seconds they took.

    ``task`` is the number of the task among the operator's, from 0: its replica. ``keys`` are in rising order. Impossible
    costs, such as negative ones, are left out here, so that no learner has to check for them.
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
        """Sum the seconds of the records by key.

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
    """Which values are possible costs; both comparisons are false for NaN."""
    return (seconds >= 0) & (seconds <= MAX_COST_S)
