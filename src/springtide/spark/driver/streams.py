"""The driver's half of the sources that tasks read: what a batch reads of them, what waits, and whether more will come."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from springtide.connectors.files.declared import FilesSource
from springtide.errors import DamageError
from springtide.model.plan import Plan
from springtide.model.source import Enumerator, Memory, Position, Range, Source, SourceUnavailable, Waiting
from springtide.model.topology import Operator, Topology
from springtide.once import Once
from springtide.spark.driver.adoption import adopt
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.lag import unread_in
from springtide.spark.driver.modules import ship_loaded_modules
from springtide.spark.private.logs import NO_OFFSET, offsets_by_source
from springtide.spark.shared.offsets import Beginning, Planner, SourceControl, obeyed_file, offsets_of, waiting_file
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out

log = logging.getLogger("springtide.spark")

SCHEDULE, ORIGINS = "schedule", "origins"
"""The documents with the memories of sources: one for those that begin with the first batch, and one for all others."""

Parts = Mapping[str, Sequence[Sequence[Range]]]
"""By source, the ranges of each task."""


class SourceActuator:
    """Passes a plan's read limit to the sources, by a file that their planners read."""

    def __init__(self, checkpoint: Checkpoint, topology: Topology) -> None:
        self._sources, self._file = topology.sources, checkpoint.source_control

    def apply(self, plan: Plan) -> None:
        control = SourceControl(plan.read_limit, len(self._sources))
        for source in self._sources:
            control.write(self._file(source.name))


@dataclass
class Stream:
    """One source: its declaration, its number in Spark's logs, and its enumerator once it has begun."""

    name: str
    number: int
    source: Source
    enumerator: Enumerator | None = None
    unreachable: Once = field(default_factory=Once)
    planner_waits: bool = False

    def end(self, since: Position) -> Position | None:
        """Where the stream ends now; None if the source cannot be reached. The run then waits, and a warning says so."""
        assert self.enumerator is not None
        try:
            end = self.enumerator.end(since)
        except SourceUnavailable as error:
            self.waits(str(error))
            return None
        self.waits(None)
        return end

    def waits(self, why: str | None) -> None:
        """Say once that the run waits for the source, and once that it no longer does."""
        if why is not None:
            if self.unreachable.begins():
                log.warning("source %r cannot be reached (%s); the run waits for it", self.name, why)
        elif self.unreachable:
            self.unreachable.end()
            log.warning("source %r can be reached again", self.name)


