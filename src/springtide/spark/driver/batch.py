"""One batch, from its DataFrame to its commit: the exactly-once protocol on one screen."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

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
from springtide.spark.driver.pipeline import Outcome, Pipeline
from springtide.spark.driver.sinks import Sinks
from springtide.spark.shared.report import Report
from springtide.spark.state.book import StateBook

Backlog = Callable[[dict[str, int]], int | None]
"""How many records wait, given how many of each source were committed."""


class Stopping(Exception):
    """Raised instead of starting another batch once the run is to end."""


class BatchRunner:
    """What Spark calls for every batch. It may do so twice for the same one; the manifest decides."""

    def __init__(
        self, topology: Topology, session: SparkSession, checkpoint: Checkpoint, pipeline: Pipeline, sinks: Sinks,
        control: Control, backlog: Backlog, stop: threading.Event, state: StateBook,
    ) -> None:  # fmt: skip
        self._topology, self._session, self._checkpoint = topology, session, checkpoint
        self._pipeline, self._sinks, self._control = pipeline, sinks, control
        self._backlog, self._stop, self._state = backlog, stop, state
        self.committed: dict[str, int] = dict((checkpoint.last_manifest() or {}).get("sources", {}))
        self._begun = checkpoint.begun()
        self._plan: Plan | None = None  # of the last batch
        self._routes: Mapping[str, Route] = {}
        self._oldest_s = math.inf  # how old a record got in the last batch: the first may have waited for any time
        self.batches = 0
        self.fatal: SpringtideError | None = None
        self.failure: Exception | None = None  # since the last batch that went well
        self.latest: int | None = None  # the batch that began last
        self.given_up = False  # its failure is then what the driver wanted
        self._epoch = checkpoint.epoch
        self._retired = False
        self._door = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        with self._door:
            if self._stop.is_set() or self._retired:
                self._note_refused(batch)
                raise Stopping
            self.latest = batch
            self._idle.clear()
        self._stop.wait(self._attempt(frame, batch))

    def close(self, frame: DataFrame, batch: int) -> None:
        """Run a batch that is none of the query's, once that has ended: see ``closing``."""
        self.latest = batch
        self._idle.clear()
        self._attempt(frame, batch)

    def _attempt(self, frame: DataFrame, batch: int) -> float:
        try:
            pause_s = self._batch(frame, batch)
            self.failure = None
            return pause_s
        except Exception as error:
            if self.given_up:
                raise Stopping from None
            self.failure = error
            raise
        finally:
            self._idle.set()

    def _note_refused(self, batch: int) -> None:
        """Where batches are handed on, a start keeps to the offsets of the last one, which it can check only by this note."""
        if self._sinks.hand_on and not self._retired and self._checkpoint.manifest(batch) is None:
            self._checkpoint.begin(batch, handed_on=True)

    @property
    def running(self) -> int | None:
        """The batch that runs now."""
        return None if self._idle.is_set() else self.latest

    def retire(self) -> None:
        """Start no batch any more: another runner takes over once this one is idle."""
        with self._door:
            self._retired = True

    def is_idle(self, timeout_s: float) -> bool:
        """Whether no batch runs. Once the run is to stop, or this runner is retired, none can start any more."""
        with self._door:
            pass
        return self._idle.wait(timeout_s)

    def _batch(self, frame: DataFrame, batch: int) -> float:
        """Run a batch, or see that it was; returns how long to wait before the next one."""
        started, begun = time.time(), time.monotonic()
        done = self._checkpoint.manifest(batch)
        if done is not None:
            self._sinks.publish(self._sinks.located(batch, done["receipts"]))
            return 0.0
        try:
            self._checkpoint.begin(batch, handed_on=self._sinks.hand_on)
            plan = self._planned(batch)
            report = self._run(frame, batch, plan, started)
        except SpringtideError as error:
            self.fatal = error
            raise
        self.batches += 1
        self._control.report(report)
        return max(0.0, plan.trigger_s - (time.monotonic() - begun))

    def _planned(self, batch: int) -> Plan:
        """The plan of this batch: as it was if the batch may have run before, or the one in force now."""
        earlier = self._checkpoint.plan(batch) if batch <= self._begun else None
        plan = earlier or self._shedding(self._control.current(), batch)
        if plan != self._plan:
            if earlier is None:
                self._checkpoint.write_plan(batch, plan)
            if self._plan is None or _routing(plan) != _routing(self._plan):
                self._routes = self._control.routes(plan)
            self._plan = plan
        return plan

    def _shedding(self, plan: Plan, batch: int) -> Plan:
        """A plan by which records are left out says from when on: a replay has to leave out the same ones.

        Counted from when Spark fixed what the batch reads: until it gets here, as long may pass as its newest may be old.
        """
        if plan.shed_after_s is None or self._oldest_s < plan.shed_after_s / 2:
            return plan
        return replace(plan, shed_before=round(self._checkpoint.batch_time(batch) / 1e6 - plan.shed_after_s, 6))

    def _run(self, frame: DataFrame, batch: int, plan: Plan, started: float) -> BatchReport:
        planned = time.time()
        outcome = self._ran(frame, batch, plan)
        ran = time.time()
        _raise_if_stopped(outcome)
        receipts = [vars(receipt) for task in outcome.tasks for receipt in task.receipts]
        outputs = self._sinks.located(batch, receipts)
        for output in outputs:
            staged.check_staged(output)
        rows = self._source_rows(outcome)
        totals = {name: self.committed.get(name, 0) + rows.get(name, 0) for name in rows.keys() | self.committed.keys()}
        self._sinks.deliver(self._session, batch, outputs)
        manifest = {
            "batch": batch,
            "epoch": self._epoch,
            "plan": plan.to_json(),
            "receipts": receipts,
            "sources": totals,
            **(self._state.after(batch, outcome.tasks) if self._state else {}),
        }
        self._checkpoint.commit(manifest)
        self._sinks.publish(outputs)
        if self._state:
            self._state.committed(manifest)
        committed = time.time()
        self.committed = totals
        ages = (committed - at for task in outcome.tasks for at, _ in task.created)
        self._oldest_s = max(ages, default=math.inf if any(task.shed for task in outcome.tasks) else 0.0)
        phases = {"plan": planned - started, "job": ran - planned, "commit": committed - ran}
        return self._report(outcome, batch, plan, started, committed, sum(rows.values()), phases)

    def _ran(self, frame: DataFrame, batch: int, plan: Plan) -> Outcome:
        """Run the tasks; again, if a file of state was damaged, and could be mended."""
        while True:
            versions = self._state.versions(self._checkpoint.batch_time(batch)) if self._state else {}
            try:
                return self._pipeline.run(frame, plan.widths, self._routes, plan.shed_before, versions)
            except Exception as error:
                if not self._state.mended(error):
                    raise

    def _source_rows(self, outcome: Outcome) -> dict[str, int]:
        rows = dict(outcome.source_rows)
        for source in self._topology.sources:
            for one in (one for task in outcome.tasks for one in task.operators if one.operator == source.name):
                rows[source.name] = rows.get(source.name, 0) + (one.rows_in or 0)
        return rows

    def _report(
        self, outcome: Outcome, batch: int, plan: Plan, started: float, committed: float, rows_in: int,
        phases: dict[str, float],
    ) -> BatchReport:  # fmt: skip
        sinks = {operator.name: 0 for operator in self._topology.sinks}
        for task in outcome.tasks:
            for name, count in task.sinks.items():
                sinks[name] += count
        return BatchReport(
            batch, self._epoch, plan, started, committed, rows_in,
            rows_out=sum(sinks.values()),
            rows_failed=sum(task.dead for task in outcome.tasks),
            tasks=tuple(one for task in outcome.tasks for one in task.operators),
            sinks=sinks,
            created=tuple(outcome.created) + tuple(one for task in outcome.tasks for one in task.created),
            backlog=self._backlog(self.committed),
            phases_ms={name: round(value * 1000, 3) for name, value in phases.items()},
            costs={name: tuple(tasks) for name, tasks in outcome.costs.items()},
            variances=_variances(outcome.tasks),
            rows_shed=sum(task.shed for task in outcome.tasks),
            state=self._state.reports(plan, outcome.tasks) if self._state else {},
        )  # fmt: skip


def _routing(plan: Plan) -> tuple[object, ...]:
    """What the tasks route by."""
    return plan.knowledge, plan.widths, plan.shards


def _variances(tasks: list[Report]) -> dict[str, dict[str, tuple[float, ...]]]:
    """What each column tells about the costs, added up over the tasks."""
    sums: dict[str, dict[str, tuple[float, ...]]] = {}
    for task in tasks:
        for operator, columns in task.variances.items():
            own = sums.setdefault(operator, {})
            for column, more in columns.items():
                own[column] = more.plus(Variance(*own.get(column, NOTHING)))
    return sums


def _raise_if_stopped(outcome: Outcome) -> None:
    for task in outcome.tasks:
        if task.stopped is not None:
            letter = task.stopped
            raise RecordError(
                f"operator {letter.operator!r} failed with {letter.error} on the record {letter.record}, and its"
                f" on_error is 'stop'; nothing of the batch was committed\n{letter.traceback}"
            )
