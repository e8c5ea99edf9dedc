"""Full knowledge: a lower bound to which groupings are compared, in the simulator only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from springtide.errors import OptionError
from springtide.policy.group import GroupPlugin, Online, Share, Table, kernel


@dataclass(frozen=True)
class FullKnowledge(GroupPlugin):
    """Routes each record to the replica that will be free first, by the true costs of all records in the queues.

    POSG's Full Knowledge (section V-B): the Greedy Online Scheduler with the true execution times, which no real system has
    before the records are executed.
    """

    name = "full-knowledge"
    source = "POSG, section V-B"
    summary = "to the task that is free first, by true costs: a bound, in the simulator only"
    simulator_only: ClassVar[bool] = True

    def route(self, share: Share, table: Table) -> NoReturn:
        raise OptionError(
            "'full-knowledge' needs the true cost of records before they are executed, which only the simulator's continuous"
            " mode knows; choose 'tide', 'posg', 'lpt' or 'round-robin'"
        )

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        return Online(Nothing(np.zeros(1, dtype=np.int64)), free_first)


class Nothing(NamedTuple):
    """It learns nothing, because the simulator passes the queues to it."""

    unused: npt.NDArray[np.int64]


@kernel
def free_first(state: Nothing, key: int, now: float, free: npt.NDArray[np.float64], queue: npt.NDArray[np.int64]) -> int:
    target = 0
    for i in range(1, len(free)):
        if free[i] < free[target]:
            target = i
    return target
