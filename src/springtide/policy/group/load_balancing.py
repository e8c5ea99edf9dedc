"""Load balancing: records go to the replica with the least utilisation (PSPS, section IV-A, algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.model.costs import TaskCosts
from springtide.policy.group import GroupPlugin, Online, Share, State, Table, Targets, kernel
from springtide.policy.group.greedy import in_turn
from springtide.policy.registry import parameter

_Floats = npt.NDArray[np.float64]
FULL = 1.0 - 1e-9  # a replica is full at 1; sums of et/td fall short of it by rounding errors


@dataclass(frozen=True)
class LoadBalancing(GroupPlugin):
    """Routes each record to the replica with the least U, which then grows by et/td; in turn, once all are full.

    U of a replica is μ·et/td (equation 5): the number of records that it processed in an interval of td seconds, times the
    operator's mean cost et, over td. An interval starts with the measurements of the interval before. Replicas with equal U
    take turns; a replica with a U of 1 or more is full. All records are assumed to cost et. So the rule compensates for
    replicas that differ in speed or were activated late, not for costs that differ by record.

    et is the larger of a benchmark and the current measurement. The benchmark is the first interval with a measurement: if it
    was slow, replicas count as full too early from then on, and records are routed in turn.

    In a micro-batch the interval is the batch: td is the time of its longest task.
    """

    name = "load-balancing"
    source = "PSPS, section IV-A, algorithm 1"
    summary = "to the task with the least utilisation in the interval"
    by_key: ClassVar[bool] = False

    interval: float = parameter(
        60.0, "s", minimum=1e-3, help="td: the interval of the measurement; micro-batches ignore it and measure each batch"
    )

    # in micro-batches

    def initial(self) -> State:
        return {"utilisation": np.zeros(0), "step": np.zeros(1), "benchmark": np.zeros(1)}

    def learn(self, state: State, width: int, costs: Sequence[TaskCosts]) -> State:
        records, seconds = np.zeros(width), np.zeros(width)
        for report in costs:
            if 0 <= report.task < width:
                records[report.task] += report.rows
                seconds[report.task] += report.total_s
        if not seconds.any():
            return state
        measured, benchmark = seconds.sum() / records.sum(), float(state["benchmark"][0]) if "benchmark" in state else 0.0
        step = max(measured, benchmark) / seconds.max()  # et/td
        return {"utilisation": records * step, "step": np.array([step]), "benchmark": np.array([benchmark or measured])}

    def table(self, state: State, width: int) -> Table:
        return {name: state[name] for name in ("utilisation", "step")} if len(state["utilisation"]) == width else {}

    def route(self, share: Share, table: Table) -> Targets:
        k = share.width
        if not table or len(table["utilisation"]) != k or not table["step"][0] > 0:
            return in_turn(share)
        first, step = (share.origin + share.batch) % k, float(table["step"][0])
        heap = [((float(table["utilisation"][i])), (i - first) % k, i) for i in range(k)]  # U, its turn, the replica
        heapify(heap)
        targets: list[int] = []
        for turn in range(k, k + share.rows):
            utilisation, _, target = heap[0]
            if utilisation >= FULL:
                break
            targets.append(target)
            heapreplace(heap, (utilisation + step, turn, target))
        rest = np.arange(share.rows - len(targets), dtype=np.int64)
        return np.concatenate([np.array(targets, dtype=np.int64), (rest + first + len(targets)) % k])

    # record by record

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        interval, turn = np.array([0.0, self.interval]), np.zeros(1, dtype=np.int64)
        none = Utilisation(np.zeros(k), np.zeros(k), np.zeros(2), np.zeros(1), interval, turn)
        if before is not None:
            remain = min(k, len(before.utilisation))
            none.utilisation[:remain] = before.utilisation[:remain]
            none.records[:remain] = before.records[:remain]
            none.cost[:], none.benchmark[:], none.interval[0] = before.cost, before.benchmark, before.interval[0]
        return Online(none, least_utilised, done)


class Utilisation(NamedTuple):
    """The input of algorithm 1, and the measurements for the next interval."""

    utilisation: _Floats  # [k] U
    records: _Floats  # [k] μ: the records processed in this interval
    cost: _Floats  # [2] the seconds and the number of the records whose mean is et
    benchmark: _Floats  # [1] et of the first interval with a measurement; 0 before that
    interval: _Floats  # [2] the start of the interval, and td
    turn: npt.NDArray[np.int64]  # [1]


@kernel
def least_utilised(state: Utilisation, key: int, now: float, free: _Floats, queue: npt.NDArray[np.int64]) -> int:
    """Algorithm 1. It begins a new interval first, if the present interval is over."""
    U, k, td = state.utilisation, len(state.utilisation), state.interval[1]  # noqa: N806 - the paper's name
    measured = state.cost[0] / state.cost[1] if state.cost[1] > 0 else 0.0
    et = max(measured, state.benchmark[0])
    if now >= state.interval[0] + td:
        for i in range(k):
            U[i] = state.records[i] * et / td
            state.records[i] = 0.0
        state.cost[0], state.cost[1] = measured, min(state.cost[1], 1.0)  # et stays until the next measurement
        if state.benchmark[0] == 0.0:
            state.benchmark[0] = measured
        state.interval[0] += np.floor((now - state.interval[0]) / td) * td
    m = state.turn[0] % k
    for step in range(1, k):
        j = (state.turn[0] + step) % k
        if U[j] < U[m]:
            m = j
    if U[m] >= FULL:
        m = state.turn[0] % k
    else:
        U[m] += et / td
    state.turn[0] = m + 1
    return int(m)


@kernel
def done(state: Utilisation, target: int, key: int, cost: float, now: float) -> None:
    if 0 <= target < len(state.records) and 0.0 <= cost < np.inf:
        state.records[target] += 1.0
        state.cost[0] += cost
        state.cost[1] += 1.0
