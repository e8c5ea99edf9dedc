"""Generated streams as a Python data source of Spark, with exact offsets: ``{"next": index}``.

The *schedule* lives in one process on the driver's machine: it knows the rate, how many records are available, and how a
batch is split into partitions. The tasks make the *records*: each task gets a range of indices and only those steps of the
rate that date them, so a rate may have a million steps.

A record depends only on the seed, its index and its creation time (see ``model.generated``), and the creation time on the
index and the schedule's start, which the checkpoint stores. So a batch that is read again, after a lost task or a restart, is
the same.
"""
# ruff: noqa: N802 - Spark names the methods of a reader

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from springtide.errors import OptionError, RecordError
from springtide.model.endpoints import GenerateSource
from springtide.model.generated import draws
from springtide.model.rate import Rate, Steps
from springtide.spark.shared.durable import read_json, write_atomic
from springtide.spark.shared.program import CREATED
from springtide.spark.task.chunk import to_batch

NAME = "springtide-generate"
BATCH_ROWS = 10_000
"""Limits the rows of an Arrow batch that a task yields."""
FIRST_S = 0.1
"""The first batch has the records of this time: Spark always makes a first batch, which would be empty without a wait."""
_NO_LIMIT = 2**63 - 1


def scheduled(spec: GenerateSource, seconds: float) -> int:
    """The number of records ``seconds`` after the schedule's start: those read and the backlog."""
    count = spec.rate.count(seconds)
    return count if spec.limit is None else min(count, spec.limit)


@dataclass
class Start:
    """The time of the schedule's start in seconds since 1970: when Spark first asks for records. It never changes.

    Spark first asks when the first batch can run, so a slow start leaves no backlog. ``file`` stores the time for restarts,
    other sources and the driver. It is written before Spark logs a batch.
    """

    file: Path
    clock: Callable[[], float] = time.time
    _at: float | None = None

    def __call__(self) -> float:
        if self._at is None:
            begins = not self.file.exists()
            if begins:
                write_atomic(self.file, {"started": self.clock()})
            self._at = float((read_json(self.file) or {})["started"])
            if begins:
                time.sleep(FIRST_S)
        return self._at


@dataclass(frozen=True)
class SourceControl:
    """The driver's settings for a running source: the read limit of a batch (None: no limit), and its partitions."""

    read_limit: int | None = None
    partitions: int = 1

    def write(self, path: str | os.PathLike[str]) -> None:
        """Replace the file atomically; the settings apply from the next batch on."""
        replace_file(Path(path), json.dumps(asdict(self)).encode())

    @classmethod
    def parse(cls, text: str) -> SourceControl:
        """Raises ValueError for a torn or invalid document."""
        document = json.loads(text)
        if not isinstance(document, dict) or not document.keys() >= {"read_limit", "partitions"}:
            raise ValueError(f"not a control document: {text!r}")
        limit, partitions = document["read_limit"], document["partitions"]
        if not (limit is None or (type(limit) is int and limit >= 0)):
            raise ValueError(f"read_limit={limit!r} is neither null nor a number of records")
        if type(partitions) is not int or partitions < 1:
            raise ValueError(f"partitions={partitions!r} is not 1 or more")
        return cls(limit, partitions)


class IndexRange(InputPartition):  # type: ignore[misc]
    """The records ``first`` to ``last - 1`` of one task, with the steps of the rate that date them, counted from ``t0``."""

    def __init__(self, first: int, last: int, steps: Steps, t0: float) -> None:
        self.first, self.last, self.steps, self.t0 = first, last, steps, t0

    def __repr__(self) -> str:
        return f"IndexRange({self.first}, {self.last})"


