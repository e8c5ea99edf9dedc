"""The mark of a sink: the offset of a consumer group of its own, committed in the same transaction as the records.

The offset is the number of batches that are published completely. Its metadata says more: up to which part and row of which
batch, and the checksum of that batch's parts.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from springtide.errors import CheckpointError, RunError
from springtide.model.publisher import Mark, Part


@dataclass(frozen=True)
class Progress:
    """Up to where a sink is published: the records of ``batch`` before ``row`` of ``part``, or all of the batch. ``parts``: the
    checksum of its parts, by which a repetition with other content is noticed."""

    batch: int
    complete: bool = True
    part: int = 0
    row: int = 0
    parts: int = 0

    @property
    def mark(self) -> Mark:
        return Mark(self.batch, self.complete)

    @property
    def offset(self) -> int:
        return self.batch + 1 if self.complete else self.batch

    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def progress_of(offset: int, metadata: str | None, place: str) -> Progress | None:
    """The progress in a committed offset; None if there is none. CheckpointError if someone else wrote it."""
    if offset < 0:
        return None
    try:
        found = Progress(**json.loads(metadata or ""))
    except (ValueError, TypeError):
        found = None
    if found is None or found.offset != offset:
        raise CheckpointError(f"{place} was not written by Springtide; no one else may commit offsets to that group")
    return found


def checksum(parts: Sequence[Part]) -> int:
    """The checksum of a batch's parts."""
    return zlib.crc32(json.dumps([(part.number, part.rows, part.crc32) for part in parts]).encode())


def rest(found: Progress, batch: int, parts: Sequence[Part]) -> tuple[int, int] | None:
    """The part and the row from which a batch has to be published; None if nothing is left."""
    if found.batch > batch or (found.batch == batch and found.complete):
        return None
    if found.batch < batch:
        return (0, 0)
    if found.parts != checksum(parts):
        raise RunError(
            f"batch {batch} was published in part, and computed again with other output since, so that the rest does not fit: a"
            " function of the topology is not deterministic. Make it so, and start with a new checkpoint"
        )
    return (found.part, found.row)


def after(batch: int, parts: Sequence[Part], part: int, row: int) -> Progress:
    """The progress once the records before ``row`` of ``part`` are published."""
    if part >= len(parts) or (part == len(parts) - 1 and row >= parts[part].rows):
        return Progress(batch)
    return Progress(batch, False, part, row, checksum(parts))


def offsets(topic: str, progress: Progress) -> list[Any]:
    from springtide.connectors.kafka.clients import needed

    return [needed().TopicPartition(topic, 0, progress.offset, progress.text())]
