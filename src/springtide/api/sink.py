"""Sinks, which write the records of a stream; each states its guarantee."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from springtide.api.postgres import sink as postgres
from springtide.errors import OptionError, TopologyError, nearest
from springtide.model.endpoints import ConsoleSink, DiscardSink, FilesSink, ForeachSink, MemorySink, TableSink

__all__ = ["console", "discard", "files", "foreach", "memory", "postgres", "table"]

FORMATS = ("csv", "json", "parquet")


def files(path: str | os.PathLike[str], *, format: str = "parquet") -> FilesSink:
    """Files in a folder: one per task and batch, visible only once their batch is committed. **Exactly once.**"""
    if format not in FORMATS:
        raise OptionError(f"files: format={format!r}; {nearest(format, FORMATS)}")
    place = os.fspath(path).removeprefix("file://")
    if "://" in place:
        raise OptionError(f"files: {place!r} is not a local or mounted path; write elsewhere with sink.table or sink.foreach")
    return FilesSink(os.path.abspath(place), format)  # tasks may run elsewhere than the driver


def table(name: str, *, format: str = "parquet", batch_column: str | None = None) -> TableSink:
    """A table of Spark's catalog. With ``batch_column`` **exactly once**, by overwriting the batch's partition;
    without it **at least once**, by appending."""
    return TableSink(name, format, batch_column)


def console(rows: int = 20) -> ConsoleSink:
    """The first rows of every batch on standard error. **At least once.**"""
    return ConsoleSink(rows)


def memory(name: str) -> MemorySink:
    """Rows in the driver's memory; ``result.table(name)`` returns them after the run. **At least once.**"""
    return MemorySink(name)


def foreach(function: Callable[[Any, int], object]) -> ForeachSink:
    """Call ``function(dataframe, batch)`` on the driver once per batch. **At least once**: after a crash the last batch
    may come again, with the same number; store the number with the rows that you write, and it becomes exactly once."""
    if not callable(function):
        raise TopologyError(f"foreach({function!r}): that is not a function")
    return ForeachSink(function)


def discard() -> DiscardSink:
    """Count the records and discard them, for measurements."""
    return DiscardSink()
