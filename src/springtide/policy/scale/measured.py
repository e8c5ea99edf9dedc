"""What policies read out of snapshots: the cost of a record, and how records flow through the graph.

An interval in which nothing came to an operator tells nothing about it; then what was known before holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from springtide.model.snapshot import Snapshot


@dataclass(frozen=True)
class Picture:
    """What is known of the operators, of this interval or from before.

    ``cost_s``: seconds of work for a record. ``flow``: for each operator and whom it reads, how many records reach it for each
    one that comes to that producer; PSPS calls it θ, and DABS-Storm the selectivity.
    """

    cost_s: Mapping[str, float] = field(default_factory=dict)
    flow: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, state: Mapping[str, Any], snapshot: Snapshot) -> Picture:
        """The picture in a policy's state, brought up to date."""
        before = cls(**state["picture"]) if "picture" in state else cls()
        rows = {source.name: source.rows or 0 for source in snapshot.sources}
        rows |= {operator.name: operator.rows_in or 0 for operator in snapshot.operators}
        cost, flow = dict(before.cost_s), {name: dict(edges) for name, edges in before.flow.items()}
        for operator in snapshot.operators:
            if operator.cost_s is not None:
                cost[operator.name] = operator.cost_s
            edges = flow.setdefault(operator.name, {})
            for producer, came in operator.inputs:
                if rows.get(producer):
                    edges[producer] = came / rows[producer]
        return cls(cost, flow)

    def state(self) -> dict[str, Any]:
        """As a policy keeps it."""
        return {"picture": asdict(self)}

    def carried(self, snapshot: Snapshot, sources: Mapping[str, float]) -> dict[str, float]:
        """The input of every operator when the sources bring so much.

        Equation of PSPS: θ_i = Σ_p θ_i^p·θ_p, in the order of the graph.
        """
        amounts = dict(sources)
        for operator in snapshot.operators:
            edges = self.flow.get(operator.name, {})
            amounts[operator.name] = sum(amounts.get(producer, 0.0) * share for producer, share in edges.items())
        return {operator.name: amounts[operator.name] for operator in snapshot.operators}
