"""The points of a run's plot: each stands for a batch, or for several successive batches if there are many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from springtide.model.report import BatchReport

POINTS = 4_096
"""The most points that are retained; even, so that all can be joined in pairs. The picture is 1,300 pixels wide, so half of
them still fill it."""


@dataclass(frozen=True)
class TracePoint:
    """A batch, or several successive batches. ``duration_s`` and ``p95_s`` are the slowest batch's, so that peaks stay visible.

    ``mean_s`` and ``p95_s`` are latencies, None if they are unknown.
    """

    started: float
    committed: float
    rows_in: int
    backlog: int | None
    slots: int
    degrees: Mapping[str, int]
    duration_s: float
    mean_s: float | None
    p95_s: float | None

    @classmethod
    def of(cls, report: BatchReport) -> TracePoint:
        latency, plan = report.latency, report.plan
        mean, p95 = (None, None) if latency is None else (latency.mean / 1000, latency.p95 / 1000)
        return cls(
            report.started, report.committed, report.rows_in, report.backlog, plan.slots, plan.degrees,
            report.duration_s, mean, p95,
        )  # fmt: skip

    def joined(self, later: TracePoint) -> TracePoint:
        """Both as a single point: the backlog and plan of the later, the times of the slower, the mean over all records."""
        return TracePoint(
            self.started, max(self.committed, later.committed), self.rows_in + later.rows_in, later.backlog, later.slots,
            later.degrees, max(self.duration_s, later.duration_s), _mean(self, later), _larger(self.p95_s, later.p95_s),
        )  # fmt: skip


class Trace:
    """The points of a run, fewer than ``POINTS``. When the limit is reached, points are joined in pairs, and each new point
    stands for twice as many batches as before, so that all points stand for the same number of batches."""

    def __init__(self) -> None:
        self._points: list[TracePoint] = []
        self._each = 1  # the number of batches of a point
        self._open: TracePoint | None = None
        self._in_open = 0

    def add(self, report: BatchReport) -> None:
        """Add the next batch."""
        point = TracePoint.of(report)
        self._open = point if self._open is None else self._open.joined(point)
        self._in_open += 1
        if self._in_open < self._each:
            return
        self._points.append(self._open)
        self._open, self._in_open = None, 0
        if len(self._points) == POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [earlier.joined(later) for earlier, later in pairs]
            self._each *= 2

    def points(self) -> list[TracePoint]:
        """All points, the oldest first."""
        return self._points if self._open is None else [*self._points, self._open]


def _mean(a: TracePoint, b: TracePoint) -> float | None:
    if a.mean_s is None or b.mean_s is None:
        return b.mean_s if a.mean_s is None else a.mean_s
    rows = a.rows_in + b.rows_in
    return (a.mean_s * a.rows_in + b.mean_s * b.rows_in) / rows if rows else max(a.mean_s, b.mean_s)


def _larger(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)
