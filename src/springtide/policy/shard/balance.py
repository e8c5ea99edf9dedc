"""Elasticutor's balancing: while the most loaded task has more than θ times the mean, move the shard that helps most.

Source: Wang et al.: "Elasticutor: rapid elasticity for realtime stateful stream processing", SIGMOD 2019, section 3.2. The load
of a shard is the recent cost of its records; δ is the greatest load of a task over the mean load. Shards move from the most
loaded task to the least loaded. A hot shard with more than the mean load is isolated that way, because the others leave.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from springtide.policy.registry import parameter
from springtide.policy.shard import Loads, Owner, ShardPlugin

THETA = 1.2
"""The paper's limit of δ."""
DEFAULT_THETA = 1.1
"""The default limit of δ. It is below the paper's, because here a shard moves without a stop and without a copy."""
MIN_GAIN_S = 0.005
"""The least excess load that a move is made for. A new table costs some 10 ms of a batch, because it is written and sent to the
tasks. Loads of a few milliseconds are noise: with no limit, every third batch had a new table."""


@dataclass(frozen=True)
class Balance(ShardPlugin):
    """Shards move until the most loaded task has at most θ times the mean load."""

    name = "balance"
    source = "Elasticutor, section 3.2"
    summary = "moves the shard that helps most, until the most loaded task has at most θ times the mean"

    theta: float = parameter(DEFAULT_THETA, minimum=1.0, maximum=100.0, help="the most load of a task, in mean loads, θ")
    least_gain: float = parameter(
        MIN_GAIN_S, "s", minimum=0.0, help="no move while the most loaded task is less than this above the mean, in a batch"
    )

    def assign(self, owner: Owner, loads: Loads, width: int) -> Owner:
        tasks = np.bincount(owner, loads, minlength=width)
        all_have_some = len(np.unique(owner)) == len(tasks) == width
        if all_have_some and tasks.max() - tasks.mean() <= self.least_gain:
            return owner.copy()
        return balanced(owner, loads, width, self.theta)


def balanced(owner: Owner, loads: Loads, width: int, theta: float = THETA) -> Owner:
    """The assignment after moves that bring δ down to θ, or as far down as moves of single shards can.

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
            break  # no move helps: a single shard has most of the load
        shard = mine[best]
        owner[shard] = least
        tasks[most] -= loads[shard]
        tasks[least] += loads[shard]
    return owner


def _fitted(owner: Owner, loads: Loads, width: int) -> Owner:
    """Reassign the shards of tasks that no longer exist: each to the least loaded task, the heaviest first."""
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
    """Give idle shards a small load, so that they are spread too."""
    total = float(loads.sum())
    floor = 0.01 * total / len(loads) if total > 0 else 1.0
    return np.maximum(loads, floor)
