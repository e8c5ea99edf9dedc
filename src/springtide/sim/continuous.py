"""A simulation in continuous mode: the engine, the control loop, and what is measured."""

from __future__ import annotations

import math
from collections.abc import Callable

from springtide.control.decider import Decider, InThread
from springtide.control.executors import Executors
from springtide.control.loop import ControlLoop
from springtide.control.planner import SlotLimit
from springtide.control.plans import Goals, Plans, World
from springtide.sim.control import SimulatedCluster, Starting
from springtide.sim.engine import Engine
from springtide.sim.measure import Ledger, metrics
from springtide.sim.model import Model
from springtide.sim.setup import Outcome, Progress, Setup


def run(setup: Setup) -> Outcome:
    """Simulate, record by record, with a decision every interval."""
    model, end = setup.model, setup.end
    engine = Engine(
        model, setup.groupings, setup.seed, records=setup.records,
        horizon_s=end if math.isfinite(end) else _expected(model, setup.records), warmup_s=setup.warmup_s,
        by_record=setup.by_record,
    )  # fmt: skip
    ledger = Ledger(begin=setup.warmup_s)
    cluster = SimulatedCluster(engine, setup.reconfiguration, ledger, setup.starting_s)
    if setup.policy is None:
        ledger.set_replicas(0.0, sum(station.active for station in engine.stations.values()))
        _run(engine, cluster, end, lambda: None, math.inf, setup.progress)
    else:
        pause_s = None if setup.reconfiguration.kind == "none" else setup.reconfiguration.seconds
        loop, decider = _controlled(setup, cluster, pause_s)
        _run(engine, cluster, end, loop.cycle, setup.interval_s, setup.progress)
    for station in engine.stations.values():
        station.take_counts()
    latencies = engine.book.by_root if setup.by_record else None
    measured = metrics(engine, ledger, engine.now, setup.target_s)
    if setup.policy is None:
        return Outcome(measured, tuple(cluster.snapshots), tuple(cluster.decisions), latencies)
    told = {**measured, "policy_failures": decider.failures, "policy_failure": decider.first_failure}
    return Outcome(told, tuple(cluster.snapshots), tuple(cluster.decisions), latencies, learned=decider.state)


def _controlled(setup: Setup, cluster: SimulatedCluster, pause_s: float | None) -> tuple[ControlLoop, Decider]:
    """The control loop of a run, whose world is the simulated cluster."""
    topology, clock = setup.model.topology, cluster.clock
    goals = Goals(SlotLimit(setup.max_slots), setup.target_s, 0.0, setup.interval_s, setup.starting_s, pause_s)
    assert setup.policy is not None
    host = InThread(Starting(setup.policy, setup.degrees))
    decider = Decider(host, record=cluster.decision, clock=clock, seed=setup.seed, state=setup.learned)
    world = World(cluster, cluster, Executors(clock, cluster.decision), (cluster,))
    plans = Plans(topology, goals, decider, world)
    return ControlLoop(plans, decider, clock, setup.interval_s), decider


def _run(
    engine: Engine, cluster: SimulatedCluster, end: float, cycle: Callable[[], None], interval_s: float,
    progress: Progress | None,
) -> None:  # fmt: skip
    """From interval to interval, until the end, or until all records came and left."""
    count = 0
    while engine.now < end:
        count += 1
        until = min(end, count * interval_s)
        if math.isinf(until):
            engine.drain()
            return
        while (due := cluster.next_coming()) <= until:
            engine.advance(due)
            cluster.let_come()
        engine.advance(until)
        if engine.now < end:
            cycle()
        if progress is not None:
            progress(engine.now, end)
        if math.isinf(end) and engine.exhausted and not engine.there:
            return


def _expected(model: Model, records: int | None) -> float:
    """About how long it takes until so many records came."""
    return max((records or 0) / (max(source.steps.values) or 1.0) for source in model.sources)
