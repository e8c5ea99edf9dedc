"""PSPS: the replicas that each operator needs for its input in the next interval, computed for the whole graph.

Source: Wladdimiro, Arantes, Sens, Hidalgo: "A predictive approach for dynamic replication of operators in distributed stream
processing systems", SBAC-PAD 2022, section IV, equations 1 to 4.

An operator behind a bottleneck sees little input until the bottleneck is removed; then it is the next bottleneck. So its input
is predicted from the sources' output and the selectivities in the graph, and not from its own input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from springtide.model.plan import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes
from springtide.policy.scale.measured import Shares, arrival_rates, carried, known_costs, own_queue, queues, rounded_up, shares


@dataclass(frozen=True)
class Psps(ScalePlugin):
    """r_i = λ̂_i·et_i/td replicas process in one interval td all expected records, λ_G·θ_i, and all waiting ones, |q_i|.

    et_i is the larger of a benchmark, i.e. the first measured cost, and the present cost. Records that are in transit at the
    end of the interval are not counted, so td has to exceed a record's way through the graph. Records that a source holds back
    wait for its readers.

    The paper's future work names two additions. ``forecast`` extrapolates λ_G from the last two intervals. ``upstream_queues``
    also counts the queues of direct predecessors, times θ_i^p. It has no effect in micro-batches, in which nothing waits
    between operators and every backlog is a share of the source's.

    An operator with an unknown cost, queue or input retains its degree.

    >>> rounded_up(91 * 0.025 / 1.0)  # table II, second operator: 91 records of 25 ms in one second
    3
    """

    name = "psps"
    source = "PSPS (SBAC-PAD 2022), equations 1-4"
    summary = "replicas for what the graph will bring in the next interval, and for what waits"

    pool: int = parameter(0, "replicas", 0, help="maximum replicas of an operator; 0: the run's limit")
    forecast: bool = parameter(False, help="extrapolate the sources' input linearly from the last two intervals")
    upstream_queues: bool = parameter(False, help="also count the queues of an operator's producers")

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        td = snapshot.interval_s
        if not td > 0:
            return state, ()
        theta = shares(state.get("shares", {}), snapshot)
        costs = known_costs(state.get("cost_s", {}), snapshot)
        benchmark = {**costs, **state.get("benchmark", {})}
        rates = arrival_rates(snapshot)
        after = {"shares": theta, "cost_s": costs, "benchmark": benchmark, "rates": rates}
        expected = {name: rate * td for name, rate in self._expected(state.get("rates", {}), rates).items()}
        received, queued = carried(snapshot, theta, expected), queues(snapshot)
        wanted = {}
        for operator in snapshot.operators:
            waiting = self._waiting(operator, theta, queued, snapshot)
            if operator.name in received and operator.name in costs and waiting is not None:
                cost = max(benchmark[operator.name], costs[operator.name])
                need = (received[operator.name] + waiting) * cost / td
                reason = f"{received[operator.name]:,.0f} to come and {waiting:,.0f} waiting, {1000 * cost:.4g} ms each"
                wanted[operator.name] = self._active(need), f"{reason} in {td:g} s: {need:.2f}"
        return after, changes(snapshot, wanted)

    def _expected(self, before: Mapping[str, float], now: Mapping[str, float]) -> Mapping[str, float]:
        """λ_G of the next interval per second: as now, or extrapolated from the last two."""
        if not self.forecast:
            return now
        return {name: max(0.0, 2 * rate - before.get(name, rate)) for name, rate in now.items()}

    def _waiting(
        self, operator: OperatorSnapshot, theta: Shares, queued: Mapping[str, float], snapshot: Snapshot
    ) -> float | None:
        """λ̂_i^q of equation 3, optionally with the queues of the predecessors; None if any is unknown."""
        waiting = own_queue(operator, theta, queued, snapshot)
        if waiting is None or not self.upstream_queues or snapshot.batches:
            return waiting
        edges = theta.get(operator.name, {})
        upstream = [producer for producer, _ in operator.inputs if producer in snapshot.by_name]
        if not all(producer in queued and producer in edges for producer in upstream):
            return None
        return waiting + sum(edges[producer] * queued[producer] for producer in upstream)

    def _active(self, need: float) -> int:
        """The number of active replicas of the pool."""
        return min(rounded_up(need), self.pool or 10**9)
