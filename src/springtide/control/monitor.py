"""Monitor: from the reports of batches to a snapshot of the interval."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from springtide.model.plan import Plan
from springtide.model.report import BatchReport, TaskReport, latency_of
from springtide.model.snapshot import OperatorSnapshot, Snapshot, SourceSnapshot
from springtide.model.topology import PASSING, Kind, Operator, Topology

MAX_RECORD_AGE_S = 3_600
"""Records this much older than the newest do not count as arrivals: they say nothing about the present rate."""

SIMULTANEOUS_S = 1e-6
"""Timestamps are microseconds: closer events count as simultaneous."""

Span = tuple[float, float, float]
"""The begin and end of a period, and the number of records that were created in it."""


class Monitor:
    """Collects reports from the data flow's thread; the control loop takes a snapshot of them once per interval.

    Arrivals are measured here and nowhere else. Policies read them in snapshots. At the start of a batch, before the next
    snapshot, ``estimated_rate`` estimates them from the last report alone.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._lock = threading.Lock()
        self._reports: list[BatchReport] = []
        self._backlog: int | None = None
        self._backlogs: Mapping[str, int | None] = {}  # by source, where it is counted
        self._counted: tuple[float, int] | None = None  # time and backlog of the last report in the last snapshot
        self._counted_of: Mapping[str, tuple[float, int]] = {}  # the same by source
        self._reported_until = math.inf  # arrivals before this creation time are already reported

    def add(self, report: BatchReport) -> None:
        with self._lock:
            self._reports.append(report)
            self._backlog = report.backlog
            single = {source.name: report.backlog for source in self._topology.sources}
            self._backlogs = dict(report.backlogs) or (single if len(single) == 1 else {})

    def snapshot(self, at: float, interval_s: float, plan: Plan) -> Snapshot:
        """The measurements since the last snapshot. Without a batch, rates and utilisations are unknown, not zero."""
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

    def _rows_read(self, source: str, reports: Sequence[BatchReport]) -> int:
        """The records read from a source, with those that were shed: they arrived too."""
        tasks = [task for report in reports for task in report.tasks if task.operator == source]
        if not tasks and len(self._topology.sources) == 1:
            return sum(report.rows_in for report in reports)
        return sum(task.rows_out if task.rows_in is None else task.rows_in for task in tasks)

    def _sources(self, reports: Sequence[BatchReport]) -> tuple[SourceSnapshot, ...]:
        """A report has the creation times of all sources together. So each of several sources gets a share of the arrivals, in
        proportion to the records read from it; likewise of the arrival rate, if its own backlog is not counted.
        """
        names = [source.name for source in self._topology.sources]
        if not reports:
            return tuple(SourceSnapshot(name, None, backlog=self._backlogs.get(name)) for name in names)
        rows = {name: self._rows_read(name, reports) for name in names}
        arrivals, rates, rate = self._arrivals(reports), self._arrival_rates(reports, rows), self._arrival_rate(reports)
        total = sum(rows.values())
        found = []
        for name, own in rows.items():
            share = own / total if total else 1.0 if len(names) == 1 else None
            arrived = () if share is None else tuple(part * share for part in arrivals)
            shared = None if share is None or rate is None else rate * share
            found.append(
                SourceSnapshot(name, own, arrived, rates.get(name, shared), self._backlogs.get(name), _reading_s(name, reports))
            )
        return tuple(found)

    def _arrival_rate(self, reports: Sequence[BatchReport]) -> float | None:
        """Records/s that arrived at all sources since the last report of the previous snapshot."""
        last = reports[-1]
        rate = _grown(self._counted, last.committed, last.backlog, sum(report.rows_in for report in reports))
        self._counted = None if last.backlog is None else (last.committed, last.backlog)
        return rate

    def _arrival_rates(self, reports: Sequence[BatchReport], rows: Mapping[str, int]) -> dict[str, float | None]:
        """The same of each source whose backlog is counted."""
        at, backlogs = reports[-1].committed, self._backlogs
        rates = {
            name: _grown(self._counted_of.get(name), at, backlogs[name], own) for name, own in rows.items() if name in backlogs
        }
        self._counted_of = {name: (at, backlog) for name, backlog in backlogs.items() if backlog is not None}
        return rates

    def _arrivals(self, reports: Sequence[BatchReport]) -> tuple[float, ...]:
        """Records/s that arrived since the previous snapshot, in parts of about a second; () without creation times.

        A report has a few quantiles of its records' creation times. The records that a quantile stands for were created
        between it and its neighbours, so they are spread over that time.
        """
        spans = [span for report in reports for span in _spans(report.created)]
        if not spans:
            return ()
        until = max(end for _, end, _ in spans)
        unread = _unread(reports[-1], until)
        if unread is not None:
            spans.append(unread)
            until = unread[1]
        since = self._reported_until if self._reported_until < until else min(begin for begin, _, _ in spans)
        self._reported_until = until
        return _parts(spans, max(since, until - MAX_RECORD_AGE_S), until)


def estimated_rate(report: BatchReport) -> float | None:
    """Records/s that arrive, by one report: the backlog divided by the time in which it was created."""
    unread = _unread(report, max((at for at, _ in report.created), default=math.inf))
    return unread[2] / (unread[1] - unread[0]) if unread is not None and unread[2] else None


def _reading_s(source: str, reports: Sequence[BatchReport]) -> float | None:
    """The time that tasks spent on reading a source."""
    spent = [task.busy_s for report in reports for task in report.tasks if task.operator == source and task.busy_s]
    return sum(spent) if spent else None


def _grown(before: tuple[float, int] | None, at: float, backlog: int | None, read: int) -> float | None:
    """Records/s that arrived since ``before``, a time and the backlog then: the records read, and the growth of the backlog.

    Under a backlog, the records read alone would measure the capacity of a query, and not its input.
    """
    if before is None or backlog is None or at <= before[0]:
        return None
    return max(0.0, (read + backlog - before[1]) / (at - before[0]))


def _unread(report: BatchReport, newest: float) -> Span | None:
    """The backlog at the end of a batch was created after the newest record that was read."""
    if report.backlog is None or report.committed <= newest:
        return None
    return newest, report.committed, float(report.backlog)


def producers(topology: Topology, operator: Operator) -> list[str]:
    """The sources and working operators that an operator reads; a union stands for its inputs."""
    found: list[str] = []
    for name in operator.inputs:
        found += producers(topology, topology[name]) if topology[name].kind in PASSING else [name]
    return found


def _rate(rows: int, reports: Sequence[BatchReport], interval_s: float) -> float | None:
    return rows / interval_s if reports and interval_s > 0 else None


def _parts(spans: Sequence[Span], since: float, until: float) -> tuple[float, ...]:
    """Records/s in equal parts of about a second. Records with the same creation time, as in logs with whole seconds, arrived
    within half a second of it."""
    if until - since < SIMULTANEOUS_S:
        return (sum(weight for _, _, weight in spans),)
    begin, end, weight = np.array(spans).T
    at_once = end - begin < SIMULTANEOUS_S
    begin, end = np.where(at_once, np.maximum(since, begin - 0.5), begin), np.where(at_once, np.minimum(until, end + 0.5), end)
    edges = np.linspace(since, until, max(1, round(until - since)) + 1)
    came = np.clip((edges[:, None] - begin) / (end - begin), 0.0, 1.0) @ weight
    return tuple((np.diff(came) / np.diff(edges)).tolist())


def _spans(created: Sequence[tuple[float, float]]) -> list[Span]:
    """The time in which the records of each quantile were created."""
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
