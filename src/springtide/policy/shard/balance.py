"""Elasticutor's balancing: while the most loaded task has more than θ times the mean, move the shard that helps most.

Source: Wang et al.: "Elasticutor: rapid elasticity for realtime stateful stream processing", SIGMOD 2019, section 3.2. The load
of a shard is what its records cost lately; δ is the greatest load of a task over the mean load. A shard moves from the most
loaded task to the least loaded one. A hot shard that alone has more than the mean is isolated by that: the others leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from springtide.policy.registry import parameter, validate
from springtide.policy.shard import Loads, Owner

THETA = 1.2
"""The paper's."""
FINER = 1.1
"""Here a shard changes its task without a stop and without a copy, so it may do so for less."""
LEAST_GAIN_S = 0.005
"""A new table takes some 10 ms of a batch: it is written down, and sent to the tasks. Where the work of a batch is a few
milliseconds, what is measured of it is noise: one batch in three had another table."""


@dataclass(frozen=True)
class Balance:
    """Shards move until the most loaded task has at most θ times the mean load."""

    kind: ClassVar[str] = "shard"
    name: ClassVar[str] = "balance"
    source: ClassVar[str] = "Elasticutor, section 3.2"
    summary: ClassVar[str] = "moves the shard that helps most, until the most loaded task has at most θ times the mean"

    theta: float = parameter(FINER, minimum=1.0, maximum=100.0, help="so many times the mean load is balanced enough")
    least_gain: float = parameter(
        LEAST_GAIN_S, "s", minimum=0.0, help="so little above the mean load is balanced enough too, in a batch"
    )

    def __post_init__(self) -> None:
        validate(self)

    def assign(self, owner: Owner, loads: Loads, width: int) -> Owner:
        tasks = np.bincount(owner, loads, minlength=width)
        all_have_some = len(np.unique(owner)) == len(tasks) == width
        if all_have_some and tasks.max() - tasks.mean() <= self.least_gain:
            return owner.copy()
        return balanced(owner, loads, width, self.theta)


def balanced(owner: Owner, loads: Loads, width: int, theta: float = THETA) -> Owner:
    """The table after the moves that bring δ down to θ, or as far down as moves of one shard can.

    >>> balanced(np.array([0, 0, 0, 1]), np.array([4.0, 3.0, 1.0, 2.0]), 2)
    array([0, 1, 0, 1])
    """
    owner = _fitted(owner, loads, width)
    loads = _with_floor(loads)
    tasks = np.bincount(owner, loads, minlength=width)
    mean = tasks.sum() / width
    for _ in range(len(owner)):
        most, least = int(tasks.argmax()), int(tasks.argmin())
        if tasks[most] <= theta * mean:
            break
        mine = np.flatnonzero(owner == most)
        after = np.maximum(tasks[most] - loads[mine], tasks[least] + loads[mine])
        best = int(after.argmin())
        if after[best] >= tasks[most] * (1 - 1e-9):
            break  # no move improves it: one shard has it all
        shard = mine[best]
        owner[shard] = least
        tasks[most] -= loads[shard]
        tasks[least] += loads[shard]
    return owner


def _fitted(owner: Owner, loads: Loads, width: int) -> Owner:
    """Without tasks that are no longer there: their shards go to the least loaded of the others, the heaviest first."""
    owner = owner.copy()
    orphans = np.flatnonzero(owner >= width)
    if len(orphans):
        floored = _with_floor(loads)
        tasks = np.bincount(owner[owner < width], floored[owner < width], minlength=width)
        for shard in orphans[np.argsort(-floored[orphans], kind="stable")]:
            least = int(tasks.argmin())
            owner[shard] = least
            tasks[least] += floored[shard]
    return owner


def _with_floor(loads: Loads) -> Loads:
    """A shard that nothing came for lately counts for a little, that such shards are spread too."""
    total = float(loads.sum())
    floor = 0.01 * total / len(loads) if total > 0 else 1.0
    return np.maximum(loads, floor)
