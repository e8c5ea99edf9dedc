"""The interface of sinks outside the file system, such as Kafka and PostgreSQL.

Tasks stage the output of a batch in files, and the manifest commits the batch. Then the driver publishes the staged files.
A crash may come between the commit and the end of the publication, or in its middle: the next start publishes the batch
again. So a publisher has to detect what it has already published, by a mark that the sink stores in the same transaction as
the records: then the sink is exactly once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa


class Guarantee(StrEnum):
    """How often a record of the source appears in a sink if there are crashes."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


class SinkUnavailable(Exception):
    """The sink cannot be reached now. The run waits, says so, and publishes the batch again; nothing is lost."""


@dataclass(frozen=True)
class Refusal:
    """A record that the sink cannot take, for example one that is too large. It becomes a dead letter of the sink."""

    index: int
    error: Exception


@dataclass(frozen=True)
class Part:
    """The output of a task in a batch, as a Parquet file. ``number``: its place in the batch. A repetition of the batch has the
    same parts with the same records in the same order, unless a function of the user is not deterministic; then ``crc32``, the
    checksum of the file, differs."""

    number: int
    file: Path
    rows: int
    crc32: int


@dataclass(frozen=True)
class Mark:
    """How far a sink is published: the last batch of which it has anything, -1 for none, and whether it has all of that
    batch."""

    batch: int
    complete: bool = True


class Publisher(ABC):
    """The driver's side of a sink, from one start of the query to the next. Its methods are called one at a time."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the sink stores its mark, for messages, for example "the offset of group 'springtide-…'"."""

    @abstractmethod
    def prepare(self) -> Mark | None:
        """Fence earlier drivers, and read the mark; None if there is none, as always for a sink that is at least once.

        Called before each start of the query, and again until the sink can be reached. Raises OptionError with a way out if
        the sink cannot be used as declared, and SinkUnavailable if it cannot be reached."""

    @abstractmethod
    def begin(self, batch: int) -> None:
        """Store the mark that everything up to ``batch`` is published: -1 before the first batch. Raises SinkUnavailable."""

    @abstractmethod
    def publish(self, batch: int, parts: Sequence[Part]) -> None:
        """Make a committed batch visible to readers. Called again for a batch that may be published in part or as a whole: then
        it publishes the rest. Batches without output are left out.

        Raises SinkUnavailable, after which it is called again; memory stays bounded. Raises CheckpointError if another driver
        has fenced this one."""

    def in_tasks(self, sink: PublishedSink) -> PublishedSink:
        """The declaration as tasks get it, asked for after ``prepare``: with what only the sink knows, such as its largest
        record, and without what only the driver needs."""
        return sink

    def close(self) -> None:  # noqa: B027  some publishers hold nothing
        """Release connections."""


class PublishedSink(ABC):
    """The declaration: a frozen dataclass that can be pickled. Attributes with secrets are left out of its ``repr``."""

    guarantee: Guarantee

    def check(self, schema: pa.Schema) -> None:  # noqa: B027  some sinks need nothing
        """Called in the driver before anything is changed, with the schema of the records. Raises OptionError with a way out if
        the sink cannot be written as declared, and SinkUnavailable if it cannot be reached."""

    @abstractmethod
    def publisher(self, identity: str, schema: pa.Schema, stopped: Callable[[], bool]) -> Publisher:
        """``identity`` names the checkpoint and the sink: markers and transactions are known by it. ``schema``: of the records.
        ``stopped``: whether the run has to end, so that a publisher that waits should give up with SinkUnavailable."""

    def stage(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        """In a task: the records as they are staged, without those that the sink cannot take, and these by their index."""
        return records, ()

    def describe(self) -> str:
        """The sink in a few words for messages, without secrets."""
        return type(self).__name__
