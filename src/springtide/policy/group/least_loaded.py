"""Least loaded: join the shortest queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from springtide.policy.group import Online, Share, Table, Targets, kernel
from springtide.policy.group.greedy import in_turn
from springtide.policy.group.round_robin import Turn


@dataclass(frozen=True)
class LeastLoaded:
    """Target = the one with the fewest records that wait or are worked on; of equal ones the next in turn.

    Join the shortest queue (Winston, Optimality of the shortest line discipline, 1977): optimal where all costs are
    drawn alike and exponential, and it has to be told the queues at every record. It counts records, not what they cost.
    In a micro-batch all queues are empty at the start and a task knows of no others' records: what it has sent itself
    is the queue, and the shortest one in turn is round-robin's.

    >>> LeastLoaded().route(Share(rows=5, width=3, origin=2), {}).tolist()
    [2, 0, 1, 2, 0]
    """

    kind: ClassVar[str] = "group"
    name: ClassVar[str] = "least-loaded"
    source: ClassVar[str] = "join the shortest queue (Winston, 1977)"
    summary: ClassVar[str] = "to the task with the fewest records waiting"

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
