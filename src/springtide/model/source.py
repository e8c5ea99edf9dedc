"""The interface of sources: what Springtide asks of a stream that it reads.

A source has three parts, each with one job:

- ``Source``, the declaration: a frozen value in the topology, which travels to the tasks.
- ``Enumerator``, in the driver: knows where the stream ends, and cuts a batch into ranges.
- ``Reader``, in the tasks: reads the records of a range.

A stream can be read again from any position: the checkpoint stores positions, and a replay reads the same records. A value that
a source cannot know is None, and None is never zero: a backlog that is unknown must not look like an empty one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Position: TypeAlias = Mapping[str, Any]
"""A place in a stream, as JSON, for example ``{"trips": {"0": 17, "1": 4}}``. A batch goes from one position to another."""

Range: TypeAlias = Mapping[str, Any]
"""The part of a batch that one task reads, as JSON."""

Memory: TypeAlias = Mapping[str, Any]
"""What a source decides once for a checkpoint, as JSON, for example the first position."""


class SourceUnavailable(Exception):
    """The stream cannot be reached now. The run waits, says so, and tries again; nothing is lost."""


class SourceFailed(Exception):
    """The RunError of a source, on its way to the driver from another process. No repetition mends it, while the errors of
    operators may pass."""


@dataclass(frozen=True)
class Rejected:
    """A record that cannot be decoded. It becomes a dead letter, with ``place``, for example topic, partition and offset."""

    place: Mapping[str, Any]
    raw: bytes | str
    error: Exception


@dataclass
class Records:
    """Consecutive records of a range.

    ``values``: objects of the source's record class or mappings, or an Arrow batch of the source's schema. ``created``: their
    creation times in microseconds since 1970; None if they are unknown. ``origin`` and ``numbers``: the identity of each
    record, for example the partition ``"trips/0"`` and offsets; None if a record has none but its place in the range.
    ``lost``: records that the stream has deleted before they were read. ``next``: where the range goes on after these records,
    by which a task that is stopped in the middle of a range reports how far it came.
    """

    values: list[Any] | pa.RecordBatch
    created: npt.NDArray[np.int64] | None = None
    rejected: Sequence[Rejected] = ()
    lost: int = 0
    origin: str = ""
    numbers: npt.NDArray[np.int64] | None = None
    next: Any = None

    def __len__(self) -> int:
        return self.values.num_rows if isinstance(self.values, pa.RecordBatch) else len(self.values)


@dataclass(frozen=True)
class Waiting:
    """What waits between two positions: records, files and bytes; None if a number is unknown or does not apply. ``exact``:
    whether the number of records is counted; otherwise it is an estimate."""

    records: int | None
    files: int | None = None
    bytes: int | None = None
    exact: bool = True


class Enumerator(ABC):
    """The driver's part. ``end``, ``count`` and ``committed`` are called one at a time; the others are pure functions of what
    they get and of the memory, and may be called at the same time."""

    @abstractmethod
    def first(self) -> Position:
        """The position from which a new checkpoint reads."""

    @abstractmethod
    def end(self, since: Position) -> Position:
        """Where the stream ends now, for a run that has read up to ``since``. It never goes back.

        Raises SourceUnavailable if the stream cannot be reached, and RunError if it no longer continues at ``since``, for
        example because unread records were deleted.
        """

    @abstractmethod
    def count(self, since: Position, until: Position) -> int | None:
        """The number of records between two positions; None if it is unknown."""

    def waiting(self, since: Position, until: Position) -> Waiting:
        """What waits between two positions, with the units that the source has."""
        return Waiting(self.count(since, until))

    @abstractmethod
    def limited(self, since: Position, end: Position, most: int) -> Position:
        """The end of a batch of about ``most`` records from ``since``, at most ``end``. It lies behind ``since`` unless that is
        the end, so that every batch makes progress."""

    @abstractmethod
    def ranges(self, since: Position, until: Position, tasks: int) -> Sequence[Range]:
        """The batch between two positions in at most ``tasks`` ranges, none of them empty. A pure function: a replay of the
        batch is cut likewise."""

    def exhausted(self, position: Position) -> bool:
        """Whether the stream has ended for good at this position."""
        return False

    def committed(self, until: Position) -> None:  # noqa: B027  most sources need not know
        """The batch up to ``until`` is committed. It may be called twice, or not at all before a crash; it must not raise."""

    def close(self) -> None:  # noqa: B027
        """Release connections."""


class Reader(ABC):
    """The tasks' part. A worker process opens a reader once per source, and reads one range at a time with it."""

    @abstractmethod
    def read(self, part: Range) -> Iterator[Records]:
        """The records of a range, in the same order at every repetition.

        It waits as long as the stream cannot be reached. A range without an end goes on until the caller closes the iterator.
        """

    def place(self, origin: str, number: int) -> Mapping[str, Any]:
        """How a dead letter names a record by its identity."""
        return {"origin": origin, "number": number}

    def close(self) -> None:  # noqa: B027
        """Release connections."""


class Source(ABC):
    """The declaration: a frozen dataclass that can be pickled. Attributes with secrets are left out of its ``repr``."""

    begins_with_first_batch: ClassVar[bool] = False
    """Whether ``begin`` waits until Spark asks for the first batch. Such a source must always be reachable."""

    @property
    def has_times(self) -> bool:
        """Whether its records have creation times."""
        return True

    @property
    def has_backlog(self) -> bool:
        """Whether it can count the records that wait."""
        return True

    def check(self) -> None:  # noqa: B027  some sources need nothing
        """Called in the driver before anything is changed. Raises OptionError with a way out if the stream cannot be read as
        declared, for example if there is no such topic, and SourceUnavailable if it cannot be reached."""

    @abstractmethod
    def begin(self) -> Memory:
        """What is decided once for a checkpoint, when its first batch is about to be planned. Raises SourceUnavailable."""

    def check_resumed(self, memory: Memory, positions: Sequence[Position]) -> None:  # noqa: B027
        """Called before a run carries a checkpoint on; ``positions`` are where its last two batches end, as far as there are
        such. Raises CheckpointError or OptionError if the checkpoint does not fit the declaration, and DamageError if it does
        not fit what the source has stored in it."""

    @abstractmethod
    def enumerator(self, memory: Memory) -> Enumerator: ...

    @abstractmethod
    def reader(self, schema: pa.Schema, record: type | None) -> Reader:
        """A reader of records with this schema; ``record`` is their class, if the source was declared with one."""

    def stored_in(self, folder: Path) -> Source:
        """The declaration for a checkpoint. In ``folder`` the source may store what grows too large for positions, such as a
        list of files; the driver and Spark's process for offsets both use it."""
        return self

    def in_tasks(self) -> Source:
        """The declaration as tasks get it: it may leave out what only the driver needs."""
        return self

    @property
    def most(self) -> int | None:
        """The user's own limit of the records of a batch, whatever the plan allows."""
        return None

    def describe(self) -> str:
        """The source in a few words for messages, without secrets."""
        return type(self).__name__
