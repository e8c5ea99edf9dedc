"""Monitor: from the reports of batches to a snapshot of the interval."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from springtide.model.plan import Plan
from springtide.model.report import BatchReport, TaskReport, latency_of
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.model.topology import Operator, Topology


class Monitor:
    """Gathers reports from the data flow's thread; the control loop takes them out, once per interval."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._lock = threading.Lock()
        self._reports: list[BatchReport] = []
        self._backlog: int | None = None

    def add(self, report: BatchReport) -> None:
        with self._lock:
            self._reports.append(report)
            self._backlog = report.backlog

    def snapshot(self, at: float, interval_s: float, plan: Plan) -> Snapshot:
        """What happened since the last one. Without a batch, rates and utilisations are unknown, not zero."""
        with self._lock:
            reports, self._reports = self._reports, []
            backlog = self._backlog
        waits = [(report.committed - created, weight) for report in reports for created, weight in report.created]
        return Snapshot(
            at, interval_s, plan,
            operators=tuple(_operator(o, plan, reports, interval_s, backlog) for o in self._topology.scalable),
            batches=tuple((report.rows_in, report.duration_s) for report in reports),
            rate=_rate(sum(report.rows_in for report in reports), reports, interval_s),
            backlog=backlog,
            latency=latency_of(waits),
        )  # fmt: skip


def _rate(rows: int, reports: Sequence[BatchReport], interval_s: float) -> float | None:
    return rows / interval_s if reports and interval_s > 0 else None


def _operator(
    operator: Operator, plan: Plan, reports: Sequence[BatchReport], interval_s: float, backlog: int | None
) -> OperatorSnapshot:
    tasks = [task for report in reports for task in report.tasks if task.operator == operator.name]
    counted = [task.rows_in for task in tasks if task.rows_in is not None]
    rows_in = sum(counted)
    known = bool(counted) or not tasks
    busy = [task.busy_s for task in tasks if task.busy_s is not None]
    degree = plan.degrees.get(operator.name, 1)
    selectivity = rows_in / max(1, sum(report.rows_in for report in reports))
    return OperatorSnapshot(
        name=operator.name,
        degree=degree,
        width=plan.widths.get(operator.name, 1),
        rows_in=rows_in,
        rows_out=sum(task.rows_out for task in tasks),
        failures=sum(task.failures for task in tasks),
        busy_s=sum(busy),
        rate=_rate(rows_in, reports, interval_s) if known else None,
        utilisation=sum(busy) / (degree * interval_s) if busy and interval_s > 0 else None,
        backlog=None if backlog is None or not reports or not known else round(backlog * selectivity),
        latency_ms=_stage_time_ms(tasks, reports, operator.name),
    )


def _stage_time_ms(tasks: Sequence[TaskReport], reports: Sequence[BatchReport], name: str) -> float | None:
    """Mean time from the first start of the operator in a batch to its last end."""
    spans = []
    for report in reports:
        own = [task for task in report.tasks if task.operator == name]
        if own:
            spans.append(max(task.finished for task in own) - min(task.started for task in own))
    return 1000 * sum(spans) / len(spans) if spans else None
