"""Simulation in micro-batches: the engine, the control loop of Spark runs, and the metrics."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from springtide.control.decider import Decider, InThread
from springtide.control.executors import Executors
from springtide.control.fleet import Limits
from springtide.control.intake import Intake
from springtide.control.loop import ControlLoop
from springtide.control.memory import MemoryCluster
from springtide.control.monitor import Monitor
from springtide.control.plans import Plans, World
from springtide.control.routing import Routing
from springtide.model.plan import Request
from springtide.model.report import BatchReport, latency_of, mean_max, over_time, violation_ratio
from springtide.model.snapshot import Snapshot
from springtide.policy.batch.read_limit import ReadLimit
from springtide.policy.chosen import Chosen
from springtide.policy.scale import State
from springtide.sim.constants import to_json
from springtide.sim.control import Starting
from springtide.sim.microbatch import MicroBatches
from springtide.sim.setup import Outcome, Setup

LEARNED_BY = ("key",)
"""The column that drives the cost: a simulated record is its key."""


@dataclass
class MemoryJournal:
    """Collects what the folder of a run would contain."""

    reports: list[BatchReport] = field(default_factory=list)
    decisions: list[Mapping[str, object]] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)

    def batch(self, report: BatchReport) -> None:
        self.reports.append(replace(report, costs={}, variances={}))  # these arrays grow with the run

    def decision(self, entry: Mapping[str, object]) -> None:
        self.decisions.append(entry)


@dataclass(frozen=True)
class Unchanged:
    """No policy: the degrees of the model never change."""

    name: ClassVar[str] = "none"

    def initial(self) -> State:
        return {}

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        return state, ()


def run(setup: Setup) -> Outcome:
    """Simulate, with a decision every interval; plans change between batches."""
    model, goals, begin_s = setup.model, setup.goals, setup.span.begin_s
    clock, journal, slots = _Clock(begin_s), MemoryJournal(), goals.bounds.max_slots
    engine = MicroBatches(model, setup.groupings, setup.constants, slots, setup.seed, setup.span.records, begin_s)
    keys = {operator.name: LEARNED_BY for operator in model.operators}
    routing = Routing(model.topology, setup.groupings, None, clock, wait=True, keys=keys)
    read_limit = None if goals.target_s is None else ReadLimit(goals.target_s)
    scaler = setup.scaler or Chosen(Unchanged())
    host = InThread(Starting(scaler.policy, setup.degrees))
    decider = Decider(host, record=journal.decision, clock=clock, seed=setup.seed, state=scaler.state)
    executors = Executors(clock, journal.decision, setup.grant)
    world = World(Monitor(model.topology), journal, executors)
    intake = Intake(read_limit, None, goals.trigger_s, clock)
    plans = Plans(model.topology, goals, decider, world, intake=intake, routing=routing)
    loop = ControlLoop(plans, decider, clock, goals.interval_s)
    if goals.starting_s:  # executors take this long to start; at first all slots are available, as on a Spark cluster
        cluster = MemoryCluster(clock, goals.starting_s)
        for _ in range(slots):
            cluster.add()
        executors.employ(cluster, Limits(1, slots), elastic=True)
    cycles = itertools.count(1)
    due = begin_s + goals.interval_s

    def tick(now: float, inclusive: bool) -> None:
        """Run the decisions that are due: the control loop does not wait for batches."""
        nonlocal due
        while due < now or (inclusive and due == now):
            clock.now, due = due, begin_s + (next(cycles) + 1) * goals.interval_s
            loop.cycle()
            if loop.snapshot is not None:
                journal.snapshots.append(loop.snapshot)
        if setup.progress is not None:
            setup.progress(now, setup.span.end)

    engine.run(plans, setup.span.end, tick)
    measured = {
        **metrics(journal.reports, begin_s, goals.target_s),
        "executor_seconds": None if executors.fleet is None else executors.fleet.executor_seconds,
        "policy_failures": decider.failures,
        "policy_failure": decider.first_failure,
        "constants": to_json(setup.constants),
        "operators": [_operator(operator.name, journal.reports) for operator in model.topology.scalable],
    }
    reports = tuple(journal.reports)
    return Outcome(measured, tuple(journal.snapshots), tuple(journal.decisions), reports=reports, learned=decider.state)


@dataclass
class _Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def metrics(reports: Sequence[BatchReport], begin_s: float, target_s: float | None) -> dict[str, Any]:
    """The metrics of ``springtide simulate --mode micro-batch`` that differ between the modes."""
    rows_in, rows_out = (sum(getattr(report, name) for report in reports) for name in ("rows_in", "rows_out"))
    passed, worked = (reports[-1].committed - since for since in (begin_s, reports[0].started)) if reports else (0.0, 0.0)
    latency = latency_of([(report.committed - at, n) for report in reports for at, n in report.created])
    durations = [report.duration_s for report in reports]
    replicas = over_time(reports, lambda report: sum(report.plan.degrees.values()))
    waiting = reports[-1].backlog or 0 if reports else 0
    return {
        "latency_ms": None if latency is None else asdict(latency),
        "violation_ratio": None if target_s is None else violation_ratio(reports, target_s),
        "violation_ratio_records": None if target_s is None else _records_above(reports, target_s),
        "throughput_rows_s": rows_in / worked if worked > 0 else None,
        "processed_ratio": rows_in / (rows_in + waiting) if rows_in + waiting else None,
        "replicas": mean_max(replicas),
        "replica_seconds": sum(n * t for n, t in replicas),
        "slot_seconds": sum(n * t for n, t in over_time(reports, lambda report: report.plan.slots)),
        "reconfigurations": sum(a.plan.degrees != b.plan.degrees for a, b in itertools.pairwise(reports)),
        "downtime_ratio": 0.0,
        "rows_in": rows_in,
        "rows_out": rows_out,
        "rows_lost": 0,
        "rows_timed_out": 0,
        "rows_there": waiting,
        "duration_s": passed,
        "batches": len(reports),
        "batch_ms": 1000 * statistics.fmean(durations) if durations else None,
    }


def _operator(name: str, reports: Sequence[BatchReport]) -> dict[str, Any]:
    tasks = [task for report in reports for task in report.tasks if task.operator == name]
    return {
        "name": name, "rows_in": sum(task.rows_in or 0 for task in tasks), "rows_out": sum(task.rows_out for task in tasks),
        "rows_lost": 0, "rows_timed_out": 0, "busy_s": math.fsum(task.busy_s or 0.0 for task in tasks), "response_ms": None,
    }  # fmt: skip


def _records_above(reports: Sequence[BatchReport], target_s: float) -> float | None:
    """The share of records with a latency above the target."""
    waits = [(report.committed - at, n) for report in reports for at, n in report.created]
    total = math.fsum(n for _, n in waits)
    return math.fsum(n for wait, n in waits if wait > target_s) / total if total else None
