"""A control loop with all its parts, put together from options, for tests that look at the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
