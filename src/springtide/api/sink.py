"""Sinks, which write the records of a stream; each states its guarantee."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from springtide.api.kafka_sink import kafka
from springtide.api.postgres import sink as postgres
from springtide.errors import OptionError, TopologyError, nearest
from springtide.model.duration import seconds
from springtide.model.endpoints import ConsoleSink, DiscardSink, FilesSink, ForeachSink, MemorySink, Rolling, TableSink

__all__ = ["console", "discard", "files", "foreach", "kafka", "memory", "postgres", "table"]

FORMATS = ("csv", "json", "parquet")
ROLL_SIZE = 128 << 20
"""About the size of a block of HDFS, which engines read with one task."""
ROLL_EVERY_S = 60.0
"""The latest time at which a record becomes visible, if only a size is given."""


def files(
    path: str | os.PathLike[str], *, format: str = "parquet", partition_by: str | Sequence[str] = (),
    roll_every: str | float | None = None, roll_size: int | None = None, append: bool = False,
) -> FilesSink:  # fmt: skip
    """Files in a folder, visible only once their batch is committed. **Exactly once.**

    Without further options a file for each task and batch becomes visible at its commit. With ``roll_every``, such as
    ``"10s"``, or ``roll_size`` in bytes, the output of batches is collected: a file becomes visible once its first records
    are that old (default 60 s), once it has that size (default 128 MB), or at the end of the run. ``partition_by``: columns
    whose values name folders, such as ``day=2024-05-01``. ``append=True``: other checkpoints may write to the folder, too.
    """
    if format not in FORMATS:
        raise OptionError(f"files: format={format!r}; {nearest(format, FORMATS)}")
    place = os.fspath(path).removeprefix("file://")
    if "://" in place:
        raise OptionError(f"files: {place!r} is not a local or mounted path; write elsewhere with sink.table or sink.foreach")
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    place = os.path.abspath(place)  # tasks may run elsewhere than the driver
    return FilesSink(place, format, columns, _rolling(roll_every, roll_size), append)


def _rolling(every: str | float | None, size: int | None) -> Rolling | None:
    if every is None and size is None:
        return None
    if size is not None and (type(size) is not int or size < 1):
        raise OptionError(f"files: roll_size={size!r} is not allowed; give a whole number of bytes, 1 or more")
    age_s = ROLL_EVERY_S if every is None else seconds(every, "roll_every")
    return Rolling(ROLL_SIZE if size is None else size, age_s)


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
