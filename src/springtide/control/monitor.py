"""Monitor: from the reports of batches to a snapshot of the interval."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence

import numpy as np

from springtide.model.plan import Plan
from springtide.model.report import BatchReport, TaskReport, latency_of
from springtide.model.snapshot import OperatorSnapshot, Snapshot, SourceSnapshot
from springtide.model.topology import PASSING, Kind, Operator, Topology

LONGEST_S = 3_600
"""What was created longer before the newest record tells nothing about the arrivals of now."""


AT_ONCE_S = 1e-6
"""Times since 1970 have no more digits."""

Span = tuple[float, float, float]
"""From when to when so many records were created."""


class Monitor:
    """Gathers reports from the data flow's thread; the control loop takes them out, once per interval."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._lock = threading.Lock()
        self._reports: list[BatchReport] = []
        self._backlog: int | None = None
        self._told_until = math.inf  # of what was created, up to when arrivals were told

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
            operators=tuple(self._operator(o, plan, reports, interval_s, backlog) for o in self._topology.scalable),
            batches=tuple((report.rows_in, report.duration_s) for report in reports),
            rate=_rate(sum(report.rows_in for report in reports), reports, interval_s),
            backlog=backlog,
            latency=latency_of(waits),
            sources=self._sources(reports),
        )  # fmt: skip

    def _operator(
        self, operator: Operator, plan: Plan, reports: Sequence[BatchReport], interval_s: float, backlog: int | None
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
            served=rows_in if known else None,
            inputs=tuple((name, self._rows_out(name, reports)) for name in producers(self._topology, operator)),
            limit=operator.limit,
            shards=None if operator.state is None else operator.state.shards,
        )

    def _rows_out(self, name: str, reports: Sequence[BatchReport]) -> int:
        tasks = [task for report in reports for task in report.tasks if task.operator == name]
        if not tasks and self._topology[name].kind is Kind.SOURCE and len(self._topology.sources) == 1:
            return sum(report.rows_in for report in reports)
        return sum(task.rows_out for task in tasks)

    def _sources(self, reports: Sequence[BatchReport]) -> tuple[SourceSnapshot, ...]:
        """Each source with its share of what came by the second: creation times are known of all sources together."""
        arrivals = self._arrivals(reports)
        rows = [self._rows_out(source.name, reports) for source in self._topology.sources]
        total = sum(rows)
        return tuple(
            SourceSnapshot(
                source.name, own if reports else None, tuple(came * own / total for came in arrivals) if total else ()
            )
            for source, own in zip(self._topology.sources, rows, strict=True)
        )

    def _arrivals(self, reports: Sequence[BatchReport]) -> tuple[float, ...]:
        """Records/s that were created since the last time, by parts of about a second; nothing where no source says when.

        A batch tells a few quantiles of its records' creation times. The records that a quantile stands for were created
        between it and its neighbours, so they are spread over that time. What waits now was created after what was read.
        """
        spans = [span for report in reports for span in _spans(report.created)]
        if not spans:
            return ()
        until, newest = max(end for _, end, _ in spans), reports[-1]
        if newest.backlog is not None and newest.committed > until:
            spans.append((until, newest.committed, float(newest.backlog)))
            until = newest.committed
        since = self._told_until if self._told_until < until else min(begin for begin, _, _ in spans)
        self._told_until = until
        return _parts(spans, max(since, until - LONGEST_S), until)


def producers(topology: Topology, operator: Operator) -> list[str]:
    """Whom an operator reads: sources, or operators that do work; a union is those that it unites, and so on."""
    found: list[str] = []
    for name in operator.inputs:
        found += producers(topology, topology[name]) if topology[name].kind in PASSING else [name]
    return found


def _rate(rows: int, reports: Sequence[BatchReport], interval_s: float) -> float | None:
    return rows / interval_s if reports and interval_s > 0 else None


def _parts(spans: Sequence[Span], since: float, until: float) -> tuple[float, ...]:
    """Records/s in equal parts of about a second. Those created at one and the same instant, as in logs that tell whole
    seconds, came within half a second of it."""
    if until - since < AT_ONCE_S:
        return (sum(weight for _, _, weight in spans),)
    begin, end, weight = np.array(spans).T
    at_once = end - begin < AT_ONCE_S
    begin, end = np.where(at_once, np.maximum(since, begin - 0.5), begin), np.where(at_once, np.minimum(until, end + 0.5), end)
    edges = np.linspace(since, until, max(1, round(until - since)) + 1)
    came = np.clip((edges[:, None] - begin) / (end - begin), 0.0, 1.0) @ weight
    return tuple((np.diff(came) / np.diff(edges)).tolist())


def _spans(created: Sequence[tuple[float, float]]) -> list[Span]:
    """For each quantile from when to when its records were created, and how many they are."""
    times = sorted(created)
    middles = [(a + b) / 2 for (a, _), (b, _) in itertools.pairwise(times)]
    begins = [times[0][0], *middles] if times else []
    ends = [*middles, times[-1][0]] if times else []
    return [(begin, end, weight) for begin, end, (_, weight) in zip(begins, ends, times, strict=True)]


def _stage_time_ms(tasks: Sequence[TaskReport], reports: Sequence[BatchReport], name: str) -> float | None:
    """Mean time from the first start of the operator in a batch to its last end."""
    spans = []
    for report in reports:
        own = [task for task in report.tasks if task.operator == name]
        if own:
            spans.append(max(task.finished for task in own) - min(task.started for task in own))
    return 1000 * sum(spans) / len(spans) if spans else None
