"""Specifications of sources and sinks. Other packages implement them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide.model.publisher import Guarantee, PublishedSink
from springtide.model.source import Source


@dataclass(frozen=True)
class FilesSource:
    """New files of a folder, the oldest first; ``created`` names the column with a record's creation time."""

    path: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    created: str | None = None
    max_files: int | None = None


@dataclass(frozen=True)
class DataFrameSource:
    """Any streaming DataFrame, or a function that makes it from a session."""

    frame: Any
    created: str | None = None
    ordered: bool = False


SourceSpec = Source | FilesSource | DataFrameSource


@dataclass(frozen=True)
class FilesSink:
    """Files in a folder, where only complete, committed batches are ever visible."""

    path: str
    format: str = "parquet"
    guarantee = Guarantee.EXACTLY_ONCE


@dataclass(frozen=True)
class TableSink:
    """A table of Spark's catalog. With ``batch_column`` each batch overwrites its own partition, so that a replay
    changes nothing: exactly once. Without it a batch is appended: at least once."""

    name: str
    format: str = "parquet"
    batch_column: str | None = None

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE if self.batch_column else Guarantee.AT_LEAST_ONCE


@dataclass(frozen=True)
class ConsoleSink:
    """The first rows of every batch, printed."""

    rows: int = 20
    guarantee = Guarantee.AT_LEAST_ONCE


@dataclass(frozen=True)
class MemorySink:
    """Rows in the driver's memory, for tests and notebooks; ``springtide.sink.memory`` describes how to read them."""

    name: str
    guarantee = Guarantee.AT_LEAST_ONCE


@dataclass(frozen=True)
class ForeachSink:
    """A Python function, called on the driver once per batch with the batch's DataFrame and number."""

    function: Callable[[Any, int], object]
    guarantee = Guarantee.AT_LEAST_ONCE


@dataclass(frozen=True)
class DiscardSink:
    """Counts records and discards them, for measurements."""

    guarantee = Guarantee.EXACTLY_ONCE


SinkSpec = FilesSink | TableSink | ConsoleSink | MemorySink | ForeachSink | DiscardSink | PublishedSink
