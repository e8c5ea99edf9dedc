"""Round-robin: records go to the targets in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.policy.group import GroupPlugin, Online, Share, Table, Targets, kernel
from springtide.policy.group.greedy import in_turn


@dataclass(frozen=True)
class RoundRobin(GroupPlugin):
    """Target = (origin + batch + position) mod width.

    Each upstream task routes its records in turn, so the numbers of records of its targets differ by 1 at most, and those of s
    upstream tasks by s. Origin and batch shift the start: otherwise 16 tasks with a record each would all send it to target 0,
    in every batch. It ignores the records' costs, which other groupings use.

    >>> RoundRobin().route(Share(rows=5, width=3, origin=2), {}).tolist()
    [2, 0, 1, 2, 0]
    """

    name = "round-robin"
    source = "Springtide"
    summary = "to the tasks in turn"

    def route(self, share: Share, table: Table) -> Targets:
        return in_turn(share)

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        return Online(Turn(np.zeros(1, dtype=np.int64)), next_in_turn)


class Turn(NamedTuple):
    """The next target."""

    next: npt.NDArray[np.int64]


@kernel
def next_in_turn(state: Turn, key: int, now: float, free: npt.NDArray[np.float64], queue: npt.NDArray[np.int64]) -> int:
    target = int(state.next[0] % len(free))
    state.next[0] = target + 1
    return target
