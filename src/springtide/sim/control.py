"""The control loop's ports, on a simulated cluster: its clock, its monitor, its hands. Policies and loop are those of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from springtide.model.plan import Plan, Request
from springtide.model.report import BatchReport
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.scale import ScalePolicy, State
from springtide.sim.engine import Engine
from springtide.sim.measure import Ledger
from springtide.sim.rules import Reconfiguration
from springtide.sim.station import Counts


@dataclass
class SimulatedCluster:
    """Tells what was measured since the last time, and carries plans out."""

    engine: Engine
    reconfiguration: Reconfiguration
    ledger: Ledger
    snapshots: list[Snapshot] = field(default_factory=list)
    decisions: list[Mapping[str, object]] = field(default_factory=list)

    def clock(self) -> float:
        return self.engine.now

    def add(self, report: BatchReport) -> None:
        """A record at a time needs no reports of batches."""

    def batch(self, report: BatchReport) -> None:
        """As above."""

    def decision(self, entry: Mapping[str, object]) -> None:
        self.decisions.append(entry)

    def snapshot(self, at: float, interval_s: float, plan: Plan) -> Snapshot:
        """What happened since the last one."""
        engine = self.engine
        counts = {name: station.take_counts() for name, station in engine.stations.items()}
        received, expected = engine.take_received()
        left = sum(counts[operator.name].served for operator in engine.model.exits)
        self.ledger.interval(expected, left)
        made = Snapshot(
            at, interval_s, plan,
            operators=tuple(self._operator(o.name, plan, counts, interval_s) for o in engine.model.topology.scalable),
            batches=(), rate=received / interval_s if interval_s > 0 else None,
            backlog=sum(station.waiting for station in engine.stations.values()) + engine.held,
            latency=self.ledger.close_book(engine),
        )  # fmt: skip
        self.snapshots.append(made)
        return made

    def _operator(self, name: str, plan: Plan, counts: Mapping[str, Counts], interval_s: float) -> OperatorSnapshot:
        """An operator's part in what the stations did that it is folded into; mostly it is one station by itself."""
        degree = plan.degrees.get(name, 1)
        rows_in = rows_out = busy = backlog = 0.0
        responses = []
        for operator in self.engine.model.operators:
            for member, share, rows in operator.folded:
                if member == name:
                    own = counts[operator.name]
                    rows_in, rows_out = rows_in + own.rows_in * rows, rows_out + own.served * rows
                    busy += own.busy_s * share
                    backlog += self.engine.stations[operator.name].waiting * rows
                    responses += [own.response_s / own.served] if own.served else []
        return OperatorSnapshot(
            name=name, degree=degree, width=degree, rows_in=round(rows_in), rows_out=round(rows_out), failures=0, busy_s=busy,
            rate=rows_in / interval_s if interval_s > 0 else None,
            utilisation=busy / (degree * interval_s) if interval_s > 0 else None,
            backlog=round(backlog), latency_ms=1000 * sum(responses) / len(responses) if responses else None,
        )  # fmt: skip

    def apply(self, plan: Plan) -> None:
        """Change the numbers of replicas; after the start that may cost time, or the queues."""
        engine, wanted = self.engine, replicas_of(self.engine, plan.degrees)
        changed = [name for name, degree in wanted.items() if engine.stations[name].active != degree]
        engine.resize(wanted)
        self.ledger.set_replicas(engine.now, sum(wanted.values()))
        if not changed or engine.now == 0.0:
            self.ledger.most = sum(wanted.values()) if engine.now == 0.0 else self.ledger.most
            return
        self.ledger.reconfigurations += 1
        if self.reconfiguration.kind != "none":
            names = list(engine.stations) if self.reconfiguration.whole else changed
            engine.interrupt(names, self.reconfiguration.seconds, drop=self.reconfiguration.kind == "restart")
            self.ledger.pause(engine.now, self.reconfiguration.seconds)


def replicas_of(engine: Engine, degrees: Mapping[str, int]) -> dict[str, int]:
    """The replicas of each station: the degrees of all that is folded into it, as chained operators share their tasks."""
    homes: dict[str, list[str]] = {}
    for operator in engine.model.operators:
        for member, _, _ in operator.folded:
            homes.setdefault(member, []).append(operator.name)
    found = dict.fromkeys(engine.stations, 0)
    for member, names in homes.items():
        for place, name in enumerate(names):  # one that runs in the tasks of several is dealt out to them
            whole, rest = divmod(degrees.get(member, 0), len(names))
            found[name] += whole + (place < rest)
    limits = {operator.name: operator.parallelism or max(1, found[operator.name]) for operator in engine.model.operators}
    return {name: max(1, min(degree, limits[name])) for name, degree in found.items()}


@dataclass(frozen=True)
class Starting:
    """A policy that finds the model's replicas in force when it is first asked, instead of one of each."""

    name: ClassVar[str] = "starting"

    policy: ScalePolicy
    degrees: Mapping[str, int]

    def initial(self) -> State:
        return self.policy.initial()

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        if snapshot.interval_s > 0:
            return self.policy.decide(state, snapshot, rng)
        found = tuple(replace(operator, degree=self.degrees[operator.name]) for operator in snapshot.operators)
        plan = replace(snapshot.plan, degrees=self.degrees)
        state, requests = self.policy.decide(state, replace(snapshot, operators=found, plan=plan), rng)
        asked = {request.operator for request in requests}
        first = (Request(name, n, "the model begins with it") for name, n in self.degrees.items() if name not in asked)
        return state, (*requests, *first)
