"""Simulation in continuous mode: the engine, the control loop, and the metrics."""

from __future__ import annotations

import math
from collections.abc import Callable

from springtide.control.decider import Decider, InThread
from springtide.control.executors import Executors
from springtide.control.loop import ControlLoop
from springtide.control.plans import Plans, World
from springtide.policy.chosen import Chosen
from springtide.sim.control import SimulatedCluster, Starting
from springtide.sim.engine import Engine
from springtide.sim.measure import Ledger, metrics
from springtide.sim.model import Model
from springtide.sim.setup import Outcome, Progress, Setup


def run(setup: Setup) -> Outcome:
    """Simulate record by record, with a decision every interval."""
    model, span = setup.model, setup.span
    horizon_s = span.end if math.isfinite(span.end) else _expected(model, span.records)
    engine = Engine(
        model, setup.groupings, setup.seed, records=span.records, horizon_s=horizon_s, warmup_s=span.warmup_s,
        by_record=setup.by_record,
    )  # fmt: skip
    ledger = Ledger(begin=span.warmup_s)
    cluster = SimulatedCluster(engine, setup.reconfiguration, ledger, setup.goals.starting_s or 0.0)
    decider = None
    if setup.scaler is None:
        ledger.set_replicas(0.0, sum(station.active for station in engine.stations.values()))
        _run(engine, cluster, span.end, lambda: None, math.inf, setup.progress)
    else:
        loop, decider = _controlled(setup, setup.scaler, cluster)
        _run(engine, cluster, span.end, loop.cycle, setup.goals.interval_s, setup.progress)
    for station in engine.stations.values():
        station.take_counts()
    measured = metrics(engine, ledger, engine.now, setup.goals.target_s)
    if decider is not None:
        measured |= {"policy_failures": decider.failures, "policy_failure": decider.first_failure}
    return Outcome(
        measured, tuple(cluster.snapshots), tuple(cluster.decisions), engine.book.by_root if setup.by_record else None,
        learned=None if decider is None else decider.state,
    )  # fmt: skip


def _controlled(setup: Setup, scaler: Chosen, cluster: SimulatedCluster) -> tuple[ControlLoop, Decider]:
    """The control loop of a run on the simulated cluster."""
    clock, host = cluster.clock, InThread(Starting(scaler.policy, setup.degrees))
    decider = Decider(host, record=cluster.decision, clock=clock, seed=setup.seed, state=scaler.state)
    world = World(cluster, cluster, Executors(clock, cluster.decision), (cluster,))
    plans = Plans(setup.model.topology, setup.goals, decider, world)
    return ControlLoop(plans, decider, clock, setup.goals.interval_s), decider


def _run(
    engine: Engine, cluster: SimulatedCluster, end: float, cycle: Callable[[], None], interval_s: float,
    progress: Progress | None,
) -> None:  # fmt: skip
    """Simulate interval by interval, until the end or until all records have left."""
    count = 0
    while engine.now < end:
        count += 1
        until = min(end, count * interval_s)
        if math.isinf(until):
            engine.drain()
            return
        while (due := cluster.next_start()) <= until:
            engine.advance(due)
            cluster.start_due()
        engine.advance(until)
        if engine.now < end:
            cycle()
        if progress is not None:
            progress(engine.now, end)
        if math.isinf(end) and engine.exhausted and not engine.in_flight:
            return


def _expected(model: Model, records: int | None) -> float:
    """The approximate time until this many records have arrived."""
    return max((records or 0) / (max(source.steps.values) or 1.0) for source in model.sources)
