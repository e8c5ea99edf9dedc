"""A batch of any streaming query, from its progress document and its stages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from springtide.spark.driver.lag import unread_in

SKEW = 3.0
"""A stage is skewed if its longest task takes at least this many times the median."""
GAIN = 1.05
"""Slots that shorten a batch by less than a twentieth are not useful."""
MORE_WORK = 2.0
"""A batch that uses all slots for at least this many times the work of a learned limit ends the limit. There may be two files
at night and hundreds by day, which Spark then packs into as many partitions as there are slots."""


@dataclass(frozen=True)
class BatchStage:
    """One stage of a batch. ``longest_s`` and ``median_s``: of its tasks; known only for the stage with the most work."""

    tasks: int
    work_s: float
    longest_s: float | None = None
    median_s: float | None = None

    @property
    def skewed(self) -> bool:
        return bool(self.tasks > 1 and self.longest_s and self.median_s and self.longest_s >= SKEW * self.median_s)

    def span_s(self, slots: int) -> float:
        """Its duration with this many slots, which all work unless one task is much longer than the others."""
        return max(self.work_s / max(1, min(slots, self.tasks)), (self.longest_s or 0.0) if self.skewed else 0.0)


@dataclass(frozen=True)
class QueryBatch:
    """One batch. Times are in seconds, ``started`` since 1970.

    ``unread``: the records that were available when it was planned but left for later batches; None if the source does not
    report them. ``state_partitions``: the fewest partitions of any of its stateful operators. ``stages``: None if Spark has
    forgotten them. ``in_jobs_s``: the time in which jobs ran; in the rest only the driver worked. ``slots``: the fewest that
    were observed while it ran.
    """

    number: int
    started: float
    duration_s: float
    rows: int
    rows_out: int | None = None
    unread: int | None = None
    state_partitions: int | None = None
    stages: tuple[BatchStage, ...] | None = None
    in_jobs_s: float | None = None
    slots: int | None = None

    @property
    def ended(self) -> float:
        return self.started + self.duration_s

    @property
    def busy_s(self) -> float | None:
        return None if self.stages is None else sum(stage.work_s for stage in self.stages)

    @property
    def main_stage(self) -> BatchStage | None:
        """The stage with the most work."""
        return max(self.stages or (), key=lambda stage: stage.work_s, default=None)


def from_progress(document: Mapping[str, Any]) -> QueryBatch:
    """The batch in a query's progress document, without its stages."""
    sources = document.get("sources") or ()
    sent = (document.get("sink") or {}).get("numOutputRows")
    durations = document.get("durationMs") or {}
    took = document.get("batchDuration", durations.get("triggerExecution", 0))
    states = [int(operator.get("numShufflePartitions") or 0) for operator in document.get("stateOperators") or ()]
    return QueryBatch(
        number=int(document["batchId"]),
        started=datetime.fromisoformat(document["timestamp"]).timestamp(),
        duration_s=took / 1000,
        rows=sum(int(source.get("numInputRows") or 0) for source in sources),
        rows_out=None if sent is None or sent < 0 else int(sent),  # -1: the sink does not count
        unread=_sum([unread_in(source) for source in sources]),
        state_partitions=min((number for number in states if number > 0), default=None),
    )


def useful_slots(stages: Sequence[BatchStage]) -> int | None:
    """The fewest slots with which a batch's stages take at most a twentieth longer than with any number of slots.

    A stage uses at most one slot a task, and more slots do not shorten its longest task.

    >>> useful_slots([BatchStage(tasks=4, work_s=8.0), BatchStage(tasks=200, work_s=0.1)])
    4
    """
    widest = max((stage.tasks for stage in stages if stage.work_s > 0), default=0)
    if not widest:
        return None
    enough = GAIN * sum(stage.span_s(widest) for stage in stages)
    numbers = range(1, widest + 1)
    return numbers[bisect_left(numbers, True, key=lambda slots: sum(stage.span_s(slots) for stage in stages) <= enough)]


class Use(NamedTuple):
    """Of one batch: the useful slots, the available slots, and the time of its tasks."""

    useful: int
    there: int
    work_s: float


class Limit(NamedTuple):
    """The most slots that a query can use, learned from batches of up to ``work_s``."""

    slots: int
    work_s: float


def learned_limit(before: Limit | None, seen: Sequence[Use]) -> Limit | None:
    """The most slots that the query can use, if known.

    It is known if there were more slots than useful ones. Otherwise it is not: a file source makes as many partitions as there
    are slots, so that later batches may have more tasks. A limit holds until a batch can use more slots, or uses all available
    slots for ``MORE_WORK`` times the work.

    >>> few = learned_limit(None, [Use(2, 6, 1.0), Use(1, 6, 0.5)])
    >>> few, learned_limit(few, [Use(2, 2, 1.9)]) == few
    (Limit(slots=2, work_s=1.0), True)
    >>> learned_limit(few, [Use(2, 2, 2.0)]), learned_limit(few, [Use(3, 3, 1.0)])
    (None, None)
    """
    if not seen:
        return before
    useful, there = max(use.useful for use in seen), min(use.there for use in seen)
    if useful < there:
        work_s = max(use.work_s for use in seen)
        return Limit(useful, max(work_s, before.work_s) if before is not None and before.slots == useful else work_s)
    if before is None or useful > before.slots:
        return None
    outgrown = any(use.useful >= use.there and use.work_s >= MORE_WORK * before.work_s for use in seen)
    return None if outgrown else before


def union_s(spans: Sequence[tuple[float, float]]) -> float:
    """The time that these spans cover together.

    >>> union_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None
