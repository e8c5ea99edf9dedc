"""The plan in force: how the next plan is made from measurements and requests, and how batches take it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from springtide.control import planner
from springtide.control.decider import Decider, degrees_of
from springtide.control.executors import Executors
from springtide.control.intake import Intake
from springtide.control.monitor import Monitor
from springtide.control.planner import SlotLimit
from springtide.control.ports import Actuator, Journal, Measuring
from springtide.control.routing import Routing
from springtide.control.sharding import Sharding
from springtide.control.switch import Mode
from springtide.model.plan import Plan, Request
from springtide.model.report import BatchReport
from springtide.model.request import Action, Migrate, Scale
from springtide.model.snapshot import Snapshot
from springtide.model.topology import Topology
from springtide.policy.group import Route
from springtide.policy.group.shards import OWNER

log = logging.getLogger("springtide.control")


@dataclass(frozen=True)
class Goals:
    """The goals and limits of a run, which every snapshot contains.

    ``starting_s``: the start-up time of a replica, where no executors measure it. ``pause_s``: how long a change of degrees
    stops the operators.
    """

    bounds: SlotLimit
    target_s: float | None = None
    trigger_s: float = 0.0
    interval_s: float = 1.0
    starting_s: float | None = None
    pause_s: float | None = None

    def describe(self, snapshot: Snapshot) -> Snapshot:
        return replace(
            snapshot, target_s=self.target_s, slots=self.bounds.max_slots, trigger_s=self.trigger_s,
            starting_s=self.starting_s, pause_s=self.pause_s,
        )  # fmt: skip


@dataclass(frozen=True)
class World:
    """The parts that measure, carry out and record plans."""

    monitor: Measuring
    journal: Journal
    executors: Executors
    actuators: Sequence[Actuator] = ()


class Plans:
    """The plans of a run. The control loop makes them; the data flow takes the plan in force, and reports."""

    def __init__(
        self, topology: Topology, goals: Goals, decider: Decider, world: World, *, intake: Intake | None = None,
        routing: Routing | None = None, sharding: Sharding | None = None,
    ) -> None:  # fmt: skip
        self._topology, self._goals, self._decider, self._world = topology, goals, decider, world
        self._intake = intake or Intake()
        self._routing, self._sharding = routing or Routing(topology, {}, None), sharding or Sharding(topology)
        self._work: Mapping[str, float] = {}
        self._reading = 0.0
        self._changing = threading.Lock()  # on the plan in force and what applies it
        self._taken: Plan | None = None  # the last plan that a batch took
        self.plan = self._first_plan()

    # for the control loop

    def measure(self, at: float, interval_s: float) -> Snapshot:
        self._world.executors.look()
        measured = self._world.monitor.snapshot(at, interval_s, self.plan)
        return self._world.executors.describe(self._goals.describe(measured))

    def next_plan(self, snapshot: Snapshot, requests: Sequence[Request]) -> Plan:
        return self._make_plan(self.plan.degrees, snapshot, requests)

    def adopt(self, plan: Plan, requests: Sequence[Request], snapshot: Snapshot) -> None:
        """Put a new plan in force and carry it out; go on with an old one that an actuator failed to apply."""
        if plan != self.plan:
            reason = "; ".join(request.reason for request in requests) or self._other_reason(plan)
            if plan.degrees != self.plan.degrees or plan.actions:
                log.info("degrees %s, slots %d, widths %s: %s", dict(plan.degrees), plan.slots, dict(plan.widths), reason)
            self._world.journal.decision({**plan.to_json(), "at_s": round(snapshot.at, 3), "reason": reason})
            with self._changing:
                self.plan = replace(plan, actions=(), reason=reason)  # actions are done once
                self._unapplied = [(actuator, plan) for actuator in self._world.actuators]
        try:
            with self._changing:
                self._apply()
        finally:
            # before anything was measured, no executor is requested or released
            if self._work and self._decider.mode is Mode.ON:
                self._world.executors.follow(plan, requests, snapshot)

    # for the data flow

    def current(self) -> Plan:
        plan, before = self.plan, self._taken
        if self._decider.mode is Mode.OFF and before is not None and before.widths == plan.widths:
            return replace(plan, knowledge=before.knowledge, shards=before.shards)
        shards, shed_after_s = self._sharding.maps(plan.widths), self._intake.next_age()
        self._taken = replace(plan, knowledge=self._routing.edition, shards=shards, shed_after_s=shed_after_s)
        return self._taken

    def routes(self, plan: Plan) -> Mapping[str, Route]:
        shards = {name: Route(self._topology[name].key, {OWNER: np.array(owner)}) for name, owner in plan.shards.items()}
        return {**self._routing.routes(plan), **shards}

    def report(self, report: BatchReport) -> None:
        self._intake.report(report)
        if self._world.executors.warm_after_batch():
            self._world.monitor.add(report)
            self._limit(self._intake.learn(report))
        self._routing.report(report)
        self._sharding.report(report)
        self._world.journal.batch(report)

    def _limit(self, read_limit: int | None) -> None:
        """Change the read limit of the plan in force for the next batch. The data flow does not wait for a control cycle that
        changes the plan now, and an actuator that fails is tried again in the next cycle, which says so."""
        if read_limit == self.plan.read_limit or self._decider.mode is Mode.OFF or not self._changing.acquire(blocking=False):
            return
        try:
            self.plan = replace(self.plan, read_limit=read_limit)
            self._unapplied = [(actuator, self.plan) for actuator in self._world.actuators]
            with contextlib.suppress(Exception):
                self._apply()
        finally:
            self._changing.release()

    def _first_plan(self) -> Plan:
        """The plan before any measurement: the policy's requests at time 0, or all slots while it decides nothing."""
        degrees, bounds = planner.grant(self._topology, {}, self._goals.bounds), self._goals.bounds
        unmeasured = Monitor(self._topology).snapshot(0.0, 0.0, Plan(degrees, 1, {}))
        if self._decider.mode is Mode.ON:
            requests = self._decider.decide(self._goals.describe(unmeasured))
            plan = self._make_plan(degrees, None, requests)
        else:
            plan = self._make_plan(planner.filled(self._topology, bounds), None, ())
        self._unapplied = [(actuator, plan) for actuator in self._world.actuators]
        self._apply()
        return replace(plan, actions=())

    def _apply(self) -> None:
        """Have the actuators apply the plan. If one raises, it and the remaining ones are tried again in the next cycle."""
        while self._unapplied:
            actuator, plan = self._unapplied[0]
            actuator.apply(plan)
            del self._unapplied[0]

    def _make_plan(self, degrees: Mapping[str, int], snapshot: Snapshot | None, requests: Sequence[Request]) -> Plan:
        bounds = self._goals.bounds
        if snapshot is not None and (work := planner.work(snapshot)):
            self._work, self._reading = work, planner.reading(snapshot)
        granted = planner.grant(self._topology, {**degrees, **degrees_of(requests)}, bounds, self._work)
        slots = planner.slots(granted, bounds, self._work, self._reading)
        if snapshot is not None and granted == self.plan.degrees and self._fills_batches(snapshot.backlog):
            slots = max(slots, self.plan.slots)
        there = self._world.executors.slots or slots
        usable = min(there, slots if self._work else bounds.max_slots)  # all, until something is measured
        widths = planner.widths(self._topology, usable, snapshot)
        if self._work and snapshot is not None and not snapshot.batches and granted == self.plan.degrees:
            widths = dict(self.plan.widths)  # nothing new was measured
        actions = tuple(action for request in requests if (action := _placed(request.action)) is not None)
        limit, shed_after_s = self._intake.read_limit(snapshot, usable), self._intake.shed_after_s
        return Plan(granted, slots, widths, limit, self._goals.trigger_s, shed_after_s=shed_after_s, actions=actions)

    def _fills_batches(self, backlog: int | None) -> bool:
        """Whether as many records wait as a batch may read. Then the work of the last batches, which may have been short, does
        not say how few slots are enough."""
        return backlog is not None and self.plan.read_limit is not None and backlog > self.plan.read_limit

    def _other_reason(self, plan: Plan) -> str:
        """Why a plan changed though nothing was requested."""
        if plan.shed_after_s == self.plan.shed_after_s:
            return "work or batch time changed"
        waiting = f"{self._intake.backlog or 0:,} wait"
        if plan.shed_after_s is None:
            return f"no record is left out: {waiting}"
        return f"records older than {plan.shed_after_s:.3g} s are left out: {waiting}"


def _placed(action: Action) -> Scale | Migrate | None:
    """The action, if it names nodes; None where the degrees say it all."""
    return action if isinstance(action, Migrate) or (isinstance(action, Scale) and action.nodes) else None
