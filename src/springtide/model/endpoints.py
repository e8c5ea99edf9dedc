"""Specifications of sources and sinks. Other packages implement them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from springtide.errors import TopologyError
from springtide.model.publisher import Guarantee, PublishedSink
from springtide.model.source import Source


@dataclass(frozen=True)
class DataFrameSource:
    """Any streaming DataFrame, or a function that makes it from a session."""

    frame: Any
    created: str | None = None
    ordered: bool = False


SourceSpec = Source | DataFrameSource


@dataclass(frozen=True)
class Rolling:
    """Collects the committed output of batches in larger files: a file becomes visible once it has about ``bytes``, or once its
    first records have waited for ``age_s``."""

    bytes: int
    age_s: float


@dataclass(frozen=True)
class FilesSink:
    """Files in a folder, where only complete, committed batches are ever visible.

    ``partition_by``: columns whose values name folders, as Hive has it. ``rolling``: None makes a file for each task and batch.
    ``append``: other checkpoints may write to the folder, too.
    """

    path: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    rolling: Rolling | None = None
    append: bool = False
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

    def __post_init__(self) -> None:
        if isinstance(self.function, type):  # calling it would make an object for each batch, and write nothing
            name = self.function.__name__
            raise TopologyError(f"foreach({name}): that is a class; give an object of it, such as foreach({name}(…))")


@dataclass(frozen=True)
class DiscardSink:
    """Counts records and discards them, for measurements."""

    guarantee = Guarantee.EXACTLY_ONCE


SinkSpec = FilesSink | TableSink | ConsoleSink | MemorySink | ForeachSink | DiscardSink | PublishedSink
