"""A batch of any streaming query, from its progress document and from what its stages did."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

SKEW = 3.0
"""How many times the median a stage's longest task takes before the stage counts as skewed."""
GAIN = 1.05
"""Slots that would shorten a batch by less than a twentieth are of no use."""
MORE_WORK = 2.0
"""What a batch that uses all slots has of the work at which a limit was learned when the limit no longer holds. Files come in
twos at night and in hundreds by day, and Spark then packs them into as many partitions as there are slots."""


@dataclass(frozen=True)
class Stage:
    """One stage of a batch. ``longest_s`` and ``median_s`` are of its tasks; they are asked for where most of the work is."""

    tasks: int
    work_s: float
    longest_s: float | None = None
    median_s: float | None = None

    @property
    def skewed(self) -> bool:
        return bool(self.tasks > 1 and self.longest_s and self.median_s and self.longest_s >= SKEW * self.median_s)

    def span_s(self, slots: int) -> float:
        """How long it takes with so many slots: all of them work, unless one task is much longer than the others."""
        return max(self.work_s / max(1, min(slots, self.tasks)), (self.longest_s or 0.0) if self.skewed else 0.0)


@dataclass(frozen=True)
class Batch:
    """One batch. Times are in seconds, ``started`` since 1970.

    ``unread``: the records that were there when it was planned, and were left for a later one; None where the source does
    not tell. ``state_partitions``: the fewest partitions that a stateful operator of it has. ``stages``: None when Spark has
    forgotten them. ``in_jobs_s``: for how long jobs ran; the rest of the time only the driver worked. ``slots``: the fewest
    that were there while it ran, as far as somebody looked.
    """

    number: int
    started: float
    duration_s: float
    rows: int
    rows_out: int | None = None
    unread: int | None = None
    state_partitions: int | None = None
    stages: tuple[Stage, ...] | None = None
    in_jobs_s: float | None = None
    slots: int | None = None

    @property
    def ended(self) -> float:
        return self.started + self.duration_s

    @property
    def busy_s(self) -> float | None:
        return None if self.stages is None else sum(stage.work_s for stage in self.stages)

    @property
    def main_stage(self) -> Stage | None:
        """The stage with the most work."""
        return max(self.stages or (), key=lambda stage: stage.work_s, default=None)


def from_progress(document: Mapping[str, Any]) -> Batch:
    """The batch that a query's progress tells of, without its stages."""
    sources = document.get("sources") or ()
    sent = (document.get("sink") or {}).get("numOutputRows")
    durations = document.get("durationMs") or {}
    took = document.get("batchDuration", durations.get("triggerExecution", 0))
    states = [int(one.get("numShufflePartitions") or 0) for one in document.get("stateOperators") or ()]
    return Batch(
        number=int(document["batchId"]),
        started=datetime.fromisoformat(document["timestamp"]).timestamp(),
        duration_s=took / 1000,
        rows=sum(int(source.get("numInputRows") or 0) for source in sources),
        rows_out=None if sent is None or sent < 0 else int(sent),  # -1: the sink does not count
        unread=_sum([unread(source) for source in sources]),
        state_partitions=min((number for number in states if number > 0), default=None),
    )


def unread(source: Mapping[str, Any]) -> int | None:
    """What a source had when the batch was planned, beyond what the batch read: of Kafka by its offsets.

    Other sources' offsets are not numbers of records (the rate source's are seconds). Where theirs is the latest, nothing
    was left.

    >>> unread({"description": "KafkaV2[Subscribe[t]]", "endOffset": {"t": {"0": 7}}, "latestOffset": {"t": {"0": 9, "1": 3}}})
    5
    """
    end, latest = source.get("endOffset"), source.get("latestOffset")
    if latest is None:
        return None
    if latest == end:
        return 0
    if not str(source.get("description", "")).startswith("Kafka") or not isinstance(end, dict) or not isinstance(latest, dict):
        return None
    return sum(
        max(0, int(offset) - int(end.get(topic, {}).get(partition, 0)))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    )


def useful_slots(stages: Sequence[Stage]) -> int | None:
    """The fewest slots with which a batch's stages take no longer than with any number of them, but for a twentieth.

    A stage uses no more slots than it has tasks, and more slots do not shorten its longest task.

    >>> useful_slots([Stage(tasks=4, work_s=8.0), Stage(tasks=200, work_s=0.1)])
    4
    """
    widest = max((stage.tasks for stage in stages if stage.work_s > 0), default=0)
    if not widest:
        return None
    enough = GAIN * sum(stage.span_s(widest) for stage in stages)
    numbers = range(1, widest + 1)
    return numbers[bisect_left(numbers, True, key=lambda slots: sum(stage.span_s(slots) for stage in stages) <= enough)]


class Use(NamedTuple):
    """Of one batch: the slots that were of use, those that were there, and the time of its tasks."""

    useful: int
    there: int
    work_s: float


class Limit(NamedTuple):
    """The most slots that a query can use, as seen in batches of up to ``work_s``."""

    slots: int
    work_s: float


def learned_limit(before: Limit | None, seen: Sequence[Use]) -> Limit | None:
    """The most slots that the query can use, as far as that is known.

    It is known when there were more slots than were of use. Otherwise it is not: a file source makes as many partitions as
    there are slots, so the tasks of now do not tell those of later. What was learned holds until a batch can use more, or
    uses all that are there for ``MORE_WORK`` times the work.

    >>> few = learned_limit(None, [Use(2, 6, 1.0), Use(1, 6, 0.5)])
    >>> few, learned_limit(few, [Use(2, 2, 1.9)]) == few
    (Limit(slots=2, work_s=1.0), True)
    >>> learned_limit(few, [Use(2, 2, 2.0)]), learned_limit(few, [Use(3, 3, 1.0)])
    (None, None)
    """
    if not seen:
        return before
    useful, there = max(one.useful for one in seen), min(one.there for one in seen)
    if useful < there:
        work_s = max(one.work_s for one in seen)
        return Limit(useful, max(work_s, before.work_s) if before is not None and before.slots == useful else work_s)
    if before is None or useful > before.slots:
        return None
    outgrown = any(one.useful >= one.there and one.work_s >= MORE_WORK * before.work_s for one in seen)
    return None if outgrown else before


def union_s(spans: Sequence[tuple[float, float]]) -> float:
    """For how long at least one of these was going on.

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
