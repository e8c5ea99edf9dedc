"""A run from start to end: check, acquire, start, follow, end."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from springtide.control.decider import Decider, InThread
from springtide.control.executors import Executors
from springtide.control.intake import Intake
from springtide.control.loop import ControlLoop
from springtide.control.monitor import Monitor
from springtide.control.plane.remote import Patience, RemotePolicy
from springtide.control.plans import Plans, World
from springtide.control.routing import Routing
from springtide.control.sharding import Sharding
from springtide.control.switch import FILE, FileSwitch, Mode
from springtide.model.topology import Topology
from springtide.options import RunOptions
from springtide.policy.batch.read_limit import ReadLimit, floor_s
from springtide.policy.chosen import named
from springtide.policy.trial import fault_of
from springtide.record.folder import RunFolder
from springtide.record.plots import draw
from springtide.record.summary import Totals
from springtide.record.trace import Trace
from springtide.running.checks import Job, check_target, checked, has_read_limit
from springtide.running.journal import FolderJournal
from springtide.running.result import Result
from springtide.running.signals import signals
from springtide.running.watching import Watch, watching

if TYPE_CHECKING:
    from springtide.spark.driver.checkpoint import Checkpoint
    from springtide.spark.driver.plane import RunOutcome

log = logging.getLogger("springtide")


def execute(topology: Topology, options: RunOptions, watch: Watch | None = None, stop: threading.Event | None = None) -> Result:
    """Run a topology until it ends, or until ``stop`` is set."""
    run = Run(checked(topology, options), watch, stop or threading.Event())
    with run:
        outcome = run.follow()
    return run.result(outcome)


class Run:
    """A checked run. ``__enter__`` starts it; ``__exit__`` releases its resources, the last first."""

    def __init__(self, job: Job, watch: Watch | None, stop: threading.Event) -> None:
        self._job, self._options, self._watch, self._stop = job, job.options, watch, stop
        self._totals = Totals(job.topology, self._options.routing.grouping, self._options.goals.target_s)
        self._trace = Trace()

    def __enter__(self) -> Run:
        with contextlib.ExitStack() as endings:  # a failure releases the resources acquired before
            self._acquire(endings)
            self._prepare(endings)
            self._start(endings)
            self._endings = endings.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._endings.__exit__(kind, error, trace)

    def follow(self) -> RunOutcome:
        """Wait until the run ends."""
        outcome = self._plane.follow()
        floor = floor_s(list(self._journal.recent))
        if floor is not None:
            self._checkpoint.remember("floor", {"floor_s": floor})
        return outcome

    def result(self, outcome: RunOutcome) -> Result:
        """The summary of a run that has ended; it is written to the run's folder, and plotted."""
        fleet = self._executors.fleet
        summary = {
            **self._totals.document(self._options.policy.policy, str(self._folder.path)),
            "restarts": outcome.restarts,
            "ended": str(outcome.ended),
            "open": None if outcome.open is None else {name: left.to_json() for name, left in outcome.open.items()},
            "given_up_batch": outcome.given_up,
            "unpublished_batch": outcome.unpublished,
            "policy_failures": self._decider.failures,
            "policy_failure": self._decider.first_failure,
            "control_failures": self._loop.failures,
            "control_restarts": self._decider.restarts,
            "executor_seconds": round(fleet.executor_seconds if fleet else 0.0, 1) or None,  # in one process there are none
            "violation_ratio": self._totals.violation_ratio,
        }
        self._folder.write_summary(summary)
        plots = tuple(draw(self._trace.points(), self._folder.path))
        return Result(summary, self._folder.path, plots, outcome.tables)

    def _acquire(self, endings: contextlib.ExitStack) -> None:
        """Lock the checkpoint, and make the run's folder."""
        topology, root = self._job.topology, self._options.places.checkpoint
        checkpoint = None if root is None else self._lock(root, endings)
        check_target(self._options.goals.target_s, checkpoint.recall("floor") if checkpoint else None)
        self._folder = RunFolder.create(self._options.places.runs, topology.name, time.time())
        self._checkpoint = checkpoint or self._lock(self._folder.path / "checkpoint", endings)

    def _lock(self, root: Path, endings: contextlib.ExitStack) -> Checkpoint:
        from springtide.running.spark import acquired

        checkpoint = acquired(root, self._job.topology)
        endings.callback(checkpoint.release)
        return checkpoint

    def _prepare(self, endings: contextlib.ExitStack) -> None:
        """Put the control flow and the data plane together, without starting either."""
        from springtide.running.spark import SparkPlane

        job, goals = self._job, self._options.goals
        self._journal = FolderJournal(self._folder, self._totals, self._trace)
        self._decider = self._make_decider()
        endings.callback(self._decider.close)
        grant = self._options.policy.grant
        self._executors = Executors(time.monotonic, self._journal.decision, None if grant is None else named("grant", grant))
        self._plane = SparkPlane(job, self._checkpoint, self._folder.path / "spark.log", self._executors, self._stop)
        self._routing = Routing(job.topology, job.groupings, self._checkpoint.editions, hashing=self._plane.hashing)
        plans = Plans(
            job.topology, goals, self._decider,
            World(Monitor(job.topology), self._journal, self._executors, self._plane.actuators),
            intake=Intake(self._read_limit(), self._options.shedding, goals.trigger_s),
            routing=self._routing, sharding=Sharding(job.topology, job.sharder),
        )  # fmt: skip
        self._loop = ControlLoop(plans, self._decider, time.monotonic, goals.interval_s)
        self._plane.serve(plans)

    def _start(self, endings: contextlib.ExitStack) -> None:
        self._folder.write_run(self._about())
        endings.enter_context(signals(self._stop))
        endings.enter_context(watching(self._loop, self._watch))
        endings.callback(self._plane.close)
        endings.callback(self._journal.close)
        endings.callback(self._routing.close)
        endings.callback(self._loop.stop)
        self._plane.open()
        self._loop.start()

    def _make_decider(self) -> Decider:
        spec, policy = self._options.policy, self._job.scaler.policy
        host = RemotePolicy(spec, Patience.of(self._options.goals.interval_s)) if spec.movable else InThread(policy)
        return Decider(
            host, record=self._journal.decision, clock=time.monotonic, seed=spec.seed,
            state=self._job.scaler.state or self._recalled(),
            switch=FileSwitch(self._folder.path / FILE, Mode.DRY_RUN if self._options.dry_run else Mode.ON),
            save=lambda state: self._checkpoint.remember("policy", {"policy": repr(policy), "state": state}),
        )  # fmt: skip

    def _read_limit(self) -> ReadLimit | None:
        """None if no plan can limit what batches read: a number would promise what nothing keeps."""
        target_s = self._options.goals.target_s
        return None if target_s is None or not any(map(has_read_limit, self._job.topology.sources)) else ReadLimit(target_s)

    def _recalled(self) -> Mapping[str, Any] | None:
        """The state that the same policy, with the same parameters, left in this checkpoint; not if it is damaged."""
        policy, document = self._job.scaler.policy, self._checkpoint.recall("policy")
        if document is None or document.get("policy") != repr(policy) or not isinstance(document.get("state"), dict):
            return None
        if (fault := fault_of(policy, document["state"], self._options.policy.operators)) is not None:
            log.warning("what policy %s learned in this checkpoint is damaged (%s); it begins anew", policy.name, fault)
            return None
        return dict(document["state"])

    def _about(self) -> dict[str, Any]:
        """The run's options, for its folder."""
        topology, asked, routing = self._job.topology, self._options, self._options.routing
        return {
            "topology": topology.name, "graph": str(topology), "stages": dict(topology.stages),
            "policy": asked.policy.policy, "settings": dict(asked.policy.settings), "guards": list(asked.policy.guards),
            "dry_run": asked.dry_run, "grouping": routing.grouping, "grouping_settings": dict(routing.grouping_settings or {}),
            "target_s": asked.goals.target_s, "max_slots": asked.goals.bounds.max_slots,
            "checkpoint": str(self._checkpoint.root),
        }  # fmt: skip
