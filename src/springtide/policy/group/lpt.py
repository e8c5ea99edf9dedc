"""LPT: the longest estimated record of a micro-batch first, each to the target with the least work.

POSG's sketches without its state machines: a batch starts with empty queues, so there is nothing to synchronise, and all its
records are known at once, so the greedy schedule may take the longest first (Graham, 1969). The reports of all tasks are added
to a single pair of matrices, which ages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide.model.costs import Hashes, TaskCosts
from springtide.policy.group import GroupPlugin, Share, State, Table, Targets, count_min
from springtide.policy.group.greedy import in_turn, longest_first
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Lpt(GroupPlugin):
    """Longest processing time first, by estimates from a single Count-Min pair.

    >>> lpt = Lpt()
    >>> seen = TaskCosts.of(0, np.array([1, 2, 3], dtype=np.uint64), np.array([0.030, 0.010, 0.020]))
    >>> table = lpt.table(lpt.learn(lpt.initial(), 2, [seen]), 2)
    >>> lpt.route(Share(3, width=2, hashes=lambda: np.array([2, 3, 1], dtype=np.uint64)), table).tolist()
    [1, 1, 0]
    """

    name = "lpt"
    source = "Graham 1969, with POSG's sketches"
    summary = "the longest estimated record of a batch first, to the task with the least work"

    epsilon: float = parameter(0.05, minimum=1e-6, maximum=1, help="the sketch has e/epsilon columns")
    delta: float = parameter(0.1, minimum=1e-9, maximum=0.5, help="the sketch has log2(1/delta) rows")
    half_life: float = parameter(
        100_000.0, unit="records", minimum=1, help="after this many, an observation has half its weight"
    )

    def route(self, share: Share, table: Table) -> Targets:
        if not table or not share.keyed or share.width == 1:
            return in_turn(share)
        costs = count_min.estimate(table["F"], table["W"], self._places(share.keys), table["mean"][0])
        return longest_first(costs, share, np.ones(share.width))

    def initial(self) -> State:
        counted, summed = count_min.empty(count_min.rows(self.delta), count_min.columns(self.epsilon))
        return {"F": counted, "W": summed}

    def learn(self, state: State, width: int, costs: Sequence[TaskCosts]) -> State:
        weight = 0.5 ** (sum(task.rows for task in costs) / self.half_life)
        counted, summed = state["F"] * weight, state["W"] * weight
        for task in costs:
            count_min.update(counted, summed, self._places(task.keys), task.counts, task.seconds)
        return {"F": counted, "W": summed}

    def table(self, state: State, width: int) -> Table:
        seen = state["F"][0].sum()
        return {**state, "mean": np.array([state["W"][0].sum() / seen])} if seen > 0 else {}

    def _places(self, keys: Hashes) -> count_min.Cells:
        r, c = count_min.rows(self.delta), count_min.columns(self.epsilon)
        return count_min.cells(count_min.row_hashes(r, seed=0), c, keys)
