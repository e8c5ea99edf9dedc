"""A run's totals, from its batches: the document that ``springtide run --json`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any

from springtide.model.report import BatchReport, Latency, TimeWeightedMean, Violations
from springtide.model.sketch import Sketch
from springtide.model.topology import AUTO, DEAD_LETTERS, Operator, Topology

QUANTILES = (0.5, 0.95, 0.99)


def summarise(topology: Topology, policy: str, grouping: str, reports: Iterable[BatchReport], run_dir: str) -> dict[str, Any]:
    """The totals of reports that are in memory, in any order."""
    totals = Totals(topology, grouping)
    for report in sorted(reports, key=lambda report: (report.started, report.batch)):
        totals.add(report)
    return totals.document(policy, run_dir)


@dataclass
class _Plans:
    """Means over the plans. A plan counts until the next batch starts, because slots that wait between batches are paid for."""

    operators: tuple[str, ...]
    replicas: TimeWeightedMean = field(default_factory=TimeWeightedMean)
    slots: TimeWeightedMean = field(default_factory=TimeWeightedMean)
    degrees: dict[str, TimeWeightedMean] = field(default_factory=dict)
    widths: dict[str, TimeWeightedMean] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.operators:
            self.degrees.setdefault(name, TimeWeightedMean())
            self.widths.setdefault(name, TimeWeightedMean())

    def add(self, report: BatchReport, until: float) -> None:
        """Count a batch whose plan was in force until then."""
        plan, seconds = report.plan, until - report.started
        self.replicas.add(sum(plan.degrees.values()), seconds)
        self.slots.add(plan.slots, seconds)
        for means, numbers in ((self.degrees, plan.degrees), (self.widths, plan.widths)):
            for name in self.operators:
                if (number := numbers.get(name)) is not None:
                    means[name].add(number, seconds)

    def copy(self) -> _Plans:
        degrees, widths = ({name: copy(mean) for name, mean in means.items()} for means in (self.degrees, self.widths))
        return _Plans(self.operators, copy(self.replicas), copy(self.slots), degrees, widths)


@dataclass
class _Rows:
    """The rows that an operator's tasks counted; None if no task counts them."""

    rows_in: int | None = None
    rows_out: int | None = None


class Totals:
    """The totals of a run, updated batch by batch in the order of their starts, in memory that does not grow with the batches.

    ``target_s``: the latency above which a batch violates the target.
    """

    def __init__(self, topology: Topology, grouping: str, target_s: float | None = None) -> None:
        self._topology, self._grouping = topology, grouping
        self._batches = self._rows_in = self._rows_failed = self._rows_shed = self._rows_lost = self._reconfigurations = 0
        self._sinks = {sink.name: 0 for sink in topology.sinks}
        self._receipts: dict[str, int] = {}
        self._rows = {operator.name: _Rows() for operator in topology.scalable}
        self._plans = _Plans(tuple(self._rows))  # without the last batch, whose plan is still in force
        self._latencies = Sketch()
        self._violations = None if target_s is None else Violations(target_s)
        self._first_start = 0.0
        self._last: BatchReport | None = None

    def add(self, report: BatchReport) -> None:
        """Count the next batch."""
        if self._last is None:
            self._first_start = report.started
        else:
            self._plans.add(self._last, report.started)
            self._reconfigurations += self._last.plan.degrees != report.plan.degrees
        self._last = report
        self._batches += 1
        self._rows_in += report.rows_in
        self._rows_failed += report.rows_failed
        self._rows_shed += report.rows_shed
        self._rows_lost += report.rows_lost
        self._count_rows(report)
        for at, weight in report.created:
            if weight > 0:
                self._latencies.add(report.committed - at, weight)
        if self._violations is not None:
            self._violations.add(report)

    def _count_rows(self, report: BatchReport) -> None:
        for task in report.tasks:
            rows = self._rows.get(task.operator)
            if rows is not None:
                rows.rows_out = (rows.rows_out or 0) + task.rows_out
                if task.rows_in is not None:
                    rows.rows_in = (rows.rows_in or 0) + task.rows_in
        for name, count in report.sinks.items():
            self._receipts[name] = self._receipts.get(name, 0) + count

    @property
    def violation_ratio(self) -> float | None:
        """The share of the time in which the latency was above the target; None without a target or measurements."""
        return None if self._violations is None else self._violations.ratio

    def document(self, policy: str, run_dir: str) -> dict[str, Any]:
        """The totals up to the last batch. A value that was not measured is None, never zero.

        Dead letters are counted by ``rows_failed`` and not among the sinks, so that ``rows_out`` is the sum of ``sinks``.
        ``throughput_rows_s`` is ``rows_in`` over the time from the first start to the last commit. The mean latency is exact,
        its quantiles are within ``springtide.model.sketch.ACCURACY``, 1 %.
        """
        last, plans = self._last, self._plans.copy()
        if last is not None:
            plans.add(last, last.committed)
        duration = None if last is None else last.committed - self._first_start
        sinks = self._sinks | {name: rows for name, rows in self._receipts.items() if name != DEAD_LETTERS}
        return {
            "topology": self._topology.name,
            "policy": policy,
            "grouping": self._grouping,
            "batches": self._batches,
            "rows_in": self._rows_in,
            "rows_out": sum(sinks.values()),
            "rows_failed": self._rows_failed,
            "rows_shed": self._rows_shed,
            "rows_lost": self._rows_lost,
            "latency_ms": as_json(_latency(self._latencies)),
            "throughput_rows_s": round(self._rows_in / duration, 3) if duration else None,
            "replicas": _rounded(plans.replicas),
            "slot_seconds": round(plans.slots.product, 3),
            "reconfigurations": self._reconfigurations,
            "sinks": sinks,
            "operators": [self._operator(operator, plans) for operator in self._topology.scalable],
            "run_dir": run_dir,
            "duration_s": None if duration is None else round(duration, 3),
            "backlog_end": None if last is None else last.backlog,
        }

    def _operator(self, operator: Operator, plans: _Plans) -> dict[str, Any]:
        name = operator.name
        return {
            "name": name,
            "grouping": self._grouping if operator.grouping == AUTO else operator.grouping or "forward",
            "degree": _rounded(plans.degrees[name]),
            "width": _rounded(plans.widths[name]),
            **asdict(self._rows_of(name)),
        }

    def _rows_of(self, name: str) -> _Rows:
        """The rows that its tasks counted. A sink that runs outside Springtide's tasks is counted by its receipts."""
        counted, receipt = self._rows[name], self._receipts.get(name)
        if counted.rows_out is not None:
            return counted
        if receipt is not None:
            return _Rows(receipt, receipt)
        return _Rows() if self._rows_in else _Rows(0, 0)


def _latency(waits: Sketch) -> Latency | None:
    """The latency over all records of the run. A mean of batches would give ten records the weight of a million."""
    if not waits.weight:
        return None
    return Latency(round(waits.mean * 1000, 3), *(round(waits.quantile(share) * 1000, 3) for share in QUANTILES))


def as_json(latency: Latency | None) -> dict[str, float] | None:
    """A latency as the ``latency_ms`` of every document."""
    return None if latency is None else asdict(latency)


def _rounded(mean: TimeWeightedMean) -> Mapping[str, float | None]:
    return {name: None if number is None else round(number, 3) for name, number in mean.document().items()}
