"""DS2: as many replicas as the sources' rate needs if every replica works all the time.

Source: Kalavri et al.: "Three steps is all you need: fast, accurate, automatic scaling decisions for distributed streaming
dataflows", OSDI 2018; names and defaults of ``activation``, ``warm_up`` and ``margin`` as in its configuration file
(activation_time 1, warm_up_time 2, scaling_factor 0).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes
from springtide.policy.scale.measured import arrival_rates, carried, known_costs, rounded_up, shares, shown


@dataclass(frozen=True)
class Ds2(ScalePlugin):
    """p = ⌈input at the sources' full rate · (1 + margin) / true rate of a replica⌉, in the order of the graph.

    The true rate is that of a replica that never waits: records per second of work instead of time. So a single decision sizes
    all operators, including those behind a bottleneck. Queues are ignored: DS2 keeps up, but does not catch up.

    The first ``warm_up`` intervals after the start and after every change of a degree are ignored. A decision takes effect, for
    all operators together, after it has occurred ``activation`` times in a row. An operator with an unknown true rate or input
    retains its degree.

    >>> rounded_up(1_000 * (1 + 0.2) / 400)  # 1,000 records/s, 400/s per replica, a fifth to spare
    3
    """

    name = "ds2"
    source = "DS2 (OSDI 2018)"
    summary = "input at the sources' full rate over the true rate of a replica, in the order of the graph"

    margin: float = parameter(0.0, "", 0, help="spare capacity: 0.2 is a fifth")
    activation: int = parameter(1, "decisions", 1, help="equal decisions in a row before one is carried out")
    warm_up: int = parameter(2, "intervals", 0, help="intervals that are ignored after every change")

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        if not snapshot.interval_s > 0:
            return state, ()
        degrees = {operator.name: operator.degree for operator in snapshot.operators}
        ignore = state.get("ignore", 0) if state.get("degrees") == degrees else self.warm_up
        after = {**state, "degrees": degrees, "ignore": max(0, ignore - 1)}
        if ignore > 0:
            return {**after, "decision": {}, "equal": 0}, ()
        after["shares"] = shares(state.get("shares", {}), snapshot)
        after["cost_s"] = costs = known_costs(state.get("cost_s", {}), snapshot)
        rates = carried(snapshot, after["shares"], arrival_rates(snapshot))
        decision = {n: max(1, rounded_up(rate * (1 + self.margin) * costs[n])) for n, rate in rates.items() if n in costs}
        equal = state.get("equal", 0) + 1 if state.get("decision") == decision else 1
        after |= {"decision": decision, "equal": equal}
        if equal < self.activation:
            return after, ()
        more = f" and {self.margin:.0%} more" if self.margin else ""
        wanted = {
            name: (degree, f"input {shown(rates[name])}/s{more}, {shown(1 / costs[name])}/s per replica: {degree}")
            for name, degree in decision.items()
        }
        return after, changes(snapshot, wanted)
