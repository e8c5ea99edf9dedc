"""A control loop with all its parts, put together from options, for tests that look at the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import springtide as st
from springtide.control.decider import Decider, InThread
from springtide.control.executors import Executors
from springtide.control.fleet import Fleet, Limits
from springtide.control.intake import Intake
from springtide.control.loop import ControlLoop
from springtide.control.monitor import Monitor
from springtide.control.planner import SlotLimit
from springtide.control.plans import Goals, Plans, World
from springtide.control.ports import Actuator, Clock, ClusterManager, Journal, Measuring
from springtide.control.routing import Routing
from springtide.control.sharding import Sharding
from springtide.control.switch import Switch
from springtide.model.plan import Plan
from springtide.model.report import BatchReport
from springtide.model.snapshot import Snapshot
from springtide.model.topology import Topology
from springtide.policy.batch.read_limit import ReadLimit
from springtide.policy.batch.shedding import Shedding
from springtide.policy.grant import GrantPolicy
from springtide.policy.group import Route
from springtide.policy.scale import State
from springtide.policy.shard import Sharder


@dataclass
class Rig:
    """What the data flow and the owner of a run see of control."""

    loop: ControlLoop
    plans: Plans
    decider: Decider
    executors: Executors

    @property
    def fleet(self) -> Fleet | None:
        return self.executors.fleet

    @property
    def snapshot(self) -> Snapshot | None:
        return self.loop.snapshot

    @property
    def learned(self) -> State | None:
        return self.decider.state

    @property
    def failures(self) -> int:
        return self.decider.failures

    def cycle(self) -> None:
        self.loop.cycle()

    def start(self) -> None:
        self.loop.start()

    def stop(self) -> None:
        self.loop.stop()

    def employ(self, cluster: ClusterManager, limits: Limits, elastic: bool) -> None:
        self.executors.employ(cluster, limits, elastic)

    def current(self) -> Plan:
        return self.plans.current()

    def routes(self, plan: Plan) -> Mapping[str, Route]:
        return self.plans.routes(plan)

    def report(self, report: BatchReport) -> None:
        self.plans.report(report)


def rig(
    topology: Topology, policy: Any, *, bounds: SlotLimit, read_limit: ReadLimit | None, trigger_s: float, interval_s: float,
    clock: Clock, actuators: Sequence[Actuator], journal: Journal, routing: Routing | None = None, seed: int = 0,
    monitor: Measuring | None = None, target_s: float | None = None, starting_s: float | None = None,
    pause_s: float | None = None, learned: State | None = None, keep: Callable[[State], None] | None = None,
    shedding: Shedding | None = None, switch: Switch | None = None, grant: GrantPolicy | None = None,
    sharder: Sharder | None = None,
) -> Rig:  # fmt: skip
    host = policy if hasattr(policy, "forget") else InThread(policy)
    decider = Decider(host, record=journal.decision, clock=clock, seed=seed, state=learned, save=keep, switch=switch)
    executors = Executors(clock, journal.decision, grant)
    goals = Goals(bounds, target_s, trigger_s, interval_s, starting_s, pause_s)
    plans = Plans(
        topology, goals, decider, World(monitor or Monitor(topology), journal, executors, actuators),
        intake=Intake(read_limit, shedding, trigger_s, clock), routing=routing, sharding=Sharding(topology, sharder),
    )  # fmt: skip
    return Rig(ControlLoop(plans, decider, clock, interval_s), plans, decider, executors)


@dataclass(frozen=True)
class Number:
    n: int


def counted(draw: st.Draw) -> Number:
    return Number(draw.index)


def same(record: Number) -> Number:
    return record


def line(**options: Any) -> Topology:
    """source → first ⇒ second (at most 3 tasks) → sink. ``options``: of ``first``."""
    stream = st.source.generate(counted, rate=100).map(same, name="first", **options)
    return stream.map(same, name="second", parallelism=3).to(st.sink.discard(), name="sink").named("line")


@dataclass
class Steps:
    """A clock that tests advance."""

    now: float = 50.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Memory:
    """Collects everything that a loop records, applies and saves."""

    batches: list[BatchReport] = field(default_factory=list)
    decisions: list[Mapping[str, object]] = field(default_factory=list)
    applied: list[Plan] = field(default_factory=list)
    saved: list[Any] = field(default_factory=list)

    def batch(self, report: BatchReport) -> None:
        self.batches.append(report)

    def decision(self, entry: Mapping[str, object]) -> None:
        self.decisions.append(entry)

    def apply(self, plan: Plan) -> None:
        self.applied.append(plan)

    def save(self, state: Any) -> None:
        self.saved.append(state)


def loop_of(
    policy: Any, topology: Topology | None = None, *, max_slots: int = 8, read_limit: ReadLimit | None = None,
    trigger_s: float = 0.25, **options: Any,
) -> tuple[Rig, Steps, Memory]:  # fmt: skip
    """A loop with a decision every second, on a stepped clock."""
    clock, memory = Steps(), Memory()
    loop = rig(
        topology or line(), policy, bounds=SlotLimit(max_slots), read_limit=read_limit, trigger_s=trigger_s, interval_s=1.0,
        clock=clock, actuators=[memory], journal=memory, **options,
    )  # fmt: skip
    return loop, clock, memory
