"""Counts the records of generated sources: those that have arrived, those that wait, and whether more will arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from springtide.errors import DamageError
from springtide.model.endpoints import GenerateSource
from springtide.model.plan import Plan
from springtide.model.topology import Topology
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out
from springtide.spark.task import generate


class SourceActuator:
    """Passes a plan's read limit and source width to generated sources, by a file that they read."""

    def __init__(self, checkpoint: Checkpoint, topology: Topology) -> None:
        self._sources = topology.sources
        self._file = checkpoint.source_control

    def apply(self, plan: Plan) -> None:
        share = None if plan.read_limit is None else max(1, plan.read_limit // len(self._sources))
        for source in self._sources:
            own = source.source.max_records if isinstance(source.source, GenerateSource) else None
            limit = min((limit for limit in (share, own) if limit is not None), default=None)
            generate.SourceControl(limit, plan.widths.get(source.name, 1)).write(self._file(source.name))


class ArrivalSchedule:
    """The schedule of a checkpoint's generated sources."""

    def __init__(self, topology: Topology, checkpoint: Checkpoint, clock: Callable[[], float]) -> None:
        self._topology, self._checkpoint, self._clock = topology, checkpoint, clock
        self._generated = {o.name: o.source for o in topology.sources if isinstance(o.source, GenerateSource)}
        self.started: float | None = None

    def check(self) -> None:
        """Refuse batches without a schedule: a new schedule would start from the first record again."""
        if self._generated and self._start() is None and self._checkpoint.begun() >= 0:
            raise DamageError(
                self._checkpoint.schedule,
                f"is gone, which says when the schedule of source {next(iter(self._generated))!r} began, but the checkpoint"
                " has batches",
                ways_out(PUT_BACK, ANEW),
            )

    def begin(self, at_once: bool) -> None:
        """Begin the schedule at the first start of this checkpoint; later starts resume it.

        A generated source begins the schedule when Spark asks for the first batch (``generate.Start``); ``at_once`` for a run
        that only processes available records.
        """
        if self._start() is None and (at_once or not self._generated):
            self._checkpoint.remember("schedule", {"started": self._clock()})

    def _start(self) -> float | None:
        """The start of the schedule, which never changes; None before the first batch."""
        if self.started is None and (stored := self._checkpoint.recall("schedule")) is not None:
            self.started = float(stored["started"])
        return self.started

    @property
    def are_counted(self) -> bool:
        """Whether the number of arrived records is known for every source."""
        return len(self._generated) == len(self._topology.sources)

    def arrived(self) -> dict[str, int]:
        """By generated source, the number of records that have arrived."""
        started = self._start()
        elapsed_s = 0.0 if started is None else self._clock() - started
        return {name: generate.scheduled(source, elapsed_s) for name, source in self._generated.items()}

    def backlog(self, committed: Mapping[str, int]) -> int | None:
        """The number of records that have arrived and are not committed; None if it is not known for a source."""
        if not self.are_counted:
            return None
        return max(0, sum(count - committed.get(name, 0) for name, count in self.arrived().items()))

    def are_exhausted(self, committed: Mapping[str, int]) -> bool:
        """Whether every source is finite and all its records are committed."""
        totals = {source.name: total_of(source.source) for source in self._topology.sources}
        return all(total is not None and committed.get(name, 0) >= total for name, total in totals.items())


def check_committed(arrived: Mapping[str, int], committed: Mapping[str, int]) -> None:
    """Fail if a record of a generated source that had arrived when the query began is not committed."""
    for name, count in arrived.items():
        done = committed.get(name, 0)
        if done < count:
            raise RuntimeError(
                f"the query ended as if it had read everything, but only {done:,} records of source {name!r} are committed, and"
                f" {count:,} had arrived when the query began"
            )


def total_of(source: Any) -> int | None:
    """The number of records of a finite source; None if the source has no end, or none that is known."""
    if not isinstance(source, GenerateSource):
        return None
    return min((total for total in (source.limit, source.rate.total) if total is not None), default=None)
