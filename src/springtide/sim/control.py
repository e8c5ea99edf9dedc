"""The ports of the control loop on a simulated cluster. Policies and loop are those of Spark runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from springtide.control.monitor import producers
from springtide.model.plan import Plan, Request
from springtide.model.report import BatchReport
from springtide.model.snapshot import OperatorSnapshot, Snapshot, SourceSnapshot
from springtide.model.topology import Operator
from springtide.policy.scale import ScalePolicy, State
from springtide.sim.book import Counts
from springtide.sim.cluster import Places
from springtide.sim.engine import Engine
from springtide.sim.kernels import Floats
from springtide.sim.measure import Ledger
from springtide.sim.rules import Reconfiguration


@dataclass
class SimulatedCluster:
    """Reports measurements, and applies plans."""

    engine: Engine
    reconfiguration: Reconfiguration
    ledger: Ledger
    starting_s: float = 0.0  # start-up time of a new replica, which costs from the request on
    snapshots: list[Snapshot] = field(default_factory=list)
    decisions: list[Mapping[str, object]] = field(default_factory=list)
    _starting: dict[float, dict[str, int]] = field(default_factory=dict)  # by start time: the degrees from then on
    _places: Places | None = None  # if the cluster has nodes
    _busy_s: Mapping[str, Floats] = field(default_factory=dict)  # by station: of each replica, in the last interval

    def __post_init__(self) -> None:
        if self.engine.model.cluster is not None:
            self._places = Places(self.engine.model.cluster, self.engine.stations)

    def clock(self) -> float:
        return self.engine.now

    def add(self, report: BatchReport) -> None:
        """Ignored: continuous mode has no batches."""

    def batch(self, report: BatchReport) -> None:
        """Ignored: continuous mode has no batches."""

    def decision(self, entry: Mapping[str, object]) -> None:
        self.decisions.append(entry)

    def snapshot(self, at: float, interval_s: float, plan: Plan) -> Snapshot:
        """The measurements since the previous snapshot."""
        engine = self.engine
        counts = {name: station.take_counts() for name, station in engine.stations.items()}
        self._busy_s = {name: station.take_busy() for name, station in engine.stations.items()}
        received, expected = engine.take_received()
        sent, arrived = engine.take_sent(), engine.take_arrived(engine.now - interval_s, engine.now)
        left = sum(counts[operator.name].served for operator in engine.model.exits)
        self.ledger.interval(expected, left)
        made = Snapshot(
            at, interval_s, plan,
            operators=tuple(self._operator(o, plan, counts, sent, interval_s) for o in engine.model.topology.scalable),
            batches=(), rate=received / interval_s if interval_s > 0 else None,
            backlog=sum(station.waiting for station in engine.stations.values()) + engine.held_back,
            latency=self.ledger.close_book(engine),
            sources=tuple(
                SourceSnapshot(name, read, arrived[name], came / interval_s if interval_s > 0 else None, waiting)
                for name, (came, read, waiting) in engine.take_flow().items()
            ),
            nodes=self._places.nodes(self._busy_s, interval_s) if self._places else (),
        )  # fmt: skip
        self.snapshots.append(made)
        return made

    def _operator(
        self, member: Operator, plan: Plan, counts: Mapping[str, Counts], sent: Mapping[tuple[str, str], int], interval_s: float
    ) -> OperatorSnapshot:
        """The measurements of an operator: its share of each station that it is folded into, usually a station of its own."""
        name, degree = member.name, plan.degrees.get(member.name, 1)
        rows_in = rows_out = busy = backlog = 0.0
        responses = []
        for operator in self.engine.model.operators:
            for part, share, rows in operator.folded:
                if part == name:
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
            served=round(rows_out), limit=member.parallelism,
            inputs=_inputs(producers(self.engine.model.topology, member), name, sent, rows_in),
            replicas=self._places.replicas(name, self._busy_s, interval_s) if self._places else (),
        )  # fmt: skip

    def apply(self, plan: Plan) -> None:
        """Change the replicas and their nodes. After the start of the run this may pause operators or drop their queues."""
        engine, wanted = self.engine, replicas_of(self.engine, plan.degrees)
        moved = self._places.carry_out(plan, wanted) if self._places else set()
        changed = [name for name, degree in wanted.items() if engine.stations[name].active != degree or name in moved]
        self._resize(wanted)
        self.ledger.set_replicas(engine.now, sum(wanted.values()))
        if not changed or engine.now == 0.0:
            self.ledger.most = sum(wanted.values()) if engine.now == 0.0 else self.ledger.most
            return
        self.ledger.reconfigurations += 1
        if self.reconfiguration.kind != "none":
            names = list(engine.stations) if self.reconfiguration.whole else changed
            engine.interrupt(names, self.reconfiguration.seconds, drop=self.reconfiguration.kind == "restart")
            self.ledger.pause(engine.now, self.reconfiguration.seconds)

    def _resize(self, wanted: Mapping[str, int]) -> None:
        """Remove replicas at once, and add replicas after their start-up time, except at the start of the run."""
        later = {n: degree for n, degree in wanted.items() if degree > self.engine.stations[n].active}
        if not later or not self.starting_s or self.engine.now == 0.0:
            later = {}
        self.engine.resize({n: degree for n, degree in wanted.items() if n not in later})
        for starting in self._starting.values():  # cancels earlier requests that are no longer wanted
            for name in starting:
                starting[name] = min(starting[name], wanted.get(name, starting[name]))
        if later:
            self._starting[self.engine.now + self.starting_s] = later
        if self._places:
            self._places.place_started()

    def next_start(self) -> float:
        """The time at which the next replicas have started."""
        return min(self._starting, default=math.inf)

    def start_due(self) -> None:
        """Activate the replicas that have started by now."""
        for due in [due for due in self._starting if due <= self.engine.now]:
            starting = self._starting.pop(due)
            self.engine.resize({n: degree for n, degree in starting.items() if degree > self.engine.stations[n].active})
        if self._places:
            self._places.place_started()


def _inputs(
    producers: Sequence[str], name: str, sent: Mapping[tuple[str, str], int], rows_in: float
) -> tuple[tuple[str, int], ...]:
    """The input from each producer: the measured numbers, or equal shares where the producers are folded into others."""
    counted = [sent.get((producer, name), 0) for producer in producers]
    shares = [count / sum(counted) if sum(counted) else 1 / len(counted) for count in counted]
    return tuple((producer, round(rows_in * share)) for producer, share in zip(producers, shares, strict=True))


def replicas_of(engine: Engine, degrees: Mapping[str, int]) -> dict[str, int]:
    """The replicas of each station: the sum of the degrees of all operators folded into it."""
    homes: dict[str, list[str]] = {}
    for operator in engine.model.operators:
        for member, _, _ in operator.folded:
            homes.setdefault(member, []).append(operator.name)
    found = dict.fromkeys(engine.stations, 0)
    for member, names in homes.items():
        for place, name in enumerate(names):  # an operator in the tasks of several chains is shared out to them
            whole, rest = divmod(degrees.get(member, 0), len(names))
            found[name] += whole + (place < rest)
    limits = {operator.name: operator.parallelism or max(1, found[operator.name]) for operator in engine.model.operators}
    return {name: max(1, min(degree, limits[name])) for name, degree in found.items()}


@dataclass(frozen=True)
class Starting:
    """A policy whose first snapshot has the model's initial replicas instead of one of each operator."""

    policy: ScalePolicy
    degrees: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.policy.name

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
