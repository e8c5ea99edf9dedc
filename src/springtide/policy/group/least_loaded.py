"""Least loaded: join the shortest queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.policy.group import GroupPlugin, Online, Share, Table, Targets, kernel
from springtide.policy.group.greedy import in_turn
from springtide.policy.group.round_robin import Turn


@dataclass(frozen=True)
class LeastLoaded(GroupPlugin):
    """Target = the task with the fewest records that wait or are processed; equal tasks take turns.

    Join the shortest queue (Winston, Optimality of the shortest line discipline, 1977): optimal for independent exponential
    costs. It needs the queues' lengths at every record, and counts records, not their costs. In a micro-batch all queues are
    empty at the start, and a task does not know the records of other tasks: the queues are the records that it sent itself, and
    the shortest queue in turn is round-robin's.

    >>> LeastLoaded().route(Share(rows=5, width=3, origin=2), {}).tolist()
    [2, 0, 1, 2, 0]
    """

    name = "least-loaded"
    source = "join the shortest queue (Winston, 1977)"
    summary = "to the task with the fewest records waiting"

    def route(self, share: Share, table: Table) -> Targets:
        return in_turn(share)

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        return Online(Turn(np.zeros(1, dtype=np.int64)), shortest)


@kernel
def shortest(state: Turn, key: int, now: float, free: npt.NDArray[np.float64], queue: npt.NDArray[np.int64]) -> int:
    k = len(free)
    target = state.next[0] % k
    for step in range(1, k):
        other = (state.next[0] + step) % k
        if queue[other] < queue[target]:
            target = other
    state.next[0] = target + 1
    return int(target)
