"""One control cycle: monitor → analyze → plan → execute, every interval, beside the data flow.

The data flow never waits for it: it reads the plan in force and hands over reports. When a policy fails, the last plan
stays in force, the failure is logged once, and the next interval tries again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from springtide.control import planner
from springtide.control.fleet import Fleet, Limits
from springtide.control.hierarchy.executors import ExecutorGrants
from springtide.control.hierarchy.refusals import refused
from springtide.control.monitor import Monitor
from springtide.control.plane.remote import RemotePolicy
from springtide.control.planner import Bounds
from springtide.control.ports import Actuator, Clock, Cluster, Journal, Measuring
from springtide.control.routing import Routing
from springtide.control.sharding import Sharding
from springtide.control.switch import Fixed, Mode, Switch
from springtide.model.plan import Plan, Request
from springtide.model.report import BatchReport
from springtide.model.request import Action, Migrate, RemoveExecutor, Scale
from springtide.model.snapshot import Snapshot
from springtide.model.topology import Topology
from springtide.policy.batch.read_limit import ReadLimit
from springtide.policy.batch.shedding import Shedding
from springtide.policy.grant import GrantPolicy
from springtide.policy.group import Route
from springtide.policy.group.shards import OWNER
from springtide.policy.scale import ScalePolicy, State, decided
from springtide.policy.shard import Sharder

log = logging.getLogger("springtide.control")

KEEP_S = 10.0
"""What a policy learned is kept so often: a crash loses no more than that."""


COLD = 2
"""Batches of a cluster that tell nothing: the first ones start Python on every executor and compile Spark's code, and took up
to ten times as long as the next ones."""


class ControlLoop:
    """The loop of one run. ``cycle`` is one round; ``start`` runs it in a thread until ``stop``."""

    def __init__(
        self, topology: Topology, policy: ScalePolicy, *, bounds: Bounds, read_limit: ReadLimit | None, trigger_s: float,
        interval_s: float, clock: Clock, actuators: Sequence[Actuator], journal: Journal,
        routing: Routing | None = None, seed: int = 0, monitor: Measuring | None = None, target_s: float | None = None,
        starting_s: float | None = None, pause_s: float | None = None,
        learned: State | None = None, keep: Callable[[State], None] | None = None,
        shedding: Shedding | None = None, switch: Switch | None = None,
        grant: GrantPolicy | None = None, sharder: Sharder | None = None,
    ) -> None:  # fmt: skip
        """``pause_s``: how long a change of degrees stops the operators. ``learned``: the policy's state to begin with;
        ``keep`` is handed its state, now and then and at the end. ``grant``: says which executors may come and go; all that are
        wanted without it."""
        self._topology, self._policy, self._bounds = topology, policy, bounds
        self._read_limit, self._trigger_s, self._interval_s = read_limit, trigger_s, interval_s
        self._clock, self._actuators, self._journal = clock, actuators, journal
        self._target_s, self._starting_s, self._pause_s = target_s, starting_s, pause_s
        self._routing = routing or Routing(topology, {}, None, clock)
        self._sharding = Sharding(topology, sharder)
        self._monitor: Measuring = monitor or Monitor(topology)
        self._rng = np.random.default_rng(seed)
        self._policy_state: State | None = learned
        self._restored = learned is not None  # and not used yet
        self._keep, self._kept_at = keep, clock()
        self._shedding = shedding
        self._switch = switch or Fixed()
        self._mode = self._switch.mode()
        self.fleet: Fleet | None = None
        self._grants = None if grant is None else ExecutorGrants(grant)
        self._wished: tuple[Mapping[str, int], list[str]] = {}, []
        self._work: Mapping[str, float] = {}
        self._batches = 0
        self._limit_state: Mapping[str, Any] = {} if read_limit is None else read_limit.initial()
        self._arrival: float | None = None  # records/s, as last known
        self._waiting: tuple[float, int] | None = None  # the backlog that they were counted up to, and when that was
        self._backlog: int | None = None  # when the last batch ended
        self._ended: float | None = None  # when that was
        self._came: float | None = None  # records/s, by that backlog alone
        self._shed_after_s = None if shedding is None else shedding.timeout_s
        self._usable = 0  # slots that the last plan could use
        self._failing = False
        self.failures = 0  # of the policy: decisions that it could not make
        self.first_failure: str | None = None
        self._started = self._last = clock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="springtide-control", daemon=True)
        self.snapshot: Snapshot | None = None
        self._given: Plan | None = None  # the last that a batch took
        self._plan = self._first_plan()

    def cycle(self) -> None:
        """Monitor, analyze, plan, execute."""
        now = self._clock()
        if self.fleet is not None:
            self.fleet.look()
        snapshot = self._measured(self._monitor, now - self._started, now - self._last, self._plan)
        self._last = now
        if self._look_at_switch(snapshot) is Mode.OFF:
            self.snapshot = snapshot
            return
        requests = self._analyze(snapshot)
        if self._mode is Mode.DRY_RUN:
            requests = self._only_told(requests, snapshot)
        plan = self._make_plan(snapshot, requests)
        self._execute(plan, requests, snapshot)
        # before anything was measured, nothing is asked for and nothing given back
        if self.fleet is not None and self._work and self._mode is Mode.ON:
            self._follow(self.fleet, plan, requests, snapshot)
        self.snapshot = snapshot
        if now - self._kept_at >= KEEP_S:
            self._keep_learned()

    def employ(self, cluster: Cluster, limits: Limits, elastic: bool, caching: bool = False) -> None:
        """Have a cluster's executors follow the plans, from the next cycle on, or only watch them.

        ``caching``: their hosts keep state."""
        self._batches = 0
        if self.fleet is None:
            judge = None if self._grants is None else self._grants.judge
            self.fleet = Fleet(cluster, limits, self._clock, self._journal.decision, elastic, caching, judge)
        else:
            self.fleet.move(cluster)

    def current(self) -> Plan:
        plan, before = self._plan, self._given
        if self._mode is Mode.OFF and before is not None and before.widths == plan.widths:
            return replace(plan, knowledge=before.knowledge, shards=before.shards)
        shards, shed_after_s = self._sharding.maps(plan.widths), self._next_age()
        self._given = replace(plan, knowledge=self._routing.edition, shards=shards, shed_after_s=shed_after_s)
        return self._given

    def routes(self, plan: Plan) -> Mapping[str, Route]:
        shards = {name: Route(self._topology[name].key, {OWNER: np.array(owner)}) for name, owner in plan.shards.items()}
        return {**self._routing.routes(plan), **shards}

    def report(self, report: BatchReport) -> None:
        self._batches += 1
        self._ended, self._backlog, self._came = self._clock(), report.backlog, _came(report)
        # before the first cycle nobody has looked who is there
        if self._batches > COLD or self.fleet is None or not (self.fleet.slots or self.fleet.cluster.executors()):
            self._monitor.add(report)
        self._routing.report(report)
        self._sharding.report(report)
        self._journal.batch(report)

    def start(self) -> None:
        """Begin: time counts from here."""
        self._started = self._last = self._clock()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        if isinstance(self._policy, RemotePolicy):
            self._policy_state = self._policy.close() or self._policy_state
        self._keep_learned()

    @property
    def learned(self) -> State | None:
        """What the policy knows; None before it was first asked."""
        return self._policy_state

    def _keep_learned(self) -> None:
        self._kept_at = self._clock()
        if self._keep is None or self._policy_state is None:
            return
        try:
            self._keep(self._policy_state)
        except Exception as error:  # noqa: BLE001  a full disk, or a state that is no JSON, must not stop the run
            log.warning("what policy %s learned is not kept: %r", getattr(self._policy, "name", "?"), error)
            self._keep = None

    def _look_at_switch(self, snapshot: Snapshot) -> Mode:
        """The mode now; that it was switched is logged and recorded."""
        mode, before = self._switch.mode(), self._mode
        if mode is not before:
            log.warning("control is switched from %s to %s", before, mode)
            self._journal.decision({"control": mode, "at_s": round(snapshot.at, 3), "reason": f"switched from {before}"})
            self._mode, self._wished = mode, ({}, [])
        return mode

    def _follow(self, fleet: Fleet, plan: Plan, requests: Sequence[Request], snapshot: Snapshot) -> None:
        """Executors for the slots of the plan; those that were granted to be replaced go."""
        if self._grants is not None:
            self._grants.see(snapshot.at, snapshot)
        fleet.follow(plan.slots, "; ".join(request.reason for request in requests if request.operator))
        for request in requests:
            if isinstance(request.action, RemoveExecutor):
                fleet.replace(request.action.executor, request.reason)

    def _only_told(self, requests: tuple[Request, ...], snapshot: Snapshot) -> tuple[Request, ...]:
        """A dry run: write down what is wanted, once, and want nothing."""
        wished = _degrees(requests), sorted({_leaving(request.action) for request in requests if not request.operator})
        if any(wished) and wished != self._wished:
            reason = "; ".join(request.reason for request in requests)
            log.info("dry run: degrees %s would change to %s: %s", dict(self._plan.degrees), wished[0], reason)
            told = {"degrees": wished[0], **({"relieved": wished[1]} if wished[1] else {})}
            self._journal.decision({"dry_run": True, **told, "at_s": round(snapshot.at, 3), "reason": reason})
        self._wished = wished
        return ()

    def _measured(self, monitor: Measuring, at: float, interval_s: float, plan: Plan) -> Snapshot:
        """What was measured, beside what is wanted of the run."""
        measured = monitor.snapshot(at, interval_s, plan)
        fleet = self.fleet if self.fleet is not None and self.fleet.elastic else None  # else nothing has to start
        return replace(
            measured, target_s=self._target_s, slots=self._bounds.max_slots, trigger_s=self._trigger_s, pause_s=self._pause_s,
            starting_s=self._starting_s if fleet is None else fleet.starting_s,
            nodes=measured.nodes if fleet is None else fleet.nodes, there=None if fleet is None else fleet.slots,
        )  # fmt: skip

    def _first_plan(self) -> Plan:
        """The plan before anything was measured: what the policy wants at time 0."""
        degrees = planner.grant(self._topology, {}, self._bounds)
        empty = Plan(degrees, 1, {})
        snapshot = self._measured(Monitor(self._topology), 0.0, 0.0, empty)
        dry = self._mode is not Mode.ON
        requests = () if dry else self._analyze(snapshot)
        plan = self._make_plan(None, requests, planner.filled(self._topology, self._bounds) if dry else degrees)
        for actuator in self._actuators:
            actuator.apply(plan)
        return replace(plan, actions=())

    def _analyze(self, snapshot: Snapshot) -> tuple[Request, ...]:
        try:
            before = self._policy.initial() if self._policy_state is None else self._policy_state
            state, requests = decided(self._policy, before, snapshot, self._rng)
            self._policy_state = state
            self._restored = self._restored and snapshot.rate is None  # where nothing was measured, little of it is used
            self._tell_refused(state, snapshot)
        except Exception as error:  # a policy is anybody's code; whatever it raises must not reach the data flow
            if self._restored:
                self._begin_anew(error)
                return self._analyze(snapshot)
            self.failures += 1
            self.first_failure = self.first_failure or repr(error)
            if not self._failing:
                log.exception("policy %s failed; the last plan stays in force", getattr(self._policy, "name", "?"))
            self._failing = True
            return ()
        self._failing = False
        return requests

    def _begin_anew(self, error: Exception) -> None:
        """What was learned before is of no use: the policy would fail on it for the whole run."""
        name, fault = getattr(self._policy, "name", "?"), str(error).strip().rpartition("\n")[2]
        log.warning("policy %s cannot go on from what it learned before (%s); it begins anew", name, fault or repr(error))
        self._restored, self._policy_state = False, None
        if isinstance(self._policy, RemotePolicy):
            self._policy.begin_anew()

    def _tell_refused(self, state: State, snapshot: Snapshot) -> None:
        """What a guard held back or the application's manager did not grant, and why: each once while it goes on."""
        told = self._policy.refusals() if isinstance(self._policy, RemotePolicy) else refused(self._policy, state)
        for one in told:
            wish = one["refused"]
            if "guard" in wish:
                change = f"{wish['operator']} from {wish['before']} to {wish['after']}" if wish["operator"] else "a move"
                log.info("held back by %s: %s (%s): %s", wish["guard"], change, wish["reason"], one["reason"])
            else:
                log.info("refused: %s of %s (%s): %s", wish["action"]["kind"], wish["manager"], wish["reason"], one["reason"])
            self._journal.decision({**one, "at_s": round(snapshot.at, 3)})

    def _make_plan(
        self, snapshot: Snapshot | None, requests: Sequence[Request], degrees: Mapping[str, int] | None = None
    ) -> Plan:
        wanted = {**(degrees or self._plan.degrees), **_degrees(requests)}
        self._work = (planner.work(snapshot) if snapshot is not None else {}) or self._work
        granted = planner.grant(self._topology, wanted, self._bounds, self._work)
        slots = planner.slots(granted, self._bounds, self._work)
        there = (self.fleet.slots if self.fleet is not None and self.fleet.elastic else None) or slots
        usable = min(there, slots if self._work else self._bounds.max_slots)  # all, until something is measured
        widths = planner.widths(self._topology, usable, snapshot)
        if self._work and snapshot is not None and not snapshot.batches and granted == self._plan.degrees:
            widths = dict(self._plan.widths)  # nothing was measured, so nothing is known better than before
        actions = tuple(request.action for request in requests if isinstance(request.action, Scale | Migrate))
        arriving = None if snapshot is None else self._arriving(snapshot)
        limit = self._next_limit(snapshot, usable, arriving)
        return Plan(granted, slots, widths, limit, self._trigger_s, shed_after_s=self._shed_after_s, actions=actions)

    def _next_age(self) -> float | None:
        """How old records may be in the batch that starts now. Here, and not when plans are made: the next batch may start
        before a cycle has seen what the last one left."""
        if self._shedding is not None and self._ended is not None:
            rate = self._came if self._arrival is None else self._arrival
            since_s = min(self._clock() - self._ended, self._trigger_s)  # more come until the next one may start
            waiting = None if self._backlog is None else self._backlog + (rate or 0.0) * since_s
            self._shed_after_s = self._shedding.allowed(waiting, rate, self._shed_after_s)
        return self._shed_after_s

    def _next_limit(self, snapshot: Snapshot | None, usable: int, arriving: float | None) -> int | None:
        if self._read_limit is None:
            return None
        batches = snapshot.batches if snapshot else ()
        before, self._usable = self._usable or usable, usable
        self._limit_state, limit = self._read_limit.decide(self._limit_state, batches, arriving, usable / before)
        return limit

    def _arriving(self, snapshot: Snapshot) -> float | None:
        """Records/s that came, which under a backlog are not those that were read: a throughput would feed on itself."""
        if snapshot.rate is None or snapshot.backlog is None:
            return self._arrival  # no batch ended, and what is known is of those before
        at = snapshot.at if self._ended is None else self._ended - self._started  # when so many waited
        before, self._waiting = self._waiting, (at, snapshot.backlog)
        if before is not None and at > before[0]:
            read = snapshot.rate * snapshot.interval_s
            self._arrival = max(0.0, (read + snapshot.backlog - before[1]) / (at - before[0]))
        return self._arrival

    def _execute(self, plan: Plan, requests: Sequence[Request], snapshot: Snapshot) -> None:
        if plan == self._plan:
            return
        reason = "; ".join(request.reason for request in requests) or self._other_reason(plan)
        if plan.degrees != self._plan.degrees or plan.actions:
            log.info("degrees %s, slots %d, widths %s: %s", dict(plan.degrees), plan.slots, dict(plan.widths), reason)
        self._journal.decision({**plan.to_json(), "at_s": round(snapshot.at, 3), "reason": reason})
        self._plan = replace(plan, actions=(), reason=reason)  # actions are done once
        for actuator in self._actuators:
            actuator.apply(plan)

    def _other_reason(self, plan: Plan) -> str:
        """Why a plan is another one though nothing was asked for."""
        if plan.shed_after_s == self._plan.shed_after_s:
            return "work or batch time changed"
        if plan.shed_after_s is None:
            return f"no record is left out: {self._backlog or 0:,} wait"
        return f"records older than {plan.shed_after_s:.3g} s are left out: {self._backlog or 0:,} wait"

    def _run(self) -> None:
        failing = False
        while not self._stopped.wait(self._interval_s):
            try:
                self.cycle()
                failing = False
            except Exception:  # the control flow may fail; the data flow goes on with the last plan
                if not failing:
                    log.exception("the control loop failed; the last plan stays in force")
                failing = True


def _came(report: BatchReport) -> float | None:
    """Records/s by what waits: it was created after what was read. A guess, but there is none better after the first batch."""
    newest = max((at for at, _ in report.created), default=report.committed)
    return report.backlog / (report.committed - newest) if report.backlog and report.committed > newest else None


def _degrees(requests: Sequence[Request]) -> dict[str, int]:
    """Without those that are about places, and of no operator's degree."""
    return {request.operator: request.degree for request in requests if request.operator}


def _leaving(action: Action | None) -> str:
    """What a move is away from. Not what moves: that is drawn anew in every round."""
    return action.origin if isinstance(action, Migrate) else f"executor {getattr(action, 'executor', '')}"
