"""The tasks that read a source: ranges in, blocks out. The records go to the operators without passing the JVM."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.errors import RunError
from springtide.model.source import Reader, Records, SourceFailed
from springtide.spark.shared.program import Node
from springtide.spark.shared.shipping import Shipment
from springtide.spark.shared.stage_plan import StagePlan
from springtide.spark.task import context, created
from springtide.spark.task.account import Stop
from springtide.spark.task.chunk import Chunk
from springtide.spark.task.task import Task


@dataclass(frozen=True, eq=False)
class ReadStage:
    """The function that Spark runs for each partition of a source. ``source``: the number of its operator."""

    shipment: Shipment
    plan: StagePlan
    source: int

    def __call__(self, split: int, elements: Iterable[bytes]) -> Iterator[bytes]:
        program = self.shipment.unpacked()
        ranges = [part for element in elements for part in json.loads(bytes(element))]
        if not ranges:
            return
        batch, attempt = context.task_context()
        task = Task(program, self.plan, batch, attempt, split, gate=1 + self.source)
        with task.running():
            yield from self._run(task, program.nodes[self.source], ranges)

    def _run(self, task: Task, node: Node, ranges: Iterable[object]) -> Iterator[bytes]:
        entrance = _Entrance(task, node, self.plan.shed_before)
        try:
            for part in ranges:
                entrance.read(part)
        except Stop as stop:
            yield from task.stop(stop)
        else:
            entrance.close()
            yield from task.finish()


class _Entrance:
    """Where the records of a source enter a task."""

    def __init__(self, task: Task, node: Node, shed_before: float | None) -> None:
        self._task, self._node, self._account = task, node, task.account
        self._shed_before = None if shed_before is None else round(shed_before * 1e6)
        self._tally = task.account.tally(node)
        self._created: list[npt.NDArray[np.int64]] = []

    def read(self, part: object) -> None:
        """Read a range, and pass its records on. The time of reading is the source's work."""
        begin = time.perf_counter()
        for records in self._records(part):
            self._tally.busy_s += time.perf_counter() - begin
            self._enter(records)
            begin = time.perf_counter()
        self._tally.busy_s += time.perf_counter() - begin

    def _records(self, part: object) -> Iterator[Records]:
        try:
            yield from self._node.reader.read(part)  # type: ignore[arg-type]
        except RunError as error:
            raise SourceFailed(error) from None

    def _enter(self, records: Records) -> None:
        self._tally.rows_in += len(records) + len(records.rejected)
        self._account.lost += records.lost
        for rejected in records.rejected:
            raw = rejected.raw.decode(errors="backslashreplace") if isinstance(rejected.raw, bytes) else rejected.raw
            self._account.failed(self._node, {**rejected.place, "raw": raw}, rejected.error)
        records = self._young(records)
        if records.created is not None and len(records):
            self._created.append(records.created)
        chunk = self._chunk(records)
        self._tally.rows_out += len(chunk)
        self._tally.finished = time.time()
        self._task.emit(self._node, chunk)

    def _young(self, records: Records) -> Records:
        """The records without those that are shed because they are too old."""
        if self._shed_before is None or records.created is None:
            return records
        young = records.created >= self._shed_before
        self._account.shed += len(young) - int(young.sum())
        values = records.values
        left = values.filter(pa.array(young)) if isinstance(values, pa.RecordBatch) else list(compress(values, young))
        numbers = None if records.numbers is None else records.numbers[young]
        return Records(left, records.created[young], origin=records.origin, numbers=numbers)

    def _chunk(self, records: Records) -> Chunk:
        node = self._node
        assert node.schema is not None
        if isinstance(records.values, pa.RecordBatch):
            return Chunk(node.schema, batch=records.values)

        def misfit(record: object, error: Exception) -> None:
            place = _place(node.reader, records, record)
            self._account.misfit(node, {**place, "record": record} if place else record, error)

        return Chunk(node.schema, records=records.values, misfit=misfit)

    def close(self) -> None:
        """Report the creation times."""
        if self._created:
            self._account.created += created.representatives(np.concatenate(self._created))


def _place(reader: Reader, records: Records, record: object) -> Mapping[str, object]:
    """Where a record comes from, for its dead letter; nothing if its source gives records no identity."""
    if records.numbers is None:
        return {}
    index = next((index for index, value in enumerate(records.values) if value is record), None)
    return {} if index is None else reader.place(records.origin, int(records.numbers[index]))
