"""A run's totals, from its batches: the document that ``springtide run --json`` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from springtide.model.report import BatchReport, Latency, held, latency_of, mean_max
from springtide.model.topology import AUTO, DEAD_LETTERS, Operator, Topology


def summarise(topology: Topology, policy: str, grouping: str, reports: Sequence[BatchReport], run_dir: str) -> dict[str, Any]:
    """What a run did in all. What was not measured is None, never zero.

    Dead letters are counted by ``rows_failed`` and not among the sinks, so that ``rows_out`` is the sum of
    ``sinks``. ``throughput_rows_s`` is ``rows_in`` over the time from the first start to the last commit.
    """
    batches = sorted(reports, key=lambda report: (report.started, report.batch))
    duration = batches[-1].committed - batches[0].started if batches else None
    rows_in = sum(report.rows_in for report in batches)
    sinks = _sinks(topology, batches)
    return {
        "topology": topology.name,
        "policy": policy,
        "grouping": grouping,
        "batches": len(batches),
        "rows_in": rows_in,
        "rows_out": sum(sinks.values()),
        "rows_failed": sum(report.rows_failed for report in batches),
        "rows_shed": sum(report.rows_shed for report in batches),
        "latency_ms": _latency(batches),
        "throughput_rows_s": round(rows_in / duration, 3) if duration else None,
        "replicas": _mean_max(batches, lambda report: sum(report.plan.degrees.values())),
        "slot_seconds": round(sum(n * t for n, t in held(batches, lambda report: report.plan.slots)), 3),
        "reconfigurations": sum(a.plan.degrees != b.plan.degrees for a, b in pairwise(batches)),
        "sinks": sinks,
        "operators": [_operator(operator, grouping, batches) for operator in topology.scalable],
        "run_dir": run_dir,
        "duration_s": None if duration is None else round(duration, 3),
        "backlog_end": batches[-1].backlog if batches else None,
    }


def _sinks(topology: Topology, batches: Sequence[BatchReport]) -> dict[str, int]:
    rows = {sink.name: 0 for sink in topology.sinks}
    for report in batches:
        for name, count in report.sinks.items():
            if name != DEAD_LETTERS:
                rows[name] = rows.get(name, 0) + count
    return rows


def _latency(batches: Sequence[BatchReport]) -> dict[str, float] | None:
    """Of all records of the run: batches' means would give a batch of ten as much say as one of a million."""
    waits = [(report.committed - at, weight) for report in batches for at, weight in report.created if weight > 0]
    return as_json(latency_of(waits))


def as_json(latency: Latency | None) -> dict[str, float] | None:
    """A latency as the ``latency_ms`` of every document."""
    if latency is None:
        return None
    return {"mean": latency.mean, "p50": latency.p50, "p95": latency.p95, "p99": latency.p99}


def _mean_max(batches: Sequence[BatchReport], value: Callable[[BatchReport], int | None]) -> dict[str, float | None]:
    return {name: None if number is None else round(number, 3) for name, number in mean_max(held(batches, value)).items()}


def _operator(operator: Operator, grouping: str, batches: Sequence[BatchReport]) -> dict[str, Any]:
    name = operator.name
    rows_in, rows_out = _rows(name, batches)
    return {
        "name": name,
        "grouping": grouping if operator.grouping == AUTO else operator.grouping or "forward",
        "degree": _mean_max(batches, lambda report: report.plan.degrees.get(name)),
        "width": _mean_max(batches, lambda report: report.plan.widths.get(name)),
        "rows_in": rows_in,
        "rows_out": rows_out,
    }


def _rows(name: str, batches: Sequence[BatchReport]) -> tuple[int | None, int | None]:
    """What an operator's tasks counted. A sink that ran as no task of ours is counted by its receipts."""
    tasks = [task for report in batches for task in report.tasks if task.operator == name]
    if tasks:
        counted = [task.rows_in for task in tasks if task.rows_in is not None]
        return sum(counted) if counted else None, sum(task.rows_out for task in tasks)
    receipts = [report.sinks[name] for report in batches if name in report.sinks]
    if receipts:
        return sum(receipts), sum(receipts)
    return (None, None) if any(report.rows_in for report in batches) else (0, 0)
