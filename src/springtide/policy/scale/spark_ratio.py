"""Spark Streaming's own rule: add executors if batches take nearly as long as the time between them, else remove one.

Source: Spark's ``ExecutorAllocationManager`` of DStreams; the parameters are ``spark.streaming.dynamicAllocation.*``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide.errors import OptionError
from springtide.model.plan import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes
from springtide.policy.scale.queueing import shared_out

_MOST_AT_ONCE = 1_000
"""Limits the executors added at once without a limit of slots: a batch that took a thousand times too long has stalled."""


@dataclass(frozen=True)
class SparkRatio(ScalePlugin):
    """Every ``scaling_interval``, r = mean batch time / trigger: r ≥ 0.9 adds max(round(r), 1) executors, r ≤ 0.3 removes one.

    Executors run any operator; here they are slots, the sum of the degrees, and the rule does not choose operators. Each new
    replica goes to the operator with the busiest replicas, and a replica is removed where the remaining ones will be least
    busy.

    Without batches, as in continuous mode, or without a trigger, the ratio is the highest utilisation of an operator: it also
    reaches 1 when work takes all the available time. Unlike batch times it cannot exceed 1, so executors are then added one at
    a time.
    """

    name = "spark-ratio"
    source = "Spark Streaming, ExecutorAllocationManager"
    summary = "more or fewer by the ratio of batch time to trigger, one total for all operators"

    scaling_interval: float = parameter(60.0, "s", 0, help="time between decisions, which use the mean since the last one")
    scaling_up_ratio: float = parameter(0.9, "", 0, help="executors are added from this ratio on")
    scaling_down_ratio: float = parameter(0.3, "", 0, help="an executor is removed up to this ratio")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scaling_down_ratio >= self.scaling_up_ratio:
            up, down = self.scaling_up_ratio, self.scaling_down_ratio
            raise OptionError(f"'spark-ratio': scaling_down_ratio={down} is not below scaling_up_ratio={up}")

    def initial(self) -> State:
        return {"elapsed_s": 0.0, "sum": 0.0, "count": 0}

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        if not snapshot.interval_s > 0:
            return state, ()
        found = _ratios(snapshot)
        elapsed, count = state["elapsed_s"] + snapshot.interval_s, state["count"] + len(found)
        total = state["sum"] + sum(found)
        if elapsed < self.scaling_interval - 1e-6:
            return {"elapsed_s": elapsed, "sum": total, "count": count}, ()
        if not count:
            return self.initial(), ()
        return self.initial(), self._changed(snapshot, total / count, f"over {elapsed:g} s")

    def _changed(self, snapshot: Snapshot, ratio: float, when: str) -> tuple[Request, ...]:
        known = [operator for operator in snapshot.operators if operator.utilisation is not None]
        loads = [operator.degree * (operator.utilisation or 0.0) for operator in known]
        if ratio >= self.scaling_up_ratio:
            more = min(max(math.floor(ratio + 0.5), 1), _room(snapshot))
            degrees = shared_out(loads, [max(1, o.degree) for o in known], [o.limit or 10**9 for o in known], more)
            reason = f"ratio {ratio:.3g} {when}, from {self.scaling_up_ratio:g} on: {more} more"
        elif ratio <= self.scaling_down_ratio:
            degrees = _one_less(known, loads)
            reason = f"ratio {ratio:.3g} {when}, up to {self.scaling_down_ratio:g}: 1 less"
        else:
            return ()
        wanted = {o.name: (n, f"{reason}; utilisation {o.utilisation:.3g}") for o, n in zip(known, degrees, strict=True)}
        return changes(snapshot, {name: want for name, want in wanted.items() if want[0] != snapshot[name].degree})


def _ratios(snapshot: Snapshot) -> list[float]:
    """The ratio of each batch's time to the trigger; without a trigger, the highest utilisation if all are known."""
    if snapshot.trigger_s:
        took = [seconds for _, seconds in snapshot.batches if math.isfinite(seconds) and seconds >= 0]
        return [min(seconds / snapshot.trigger_s, _MOST_AT_ONCE) for seconds in took]
    measured = [operator.utilisation for operator in snapshot.operators if operator.utilisation is not None]
    return [min(max(measured), _MOST_AT_ONCE)] if measured and len(measured) == len(snapshot.operators) else []


def _room(snapshot: Snapshot) -> int:
    """The number of executors that may be added."""
    if snapshot.slots is None:
        return _MOST_AT_ONCE
    return max(0, snapshot.slots - sum(operator.degree for operator in snapshot.operators))


def _one_less(operators: Sequence[OperatorSnapshot], loads: Sequence[float]) -> list[int]:
    """Remove a replica of the operator whose other replicas will be least busy; the last replica stays."""
    spare = [(load / (o.degree - 1), j) for j, (o, load) in enumerate(zip(operators, loads, strict=True)) if o.degree > 1]
    taken = min(spare, default=(0.0, None))[1]
    return [operator.degree - (j == taken) for j, operator in enumerate(operators)]
