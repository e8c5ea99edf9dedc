"""One batch, from its DataFrame to its commit: the exactly-once protocol is the method ``BatchRunner._process``."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from springtide.control.ports import Control
from springtide.errors import RecordError, SpringtideError
from springtide.model.plan import Plan
from springtide.model.report import BatchReport
from springtide.model.topology import Topology
from springtide.policy.group import Route
from springtide.policy.group.cost_key import NOTHING, Variance
from springtide.spark.driver import staged
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.pipeline import BatchOutcome, Pipeline
from springtide.spark.driver.published import Unpublished
from springtide.spark.driver.rolled_sinks import Commit
from springtide.spark.driver.sinks import Sinks
from springtide.spark.driver.streams import Streams
from springtide.spark.shared.report import Report
from springtide.spark.state.book import StateBook

HALT_S = 5.0
"""Limits the wait until the query is halted, after a batch found that the run has to end. The driver looks every 0.1 s."""


class BatchRefused(Exception):
    """No further batch starts, because the run is ending or another runner takes over. Ends the query."""


class BatchRunner:
    """The function that Spark calls for every batch. Spark may repeat a batch; the manifest decides whether it is committed."""

    def __init__(
        self, topology: Topology, session: SparkSession, checkpoint: Checkpoint, pipeline: Pipeline, sinks: Sinks,
        control: Control, streams: Streams, stop: threading.Event, state: StateBook,
    ) -> None:  # fmt: skip
        self._topology, self._session, self._checkpoint = topology, session, checkpoint
        self._pipeline, self._sinks, self._control = pipeline, sinks, control
        self._streams, self._stop, self._state = streams, stop, state
        last = checkpoint.last_manifest() or {}
        self.committed: dict[str, int] = dict(last.get("sources", {}))
        self.last_committed: int = last.get("batch", -1)
        self._begun = checkpoint.begun()
        self._plan: Plan | None = None  # of the last batch
        self._routes: Mapping[str, Route] = {}
        self._oldest_s = math.inf  # age of the oldest record of the last batch; unknown before the first
        self.batches = 0
        self.fatal: SpringtideError | None = None
        self.failure: Exception | None = None  # since the last successful batch
        self.latest: int | None = None  # the batch that began last
        self.given_up = False  # the driver cancelled the batch, so its failure is expected
        self._published: dict[str, int] = dict(last.get("published", {}))  # by published sink, the last batch with output
        self._epoch = checkpoint.epoch
        self._retired = False
        self._start_lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        with self._start_lock:
            if self._stop.is_set() or self._retired:
                self._note_refused(batch)
                raise BatchRefused
            self.latest = batch
            self._idle.clear()
        self._stop.wait(self._attempt(frame, batch))

    def close(self, frame: DataFrame, batch: int) -> None:
        """Run a closing batch, after the query has ended: see ``closing``."""
        self.latest = batch
        self._idle.clear()
        self._attempt(frame, batch)

    def _attempt(self, frame: DataFrame, batch: int) -> float:
        try:
            pause_s = self._batch(frame, batch)
            self.failure = None
            return pause_s
        except Unpublished:
            self._stop.wait(HALT_S)
            raise BatchRefused from None
        except Exception as error:
            if self.given_up:
                raise BatchRefused from None
            self.failure = error
            raise
        finally:
            self._idle.set()

    def _note_refused(self, batch: int) -> None:
        """Note the offsets of a refused batch: if a sink takes batches before their commit, the next start has to read the same
        records, and verifies the offsets by this note."""
        if self._sinks.hand_on and not self._retired and self._checkpoint.manifest(batch) is None:
            self._checkpoint.begin(batch, handed_on=True)

    @property
    def running(self) -> int | None:
        """The batch that runs now."""
        return None if self._idle.is_set() else self.latest

    def retire(self) -> None:
        """Refuse all further batches: another runner takes over once this one is idle."""
        with self._start_lock:
            self._retired = True

    def is_idle(self, timeout_s: float) -> bool:
        """Whether no batch runs. After a stop, or after ``retire``, no batch can start any more."""
        with self._start_lock:
            pass
        return self._idle.wait(timeout_s)

    def _batch(self, frame: DataFrame, batch: int) -> float:
        """Process a batch unless it is committed already; returns the pause before the next batch in seconds."""
        begun = time.monotonic()
        manifest = self._checkpoint.manifest(batch)
        if manifest is not None:
            # step 7, which a crash may have prevented
            self._sinks.publish(batch, self._sinks.located(batch, manifest["receipts"]))
            return 0.0
        try:
            report = self._process(frame, batch)
        except SpringtideError as error:
            self.fatal = error
            raise
        self.batches += 1
        self._control.report(report)
        return max(0.0, report.plan.trigger_s - (time.monotonic() - begun))

    def _process(self, frame: DataFrame, batch: int) -> BatchReport:
        """The exactly-once protocol. After a crash at any line Spark repeats the batch, and only step 5 can take effect twice.

        1. The offsets of the batch are noted, so that a repetition reads the same records.
        2. The plan is fixed before anything runs, so that a repetition routes and sheds the same records.
        3. The tasks run. They only stage files, and report a receipt for each.
        4. The driver checks every staged file against its receipt: it commits no file that it cannot read back.
        5. At-least-once sinks get the batch. A crash before step 6 delivers it again, with the same number and records.
        6. The rename of the manifest is the commit. Before it the batch is repeated as a whole, after it never again.
        7. The staged files are published: a rename makes them visible to readers, or their records are sent to the sink. After
           a crash before it, the next start publishes the files that the manifest names, and removes all others.
        """
        started = time.time()
        self._checkpoint.begin(batch, handed_on=self._sinks.hand_on)  # 1
        plan = self._planned(batch)  # 2
        planned = time.time()
        outcome = self._run(frame, batch, plan)  # 3
        ran = time.time()
        receipts = [vars(receipt) for task in outcome.tasks for receipt in task.receipts]
        outputs = self._sinks.located(batch, receipts)
        for output in outputs:
            staged.check_staged(output)  # 4
        rows = self._source_rows(outcome)
        totals = {name: self.committed.get(name, 0) + rows.get(name, 0) for name in rows.keys() | self.committed.keys()}
        self._sinks.deliver(self._session, batch, outputs)  # 5
        commit = self._rolled(batch, receipts)
        manifest = {
            "batch": batch,
            "epoch": self._epoch,
            "plan": plan.to_json(),
            **commit.document,
            "sources": totals,
            **self._with_output(batch, receipts),
            **(self._state.after(batch, outcome.tasks) if self._state else {}),
        }
        self._checkpoint.commit(manifest)  # 6
        self._sinks.publish(batch, self._sinks.located(batch, commit.receipts))  # 7
        self._sinks.rolled.committed(commit)
        if self._state:
            self._state.committed(manifest)
        committed = time.time()
        self.committed, self.last_committed = totals, batch
        self._streams.committed(batch)
        ages = (committed - at for task in outcome.tasks for at, _ in task.created)
        self._oldest_s = max(ages, default=math.inf if any(task.shed for task in outcome.tasks) else 0.0)
        phases = {"plan": planned - started, "job": ran - planned, "commit": committed - ran}
        return self._report(outcome, batch, plan, started, committed, sum(rows.values()), phases)

    def _rolled(self, batch: int, receipts: list[dict[str, Any]]) -> Commit:
        """The batch's output: what becomes visible now, and what waits to be rolled."""
        if not self._sinks.rolled.is_used:
            return Commit(receipts)
        before, now = self._checkpoint.manifest(batch - 1) if batch else None, self._checkpoint.logs.batch_time(batch)
        return self._sinks.rolled.commit(batch, receipts, before, self._epoch, now)

    def roll(self, now: int, every: bool = False) -> None:
        """Between two batches, roll output that has waited long enough, or ``every`` part. A batch that is to start waits."""
        if not (every or self._sinks.rolled.is_due(now)):
            return
        with self._start_lock:
            if self._idle.is_set() and self._checkpoint.is_finished(self.last_committed):
                self._sinks.rolled.roll_now(self._checkpoint, now, every)

    def _with_output(self, batch: int, receipts: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
        """By published sink, the last batch with output for it, for the manifest: the sink's mark has to agree with it."""
        sinks = {receipt["sink"] for receipt in receipts if receipt["sink"] in self._sinks.publications}
        self._published |= dict.fromkeys(sinks, batch)
        return {"published": dict(self._published)} if self._published else {}

    def _planned(self, batch: int) -> Plan:
        """The plan of this batch: the stored plan if the batch may have run before, else the plan in force, with the read limit
        that was in force when Spark fixed the offsets."""
        earlier = self._checkpoint.plans.read(batch) if batch <= self._begun else None
        plan = earlier or self._limited(self._shedding(self._control.current(), batch))
        if plan != self._plan:
            if earlier is None:
                self._checkpoint.plans.write(batch, plan)
            if self._plan is None or _routing(plan) != _routing(self._plan):
                self._routes = self._control.routes(plan)
            self._plan = plan
        return plan

    def _limited(self, plan: Plan) -> Plan:
        return replace(plan, read_limit=self._streams.read_limit(plan.read_limit))

    def _shedding(self, plan: Plan, batch: int) -> Plan:
        """Fix the creation time before which records are shed, so that a replay sheds the same records. The time counts from
        when Spark fixed the offsets of the batch, not from now: the batch may have waited since."""
        if plan.shed_after_s is None or self._oldest_s < plan.shed_after_s / 2:
            return plan
        return replace(plan, shed_before=round(self._checkpoint.logs.batch_time(batch) / 1e6 - plan.shed_after_s, 6))

    def _run(self, frame: DataFrame, batch: int, plan: Plan) -> BatchOutcome:
        """Run the tasks, and repeat them if a damaged state file is mended. Raises if an operator stops the run."""
        parts = self._streams.parts(batch, plan.widths)
        while True:
            versions = self._state.versions(self._checkpoint.logs.batch_time(batch)) if self._state else {}
            try:
                outcome = self._pipeline.run(frame, parts, plan.widths, self._routes, plan.shed_before, versions)
                break
            except Exception as error:
                if not self._state.mended(error):
                    raise
        _raise_if_stopped(outcome)
        return outcome

    def _source_rows(self, outcome: BatchOutcome) -> dict[str, int]:
        rows = Counter(outcome.source_rows)
        sources = {source.name for source in self._topology.sources}
        for report in (report for task in outcome.tasks for report in task.operators if report.operator in sources):
            rows[report.operator] += report.rows_in or 0
        return rows

    def _report(
        self, outcome: BatchOutcome, batch: int, plan: Plan, started: float, committed: float, rows_in: int,
        phases: dict[str, float],
    ) -> BatchReport:  # fmt: skip
        waiting = self._streams.waiting(batch)
        backlogs = {name: None if waits is None else waits.records for name, waits in waiting.items()}
        sinks = {operator.name: 0 for operator in self._topology.sinks}
        for task in outcome.tasks:
            for name, count in task.sinks.items():
                sinks[name] += count
        return BatchReport(
            batch, self._epoch, plan, started, committed, rows_in,
            rows_out=sum(sinks.values()),
            rows_failed=sum(task.dead for task in outcome.tasks),
            tasks=tuple(report for task in outcome.tasks for report in task.operators),
            sinks=sinks,
            created=tuple(outcome.created) + tuple(times for task in outcome.tasks for times in task.created),
            backlog=_sum(backlogs),
            backlogs=backlogs,
            waiting={name: vars(waits) for name, waits in waiting.items() if waits is not None and waits.files is not None},
            phases_ms={name: round(value * 1000, 3) for name, value in phases.items()},
            costs={name: tuple(tasks) for name, tasks in outcome.costs.items()},
            variances=_variances(outcome.tasks),
            rows_shed=sum(task.shed for task in outcome.tasks),
            rows_lost=sum(task.lost for task in outcome.tasks),
            state=self._state.reports(plan, outcome.tasks) if self._state else {},
        )  # fmt: skip


def _sum(backlogs: Mapping[str, int | None]) -> int | None:
    """The records that wait at all sources; None if it is unknown for any of them."""
    known = [backlog for backlog in backlogs.values() if backlog is not None]
    return sum(known) if len(known) == len(backlogs) else None


def _routing(plan: Plan) -> tuple[object, ...]:
    """The parts of a plan that determine the routes."""
    return plan.knowledge, plan.widths, plan.shards


def _variances(tasks: list[Report]) -> dict[str, dict[str, tuple[float, ...]]]:
    """By operator and column, how far the column explains the costs: the sum over the tasks."""
    sums: dict[str, dict[str, tuple[float, ...]]] = {}
    for task in tasks:
        for operator, columns in task.variances.items():
            own = sums.setdefault(operator, {})
            for column, more in columns.items():
                own[column] = more.plus(Variance(*own.get(column, NOTHING)))
    return sums


def _raise_if_stopped(outcome: BatchOutcome) -> None:
    for task in outcome.tasks:
        if (letter := task.stopped) is not None:
            raise RecordError(
                f"operator {letter.operator!r} failed with {letter.error} on the record {letter.record}, and its"
                f" on_error is 'stop'; nothing of the batch was committed\n{letter.traceback}"
            )
