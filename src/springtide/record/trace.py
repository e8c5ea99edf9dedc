"""What a plot shows of a run: one point for each batch, or for a stretch of batches when they are many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from springtide.model.report import BatchReport

POINTS = 4_096
"""The most points that are retained; even, so that neighbours can be joined. The picture is 1,300 dots wide, so half of them
still fill it."""


@dataclass(frozen=True)
class Point:
    """One batch, or several in a row. ``duration_s`` and ``p95_s`` are those of the slowest batch, so that peaks stay visible.

    ``mean_s`` and ``p95_s`` are latencies, None where they are not known.
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
    def of(cls, report: BatchReport) -> Point:
        latency, plan = report.latency, report.plan
        mean, p95 = (None, None) if latency is None else (latency.mean / 1000, latency.p95 / 1000)
        return cls(
            report.started, report.committed, report.rows_in, report.backlog, plan.slots, plan.degrees,
            report.duration_s, mean, p95,
        )  # fmt: skip

    def joined(self, later: Point) -> Point:
        """Both as one point: the later one's backlog and plan, the slower one's times, the mean over the records of both."""
        return Point(
            self.started, max(self.committed, later.committed), self.rows_in + later.rows_in, later.backlog, later.slots,
            later.degrees, max(self.duration_s, later.duration_s), _mean(self, later), _larger(self.p95_s, later.p95_s),
        )  # fmt: skip


class Trace:
    """The points of a run, at most ``POINTS`` of them. When there are as many, neighbours are joined, and each new point is of
    twice as many batches as before, so that all points stand for equally many."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._each = 1  # batches that one point stands for
        self._open: Point | None = None
        self._in_open = 0

    def add(self, report: BatchReport) -> None:
        """Take in the next batch."""
        point = Point.of(report)
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

    def points(self) -> list[Point]:
        """All points, the oldest first."""
        return self._points if self._open is None else [*self._points, self._open]


def _mean(one: Point, other: Point) -> float | None:
    if one.mean_s is None or other.mean_s is None:
        return other.mean_s if one.mean_s is None else one.mean_s
    rows = one.rows_in + other.rows_in
    return (one.mean_s * one.rows_in + other.mean_s * other.rows_in) / rows if rows else max(one.mean_s, other.mean_s)


def _larger(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)
