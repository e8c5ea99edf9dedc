"""POSG routes records to the instance with the least work so far, by the measured costs of their keys.

Rivetti, Anceaume, Busnel, Querzoni, Sericola: Proactive Online Scheduling for Shuffle Grouping in Distributed Stream
Processing Systems (2015); called OSG in DABS-Storm. The names are the paper's: F and W are the matrices that an operator
instance fills, S its snapshot of W/F, Ĉ the scheduler's estimate of the time that an instance's records take.

    an instance (figure 2)      START ──N records──▶ STABILIZING ──N records, η ≤ μ: F, W are sent and emptied──▶ START
                                                     STABILIZING ──N records, η > μ: S is renewed──▶ STABILIZING
    the scheduler (figure 3)    ROUND_ROBIN ──F, W of all──▶ SEND_ALL ──k requests──▶ WAIT_ALL ──k replies──▶ RUN
                                any but ROUND_ROBIN ──new F, W, or N·k records in RUN──▶ SEND_ALL

Where the paper's text and its code differ, this follows the code, because the text does not give the paper's results: C is a
clock, so that every synchronisation includes the time that an instance was idle, and there is one every N·k records. At 105 %
provisioning the speed-up over round-robin is 1.17; with C as busy time it is 0.93, even when synchronised every 1,024
records. μ is 0.1, as the paper's own RUN begins near record 10,690, and with the text's 0.05 it begins near 20,500. ``literal``
follows the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any

import numpy as np

from springtide.model.costs import TaskCosts
from springtide.policy.group import GroupPlugin, Online, Share, State, Table, Targets, count_min
from springtide.policy.group.count_min import Matrix
from springtide.policy.group.greedy import in_turn
from springtide.policy.group.posg.machine import (
    PER_REPLICA,
    SINCE_CHANGE,
    Machine,
    choose,
    completed,
    end_of_window,
    fresh,
    synchronise,
)
from springtide.policy.registry import parameter

LITERAL_TOLERANCE = 0.05
"""μ in section V-A of the paper."""


@dataclass(frozen=True)
class Posg(GroupPlugin):
    """Routes each record to the replica with the least Ĉ, which then grows by the record's estimated cost (listing III.2).

    Until every replica has sent its matrices, round-robin: about 2·N·k records. A greedy schedule takes at most
    (2 − 1/k) times as long as the best one (theorem 4.2), if the estimates are right.

    Of a micro-batch the scheduler knows more: all queues are empty when it starts, so Ĉ is 0 then, and the reports of the last
    one are in. Each upstream task schedules its own share. When the number of replicas changes, it returns to round-robin
    until the new ones have sent their matrices; the others retain theirs, while C starts again for all.
    """

    name = "posg"
    source = "POSG, section III"
    summary = "to the task with the least estimated work, by sketches of keys' costs"

    window: int = parameter(1024, "records", minimum=1, help="N: a replica checks its matrices every N records")
    tolerance: float = parameter(0.1, minimum=0, help="μ: the relative change of the matrices up to which they are stable")
    epsilon: float = parameter(0.05, minimum=1e-6, maximum=1, help="ε: the matrices have e/ε columns")
    delta: float = parameter(0.1, minimum=1e-9, maximum=1, help="δ: the matrices have log₂(1/δ) rows")
    clock: bool = parameter(True, help="C is the time since a replica's first record; no: the time that it was busy")
    resync: int = parameter(
        -1, "records", minimum=-1, help="synchronise after this many records in RUN; -1: N·k, 0: only for matrices"
    )
    literal: bool = parameter(False, help="as in the paper's text: μ = 0.05, busy time, no resync, η over empty cells too")
    columns_27: bool = parameter(False, help="2.7/ε columns: the paper's 54 at ε = 0.05, where e/ε gives 55")
    weighted: bool = parameter(False, help="η weighs each cell by its records")
    send_changed_only: bool = parameter(False, help="stable matrices are sent only if they differ from those sent before")
    seed: int = parameter(0, minimum=0, maximum=2**63 - 1, help="another seed hashes the keys in another way")

    @property
    def shape(self) -> tuple[int, int]:
        """r and c."""
        return count_min.rows(self.delta), count_min.columns(self.epsilon, 2.7 if self.columns_27 else math.e)

    # in micro-batches

    def initial(self) -> State:
        return self._machine(0, self.seed)._asdict()

    def learn(self, state: State, width: int, costs: Sequence[TaskCosts]) -> State:
        """Run the replicas' state machines on a batch's reports; a window ends with the report that fills it."""
        machine = self._machine(width, self.seed, state)
        c = self.shape[1]
        for task in costs:
            op = task.task
            if not (0 <= op < width and task.rows):
                continue
            places = count_min.cells(machine.hashes, c, task.keys)
            count_min.update(machine.F[op], machine.W[op], places, task.counts, task.seconds)
            machine.done[op] += task.rows
            machine.executed[op] += task.rows
            machine.spent[op] += task.total_s
            if machine.executed[op] >= self.window:
                end_of_window(machine, op)
        return machine._asdict()

    def table(self, state: State, width: int) -> Table:
        known = state["known"][:width]
        if len(known) < width or not known.all() or state["F"].shape[1:] != self.shape:
            return {}
        matrices = {name: np.moveaxis(state[f"sent_{name}"][:width], 0, -1).copy() for name in "FW"}
        return {**matrices, "mean": state["mean"][:width]}

    def route(self, share: Share, table: Table) -> Targets:
        k = share.width
        if not table or table["F"].shape != (*self.shape, k):
            return in_turn(share)
        r, c = self.shape
        keys = share.keys if share.keyed else np.zeros(share.rows, dtype=np.uint64)
        places = count_min.cells(count_min.row_hashes(r, self.seed), c, keys)
        costs = count_min.estimate(table["F"], table["W"], places, table["mean"])
        first = (share.origin + share.batch) % k
        return (greedy(np.roll(costs, -first, axis=1)) + first) % k

    # record by record

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        known = None if before is None else before._asdict()
        machine = self._machine(k, self.seed ^ seed, known)
        if known is not None and machine.known.all():
            synchronise(machine.asked, machine.missing, machine.phase)
        return Online(machine, choose, completed)

    def _machine(self, k: int, seed: int, before: State | None = None) -> Machine:
        """Both state machines for k replicas, with the knowledge of the previous replicas."""
        r, c = self.shape
        clock, resync = self.clock and not self.literal, 0 if self.literal else self.resync
        period = self.window * k if resync < 0 else resync
        tolerance = LITERAL_TOLERANCE if self.literal else self.tolerance
        rules = [self.window, tolerance, period, clock, self.literal, self.weighted, self.send_changed_only]
        made = fresh(k, r, c, count_min.row_hashes(r, seed), np.array(rules, dtype=np.float64))
        retained = PER_REPLICA if before is None or len(before["known"]) != k else PER_REPLICA + SINCE_CHANGE
        if before is None or before["F"].shape[1:] != (r, c) or not before.keys() >= set(retained):
            return made
        made.hashes[:] = before["hashes"]
        remain = min(k, len(before["known"]))
        for name in retained:
            getattr(made, name)[:remain] = before[name][:remain]
        for name in ("began", "messages", "tuples"):
            getattr(made, name)[:] = before[name]
        return made


def greedy(costs: Matrix) -> Targets:
    """The Greedy Online Scheduler (section III-A): each task in turn to the machine with the least work so far.

    ``costs[j, i]`` is what task j takes on machine i. Of equal machines the first.

    >>> greedy(np.array([[10.0, 10.0], [1.0, 1.0], [10.0, 10.0]])).tolist()
    [0, 1, 1]
    """
    heap = [(0.0, machine) for machine in range(costs.shape[1])]
    heapify(heap)
    targets = []
    for cost in costs.tolist():
        load, machine = heap[0]
        targets.append(machine)
        heapreplace(heap, (load + cost[machine], machine))
    return np.array(targets, dtype=np.int64)
