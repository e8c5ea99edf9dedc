"""How many records generated sources have: those that came, those that wait, and whether more will come."""

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
    """Carries a plan's read limit and source width to generated sources, by a file that they read."""

    def __init__(self, checkpoint: Checkpoint, topology: Topology) -> None:
        self._sources = topology.sources
        self._file = checkpoint.source_control

    def apply(self, plan: Plan) -> None:
        share = None if plan.read_limit is None else max(1, plan.read_limit // len(self._sources))
        for source in self._sources:
            own = source.source.max_records if isinstance(source.source, GenerateSource) else None
            limit = min((most for most in (share, own) if most is not None), default=None)
            generate.SourceControl(limit, plan.widths.get(source.name, 1)).write(self._file(source.name))


class Arrivals:
    """The schedule of a checkpoint's generated sources."""

    def __init__(self, topology: Topology, checkpoint: Checkpoint, clock: Callable[[], float]) -> None:
        self._topology, self._checkpoint, self._clock = topology, checkpoint, clock
        self._generated = {one.name: one.source for one in topology.sources if isinstance(one.source, GenerateSource)}
        self.started: float | None = None

    def check(self) -> None:
        """Refuse batches without a schedule: a new one would hold records back for as long as the checkpoint is old."""
        if self._generated and self._start() is None and self._checkpoint.begun() >= 0:
            raise DamageError(
                self._checkpoint.schedule,
                f"is gone, which says when the schedule of source {next(iter(self._generated))!r} began, but the checkpoint"
                " has batches",
                ways_out(PUT_BACK, ANEW),
            )

    def begin(self, at_once: bool) -> None:
        """Begin the schedule at the first start of this checkpoint; later starts go on with it.

        A generated source begins it, when Spark asks for the first batch (``generate.Start``); ``at_once`` for a run that is to
        process what is there now.
        """
        if self._start() is None and (at_once or not self._generated):
            self._checkpoint.remember("schedule", {"started": self._clock()})

    def _start(self) -> float | None:
        """When the schedule began, for ever; None before the first batch."""
        if self.started is None and (stored := self._checkpoint.recall("schedule")) is not None:
            self.started = float(stored["started"])
        return self.started

    @property
    def are_counted(self) -> bool:
        """Whether every source says how many of its records have come."""
        return len(self._generated) == len(self._topology.sources)

    def came(self) -> dict[str, int]:
        """By generated source, how many records have come."""
        started = self._start()
        elapsed_s = 0.0 if started is None else self._clock() - started
        return {name: generate.scheduled(source, elapsed_s) for name, source in self._generated.items()}

    def backlog(self, committed: Mapping[str, int]) -> int | None:
        """Records that came and are not committed; None where a source cannot tell."""
        if not self.are_counted:
            return None
        return max(0, sum(count - committed.get(name, 0) for name, count in self.came().items()))

    def are_exhausted(self, committed: Mapping[str, int]) -> bool:
        """Whether every source was generated to its end and all of it is committed."""
        totals = {source.name: total_of(source.source) for source in self._topology.sources}
        return all(total is not None and committed.get(name, 0) >= total for name, total in totals.items())


def check_committed(came: Mapping[str, int], committed: Mapping[str, int]) -> None:
    """Fail if records of a generated source wait that had come when the query began."""
    for name, count in came.items():
        done = committed.get(name, 0)
        if done < count:
            raise RuntimeError(
                f"the query ended as if it had read all, but of source {name!r} {done:,} records are committed, and"
                f" {count:,} had come when it began"
            )


def total_of(source: Any) -> int | None:
    """How many records a source will ever bring; None when that is not known."""
    if not isinstance(source, GenerateSource):
        return None
    known = [total for total in (source.limit, source.rate.total) if total is not None]
    return min(known, default=None)