class Streams:
    """The sources of a run that implement ``model.source``. A position is that of the last committed batch, by Spark's log."""

    def __init__(self, topology: Topology, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._all = {
            operator.name: Stream(operator.name, number, operator.source.stored_in(checkpoint.source_folder(operator.name)))
            for number, operator in enumerate(topology.sources)
            if isinstance(operator.source, Source)
        }
        self.are_all = len(self._all) == len(topology.sources)
        self._by_spark = {o.name: n for n, o in enumerate(topology.sources) if o.name not in self._all}
        self._progress: Callable[[], Mapping[str, Any] | None] = lambda: None
        self._read: dict[int, dict[str, Position]] = {}  # the positions of the last batches
        self._beginning = threading.Lock()  # batches run in another thread than the one that watches the query

    # Beginning

    def check(self) -> None:
        """Refuse batches without the memory of their sources: a new memory would start from the first record again. Refuse
        sources that do not fit what was read."""
        begun = self._checkpoint.begun()
        for stream in self._all.values():
            if begun >= 0 and isinstance(stream.source, FilesSource):
                self._adopt(stream, stream.source)
            memory = self._memory(stream)
            if memory is not None:
                ends = [self._positions(batch).get(stream.name) for batch in (begun - 1, begun)]
                stream.source.check_resumed(memory, [end for end in ends if end is not None])
            elif begun >= 0:
                file, _ = self._place(stream.source, stream.name)
                raise DamageError(
                    file, f"is gone, which says where source {stream.name!r} began, but the checkpoint has batches",
                    ways_out(PUT_BACK, ANEW),
                )  # fmt: skip

    def _adopt(self, stream: Stream, source: FilesSource) -> None:
        """Take over what Spark's own file source has read in a checkpoint of an earlier version."""
        memory = self._memory(stream)
        enumerator = source.enumerator(memory or source.begin())
        if adopt(enumerator, self._checkpoint.logs, stream.number, self._checkpoint.begun()) and memory is None:
            self._checkpoint.remember(ORIGINS, {**(self._checkpoint.recall(ORIGINS) or {}), stream.name: dict(source.begin())})

    def begin(self, at_once: bool) -> None:
        """Store the memories of the sources of a new checkpoint. Raises SourceUnavailable.

        A source that begins with the first batch stores its own, unless it is ``at_once``: for a run that only processes
        available records.
        """
        missing = [stream for stream in self._all.values() if self._memory(stream) is None]
        early = {stream.name: dict(stream.source.begin()) for stream in missing if not stream.source.begins_with_first_batch}
        if early:
            self._checkpoint.remember(ORIGINS, {**(self._checkpoint.recall(ORIGINS) or {}), **early})
        late = [stream for stream in missing if stream.source.begins_with_first_batch]
        if at_once and late:
            self._checkpoint.remember(SCHEDULE, late[0].source.begin())

    def follow(self, progress: Callable[[], Mapping[str, Any] | None]) -> None:
        """Take the lag of the sources that Spark reads from the progress of a query."""
        self._progress = progress

    def look(self) -> None:
        """Say whether the planners wait for their sources: between two batches the driver does not ask these itself."""
        for stream in self._all.values():
            try:
                why = waiting_file(self._checkpoint.source_control(stream.name)).read_text(encoding="utf-8")
            except OSError:
                why = None
            if why is not None or stream.planner_waits:
                stream.waits(why)
            stream.planner_waits = why is not None

    def frame(self, session: SparkSession, operator: Operator) -> DataFrame:
        """A streaming DataFrame without rows, whose offsets are those of the source."""
        source = self._all[operator.name].source
        ship_loaded_modules()
        beginning = Beginning(source, *self._place(source, operator.name))
        control = self._checkpoint.source_control(operator.name).absolute()
        waiting_file(control).unlink(missing_ok=True)  # of a planner that was killed
        offsets = offsets_of(_Planning(source, beginning, control), operator.schema)
        session.dataSource.register(offsets)
        return session.readStream.format(offsets.name()).load()

    def _place(self, source: Source, name: str) -> tuple[Path, str | None]:
        """The file with the memory of a source, and its entry there."""
        document, entry = (SCHEDULE, None) if source.begins_with_first_batch else (ORIGINS, name)
        return (self._checkpoint.own / f"{document}.json").absolute(), entry

    def _memory(self, stream: Stream) -> Memory | None:
        if stream.source.begins_with_first_batch:
            return self._checkpoint.recall(SCHEDULE)
        return (self._checkpoint.recall(ORIGINS) or {}).get(stream.name)

    def _begun(self) -> list[Stream]:
        """The streams that have an enumerator, which those have that have begun."""
        with self._beginning:
            for stream in self._all.values():
                if stream.enumerator is None and (memory := self._memory(stream)) is not None:
                    stream.enumerator = stream.source.enumerator(memory)
        return [stream for stream in self._all.values() if stream.enumerator is not None]

    # Batches

    def parts(self, batch: int, widths: Mapping[str, int]) -> Parts:
        """The ranges of a batch for each task. A replay of the batch, whose plan is the same, has the same."""
        cut, begun = {}, self._begun()
        if not begun:
            return {}
        since, until = self._logged(batch - 1) if batch else {}, self._logged(batch)
        for stream in begun:
            assert stream.enumerator is not None
            tasks = max(1, widths.get(stream.name, 1))
            begin = since.get(stream.name, stream.enumerator.first())
            cut[stream.name] = _dealt(stream.enumerator.ranges(begin, until.get(stream.name, begin), tasks), tasks)
        return cut

    def read_limit(self, latest: int | None) -> int | None:
        """The plan's read limit when the offsets of the batch that starts now were fixed; ``latest`` is the one in force since,
        for sources that do not say. If the plan changed between two sources, it is the larger of both limits."""
        obeyed = [SourceControl.at(obeyed_file(self._checkpoint.source_control(name))) for name in self._all]
        limits = [control.read_limit for control in obeyed if control is not None]
        known = [limit for limit in limits if limit is not None]
        return latest if not limits else max(known) if len(known) == len(limits) else None

    def committed(self, batch: int) -> None:
        """A batch is committed."""
        positions = self._positions(batch)
        for stream in self._begun():
            if stream.enumerator is not None and stream.name in positions:
                stream.enumerator.committed(positions[stream.name])

    def _logged(self, batch: int) -> dict[str, Position]:
        """By source, where a batch ends. Raises if that is not known: the next batch would begin at the first record."""
        positions = self._positions(batch)
        if batch not in self._read:
            file = self._checkpoint.logs.file("offsets", batch)
            raise DamageError(file, "is gone, which says where the sources were", ways_out(PUT_BACK, ANEW))
        return positions

    def _positions(self, batch: int) -> dict[str, Position]:
        """By source, where a batch ends; empty if Spark has not logged it, as before the first batch."""
        if batch in self._read:
            return self._read[batch]
        text = self._checkpoint.logs.text("offsets", batch) if batch >= 0 else None
        if text is None:
            return {}
        found = offsets_by_source(text)
        logged = {stream.name: found.get(stream.number, NO_OFFSET) for stream in self._all.values()}
        positions = {name: json.loads(offset) for name, offset in logged.items() if offset != NO_OFFSET}
        self._read = {number: known for number, known in self._read.items() if number >= batch - 1} | {batch: positions}
        return positions

    # What waits

    def backlogs(self, batch: int) -> dict[str, int | None]:
        """By source, the number of records that wait behind a batch; None if that is unknown now."""
        return {name: None if waits is None else waits.records for name, waits in self.waiting(batch).items()}

    def waiting(self, batch: int) -> dict[str, Waiting | None]:
        """By source, what waits behind a batch; None if that is unknown now."""
        found: dict[str, Waiting | None] = dict.fromkeys(self._all)
        found |= {name: None if lag is None else Waiting(lag) for name, lag in self._lags(batch).items()}
        for stream, position, end in self._ends(batch):
            assert stream.enumerator is not None
            found[stream.name] = None if end is None else stream.enumerator.waiting(position, end)
        return found

    def _lags(self, batch: int) -> dict[str, int | None]:
        """The same of the sources that Spark reads, as far as the connector reported it when the last batch was planned."""
        text, progress = self._checkpoint.logs.text("offsets", batch), self._progress() if self._by_spark else None
        if text is None or progress is None:
            return dict.fromkeys(self._by_spark)
        ends, sources = offsets_by_source(text), progress.get("sources", ())
        return {
            name: unread_in(sources[number], as_json(ends.get(number, NO_OFFSET))) if number < len(sources) else None
            for name, number in self._by_spark.items()
        }

    def ends(self, batch: int) -> dict[str, Position]:
        """By source, where the stream ends now, for a run that has read up to a batch."""
        return {stream.name: end for stream, _, end in self._ends(batch) if end is not None}

    def _ends(self, batch: int) -> list[tuple[Stream, Position, Position | None]]:
        positions, found = self._positions(batch), []
        for stream in self._begun():
            assert stream.enumerator is not None
            position = positions.get(stream.name, stream.enumerator.first())
            found.append((stream, position, stream.end(position)))
        return found

    def check_read(self, ends: Mapping[str, Position], batch: int) -> None:
        """Fail if records before these ends are not in any batch up to this one."""
        positions = self._positions(batch)
        for stream in self._begun():
            if stream.name not in ends or stream.enumerator is None:
                continue
            left = stream.enumerator.count(positions.get(stream.name, stream.enumerator.first()), ends[stream.name])
            if left:
                raise RuntimeError(
                    f"the query ended as if it had read everything, but {left:,} records of source {stream.name!r} are not"
                    " committed that had arrived when the query began"
                )

    def are_exhausted(self, batch: int) -> bool:
        """Whether every source has ended for good, and all its records are in batches up to this one."""
        if not self.are_all:
            return False
        positions, begun = self._positions(batch), self._begun()
        return len(begun) == len(self._all) and all(
            stream.enumerator is not None and stream.name in positions and stream.enumerator.exhausted(positions[stream.name])
            for stream in begun
        )

    def close(self) -> None:
        for stream in self._all.values():
            if stream.enumerator is not None:
                stream.enumerator.close()
                stream.enumerator = None


@dataclass(frozen=True)
class _Planning:
    """Makes the planner of a source in Spark's process for offsets."""

    source: Source
    beginning: Callable[[], Memory]
    control: Path

    def __call__(self) -> Planner:
        return Planner(self.source, self.beginning, self.control)


def as_json(offset: str) -> Any:
    """The offset of a source of Spark's; usually it is JSON, and otherwise it is compared as text."""
    try:
        return json.loads(offset)
    except ValueError:
        return offset


def _dealt(ranges: Sequence[Range], tasks: int) -> list[list[Any]]:
    """Ranges for each of at most so many tasks, in order."""
    shares = min(tasks, len(ranges))
    return [list(ranges[len(ranges) * i // shares : len(ranges) * (i + 1) // shares]) for i in range(shares)]
