"""The offsets of a source, as a Python data source of Spark: Spark asks where the next batch ends, and logs the answer.

The data source runs in a process of its own beside the driver, and has no partitions: the driver cuts a batch into ranges
(``driver/streams``), and tasks read them (``task/reading``). So a record passes from the source to the first operator within
one Python worker, without the JVM in between.
"""
# ruff: noqa: N802 - Spark names the methods of a reader

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from springtide.durable import read_json, write_atomic
from springtide.errors import RunError
from springtide.model.source import Enumerator, Memory, Position, Source, SourceFailed, SourceUnavailable

FIRST_S = 0.1
"""A schedule that begins with the first batch waits this long: Spark always makes a first batch, which would be empty."""
RETRY_S = 0.5
"""Seconds between two attempts to reach a source."""
_NO_LIMIT = 2**63 - 1


@dataclass(frozen=True)
class SourceControl:
    """The plan's read limit of a batch, in equal shares for its sources; None: no limit."""

    read_limit: int | None = None
    sources: int = 1

    @property
    def share(self) -> int | None:
        """The most records of one source; at least one record, unless none may be read."""
        return None if self.read_limit is None else max(min(1, self.read_limit), self.read_limit // self.sources)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Replace the file atomically; the limit applies from the next batch on."""
        replace_file(Path(path), json.dumps(asdict(self)).encode())

    @classmethod
    def at(cls, path: Path) -> SourceControl | None:
        """What a file has; None while it is missing or torn."""
        try:
            return cls.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    @classmethod
    def parse(cls, text: str) -> SourceControl:
        """Raises ValueError for a torn or invalid document."""
        document = json.loads(text)
        if not isinstance(document, dict) or "read_limit" not in document:
            raise ValueError(f"not a control document: {text!r}")
        limit, sources = document["read_limit"], document.get("sources", 1)
        if not (limit is None or (type(limit) is int and limit >= 0)):
            raise ValueError(f"read_limit={limit!r} is neither null nor a number of records")
        if not (type(sources) is int and sources >= 1):
            raise ValueError(f"sources={sources!r} is no number of sources")
        return cls(limit, sources)


@dataclass
class Beginning:
    """What a source decided once for its checkpoint. ``file`` stores it for restarts and for the driver.

    A source that begins with the first batch decides when Spark first asks, before Spark logs a batch, so that a slow start
    leaves no backlog. The memory of the others exists before the query starts.
    """

    source: Source
    file: Path
    name: str | None = None  # its entry in the file; None if the file has only one

    def __call__(self) -> Memory:
        stored = read_json(self.file)
        if stored is None and self.source.begins_with_first_batch:
            stored = dict(self.source.begin())
            write_atomic(self.file, stored)
            time.sleep(FIRST_S)
        assert stored is not None, f"{self.file} is gone"
        return stored if self.name is None else dict(stored[self.name])


def waiting_file(control: Path) -> Path:
    """The file that says why a planner waits for its source, as long as it does; beside the plan's file for the planner."""
    return control.with_suffix(".waiting")


def obeyed_file(control: Path) -> Path:
    """The file with the SourceControl by which a planner ended its last batch; beside the plan's file for the planner."""
    return control.with_suffix(".obeyed")


class Planner:
    """Where batches end, by the source, the plan's read limit, and the trigger."""

    def __init__(self, source: Source, memory: Callable[[], Memory], control: Path) -> None:
        self._source, self._memory, self._file = source, memory, control
        self._control = SourceControl()
        self._obeyed: SourceControl | None = None  # as the driver knows
        self._end: Position | None = None  # the last known end of the stream
        self._frozen = self._waiting = False

    @cached_property
    def _enumerator(self) -> Enumerator:
        return self._source.enumerator(self._memory())

    def first(self) -> Position:
        return self._enumerator.first()

    def freeze(self) -> None:
        """Make no records available that come after the next call of ``latest``."""
        self._frozen, self._end = True, None

    @property
    def known_end(self) -> Position | None:
        return self._end

    def latest(self, start: Position, limit: int | None) -> Position:
        """The end of a batch from ``start`` with at most about ``limit`` records; None: no limit.

        While the source cannot be reached, no records are available. A frozen stream raises instead: otherwise the query
        would end as if it had read everything.
        """
        try:
            if self._end is None or not self._frozen:
                self._end = self._enumerator.end(start)
        except RunError as error:
            raise SourceFailed(error) from None
        except SourceUnavailable as error:
            if self._frozen:
                raise
            self._waits(str(error))
            time.sleep(RETRY_S)
            return start
        self._waits(None)
        if limit == 0:
            return start
        return self._end if limit is None else self._enumerator.limited(start, self._end, limit)

    def _waits(self, why: str | None) -> None:
        """Let the driver know, which says so: what is logged here is in Spark's log. None: it waits no longer."""
        if (why is not None) != self._waiting:
            self._waiting = why is not None
            with suppress(OSError):
                if why is None:
                    waiting_file(self._file).unlink(missing_ok=True)
                else:
                    replace_file(waiting_file(self._file), why.encode())

    def limit(self) -> int | None:
        """The smaller of the plan's latest read limit and the user's; the last known plan while the file is missing or torn."""
        self._control = SourceControl.at(self._file) or self._control
        self._obeys(self._control)
        return min((limit for limit in (self._control.share, self._source.most) if limit is not None), default=None)

    def _obeys(self, control: SourceControl) -> None:
        """Let the driver know the limit of the batch, for its plan: another plan may be in force when the batch starts."""
        if control != self._obeyed:
            with suppress(OSError):
                control.write(obeyed_file(self._file))
                self._obeyed = control


class OffsetReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Spark's interface to a planner."""

    def __init__(self, make_planner: Callable[[], Planner]) -> None:
        self._make_planner = make_planner

    @cached_property
    def _planner(self) -> Planner:
        return self._make_planner()

    def initialOffset(self) -> dict[str, Any]:
        return _canonical(self._planner.first())

    def getDefaultReadLimit(self) -> ReadLimit:
        """A nominal limit: Spark fixes it at the query's start, while ours changes with the plan. It distinguishes batches
        that we may limit from those whose trigger demands all records."""
        return ReadMaxRows(_NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = None
        if isinstance(limit, ReadMaxRows):
            own = self._planner.limit()
            most = own if limit.max_rows == _NO_LIMIT else min(limit.max_rows, _NO_LIMIT if own is None else own)
        return _canonical(self._planner.latest(start, most))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        end = self._planner.known_end
        return None if end is None else _canonical(end)

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise AssertionError("tasks read the records: see task/reading.py")

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the driver commits, see ``driver/streams``."""


class Offsets(DataSource):  # type: ignore[misc]
    """A stream of offsets; ``offsets_of`` binds the values to a subclass."""

    make_planner: ClassVar[tuple[Callable[[], Planner]]]  # in a tuple, so that it does not become a method
    columns: ClassVar[Any]

    def schema(self) -> StructType:
        return from_arrow_schema(self.columns)

    def streamReader(self, schema: StructType) -> OffsetReader:
        return OffsetReader(self.make_planner[0])


def offsets_of(planner: Callable[[], Planner], schema: Any) -> type[Offsets]:
    """A data source for one stream, under a unique name. Spark pickles the class by value when it is registered."""
    unique = f"springtide-{uuid.uuid4().hex[:12]}"

    class Bound(Offsets):
        make_planner = (planner,)
        columns = schema

        @classmethod
        def name(cls) -> str:
            return unique

    return Bound


def _canonical(position: Position) -> dict[str, Any]:
    """Spark compares offsets as text, so equal positions have to have one text."""
    ordered: dict[str, Any] = json.loads(json.dumps(position, sort_keys=True))
    return ordered


def replace_file(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    draft.write_bytes(content)
    draft.replace(file)
