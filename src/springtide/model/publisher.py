"""The interface of sinks outside the file system, such as Kafka and PostgreSQL.

Tasks stage the output of a batch in files, and the manifest commits the batch. Then the driver publishes the staged files.
A crash may come between the commit and the end of the publication, or in its middle: the next start publishes the batch
again. So a publisher has to detect what it has already published, by the batch's number, in the same transaction as the
records: then the sink is exactly once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from springtide.model.endpoints import Guarantee


class SinkUnavailable(Exception):
    """The sink cannot be reached now. The run waits, says so, and publishes the batch again; nothing is lost."""


@dataclass(frozen=True)
class Refusal:
    """A record that the sink cannot take, for example one that is too large. It becomes a dead letter of the sink."""

    index: int
    error: Exception


@dataclass(frozen=True)
class Part:
    """The output of a task in a batch, as a Parquet file. ``number``: its place in the batch, the same in every repetition."""

    number: int
    file: Path
    rows: int


class Publisher(ABC):
    """The driver's side of a sink, from the start to the end of a run. Its methods are called one at a time."""

    @abstractmethod
    def prepare(self) -> None:
        """Check the sink and fence earlier drivers, before the first batch. Raises OptionError with a way out if the sink
        cannot be used as declared, and SinkUnavailable if it cannot be reached."""

    @abstractmethod
    def publish(self, batch: int, parts: Sequence[Part]) -> None:
        """Make a committed batch visible to readers. Called again for a batch that may be published in part or as a whole: then
        it publishes the rest. Raises SinkUnavailable; memory stays bounded."""

    def close(self) -> None:  # noqa: B027  some publishers hold nothing
        """Release connections."""


class PublishedSink(ABC):
    """The declaration: a frozen dataclass that can be pickled. Attributes with secrets are left out of its ``repr``."""

    guarantee: Guarantee

    @abstractmethod
    def publisher(self, identity: str, schema: pa.Schema, stopped: Callable[[], bool]) -> Publisher:
        """``identity`` names the checkpoint and the sink: markers and transactions are known by it. ``schema``: of the records.
        ``stopped``: whether the run has to end, so that a publisher that waits should give up with SinkUnavailable."""

    def staged_schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the staged files."""
        return schema

    def stage(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Refusal]]:
        """In a task: the records as they are staged, and those that the sink cannot take."""
        return records, []

    def describe(self) -> str:
        """The sink in a few words for messages, without secrets."""
        return type(self).__name__