@dataclass
class Schedule:
    """The driver's half: the available records, and the split of a batch."""

    spec: GenerateSource
    start: Callable[[], float]
    control: Path
    clock: Callable[[], float] = time.time
    _control: SourceControl = field(default_factory=SourceControl)
    _seen: int = 0
    _target: int | None = None
    _cut: tuple[int, int, tuple[IndexRange, ...]] = (0, 0, ())

    def available(self) -> int:
        """The number of records so far. It never falls, even if the clock is set back."""
        if self._target is not None:
            return self._target
        t0 = self.start()
        self._seen = max(self._seen, scheduled(self.spec, self.clock() - t0))
        return self._seen

    def freeze(self) -> None:
        """Make no further records available."""
        self._target = self.available()

    def latest(self, start: int, limit: int | None) -> int:
        """The end of a batch from ``start`` with at most ``limit`` records; None: no limit."""
        ready = self.available() - start
        return start + max(0, ready if limit is None else min(ready, limit))

    def ranges(self, start: int, end: int) -> tuple[IndexRange, ...]:
        """The records of a batch in a range for each of the plan's partitions, without empty ranges.

        Spark may ask several times for the same batch, and must get the same answer even if the plan has changed.
        """
        if self._cut[:2] != (start, end):
            parts = min(self.current_control().partitions, end - start)
            edges = [start + (end - start) * i // parts for i in range(parts + 1)] if parts else []
            steps, t0 = self.spec.rate.steps, self.start()
            self._cut = (start, end, tuple(IndexRange(a, b, steps.part(a, b), t0) for a, b in pairwise(edges)))
        return self._cut[2]

    def current_control(self) -> SourceControl:
        """The driver's latest settings; the last known ones while the file is missing or torn."""
        with suppress(OSError, ValueError):
            self._control = SourceControl.parse(self.control.read_text(encoding="utf-8"))
        return self._control


@dataclass(frozen=True)
class Records:
    """The tasks' half: makes the records of a range."""

    make: Callable[[Any], Any]
    seed: int
    schema: pa.Schema  # Spark's, with CREATED as the last column

    def batches(self, wanted: IndexRange) -> Iterator[pa.RecordBatch]:
        for first in range(wanted.first, wanted.last, BATCH_ROWS):
            last = min(first + BATCH_ROWS, wanted.last)
            micros = np.rint(wanted.steps.created(first, last) * 1e6).astype(np.int64) + round(wanted.t0 * 1e6)
            records = list(self._made(first, micros.tolist()))
            columns = self._fitted(first, records).columns
            yield pa.RecordBatch.from_arrays([*columns, pa.array(micros, pa.int64())], schema=self.schema)

    def _made(self, first: int, micros: list[int]) -> Iterator[Any]:
        for draw in draws(self.seed, first, micros):
            try:
                made = self.make(draw)
            except Exception as fault:
                failed = f"generator {_name_of(self.make)}: record {draw.index} failed"
                raise RecordError(f"{failed}: {type(fault).__name__}: {fault}") from fault
            yield made

    def _fitted(self, first: int, records: list[Any]) -> pa.RecordBatch:
        """The records as a batch. If that fails, find the first record that does not fit and name it in the error."""
        schema = self.schema.remove(len(self.schema) - 1)
        try:
            return to_batch(records, schema)
        except Exception:
            for index, record in enumerate(records, start=first):
                try:
                    to_batch([record], schema)
                except Exception as fault:
                    raise RecordError(
                        f"generator {_name_of(self.make)}: record {index} does not fit its schema:"
                        f" {fault}; it is {record!r:.500}"
                    ) from fault
            raise


class GenerateReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Spark's interface to both halves. It is pickled for the tasks, so the schedule is made on demand."""

    def __init__(self, records: Records, schedule: Callable[[], Schedule]) -> None:
        self._records = records
        self._make_schedule = schedule

    @cached_property
    def _schedule(self) -> Schedule:
        return self._make_schedule()

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """A nominal limit: Spark fixes it at the query's start, while ours changes with the plan. It distinguishes batches
        that we may limit from those whose trigger demands all records."""
        return ReadMaxRows(_NO_LIMIT)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        most = None
        if isinstance(limit, ReadMaxRows):
            own = self._schedule.current_control().read_limit
            most = limit.max_rows if own is None else min(limit.max_rows, own)
        return {"next": self._schedule.latest(start["next"], most)}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"next": self._schedule.available()}

    def prepareForTriggerAvailableNow(self) -> None:
        self._schedule.freeze()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[IndexRange]:
        return self._schedule.ranges(start["next"], end["next"])

    def read(self, partition: IndexRange) -> Iterator[pa.RecordBatch]:
        return self._records.batches(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Does nothing: there is no data to release."""


class GenerateDataSource(DataSource):  # type: ignore[misc]
    """A generated stream. Options are strings; ``data_source`` binds the other values to a subclass."""

    make: ClassVar[tuple[Callable[[Any], Any]]]  # in a tuple, so that it does not become a method
    seed: ClassVar[int]
    limit: ClassVar[int | None]
    columns: ClassVar[pa.Schema]

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return from_arrow_schema(self.columns.append(pa.field(CREATED, pa.int64(), nullable=False)))

    def streamReader(self, schema: StructType) -> GenerateReader:
        (make,) = self.make
        records = Records(make, self.seed, to_arrow_schema(schema, timezone="UTC"))
        schedule = partial(_schedule, make, self.limit, *(self._option(name) for name in ("start", "rate", "control")))
        return GenerateReader(records, schedule)

    def _option(self, name: str) -> str:
        if name not in self.options:
            raise OptionError(f"{NAME}: option {name!r} is missing; make the stream with generate.stream")
        return str(self.options[name])


def _schedule(make: Callable[[Any], Any], limit: int | None, start: str, rate: str, control: str) -> Schedule:
    return Schedule(GenerateSource(make, _load(Path(rate)), limit=limit), Start(Path(start)), Path(control))


def _load(file: Path) -> Rate:
    edges, values = np.fromfile(file).reshape(2, -1).tolist()
    return Rate(tuple(edges[:-1]), tuple(values[:-1]), edges[-1])


def replace_file(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    draft.write_bytes(content)
    draft.replace(file)


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
