"""Stages output: tasks write files that the driver commits, see ``driver/staged.py``.

Each attempt writes files with unique names, and reports a receipt for each with its size and checksum.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from springtide.durable import make_folder, sync_folder
from springtide.spark.shared.program import Staging
from springtide.spark.shared.receipt import Receipt, folder
from springtide.spark.task.encoding import Refusal, encoded
from springtide.spark.task.letters import readable_row
from springtide.spark.task.partitions import split


@dataclass(frozen=True)
class Attempt:
    """Identifies the attempt of a task that writes."""

    epoch: int
    batch: int
    level: int
    gate: int
    task: int
    attempt: int


@dataclass(frozen=True)
class Written:
    """The receipts of a task's records for one sink, if any could be written, and the refused records."""

    receipts: tuple[Receipt, ...]
    refused: tuple[Refusal, ...] = ()


def write(staging: Staging, sink: str, attempt: Attempt, batches: list[pa.RecordBatch]) -> Written:
    """Write the records that the format can represent to files, durably. ``sink`` is "" for dead letters."""
    receipts, refused = list[Receipt](), list[Refusal]()
    table, unnamed = _namable(pa.Table.from_batches(batches), staging.partition_by)
    refused += unnamed
    for number, (place, part) in enumerate(split(table, staging.partition_by)):
        content = encoded(part, staging.format)
        refused += content.refused
        if content.rows:
            stem = f"{staging.stem}-{attempt.batch:08d}-{attempt.level}-{attempt.gate}-{attempt.task:05d}"
            stem += f"-p{number}" if place else ""
            receipts.append(_written(staging, sink, attempt, stem, place, content.rows, content.content))
    return Written(tuple(receipts), tuple(refused))


def _written(
    staging: Staging, sink: str, attempt: Attempt, stem: str, place: str, rows: int, content: bytes | pa.Buffer
) -> Receipt:
    file = f"{stem}-{attempt.attempt}.{staging.format}"
    path = folder(staging, attempt.epoch) / file
    try:
        write_durably(path, content, staging.mode)
    except OSError as error:  # such as a full disk: not a record's fault, so the attempt fails
        raise OSError(error.errno, f"{error.strerror}, while {rows} records were staged", str(path)) from error
    name, size, checksum = f"{stem}.{staging.format}", len(content), zlib.crc32(content)
    return Receipt(sink, attempt.epoch, file, name, rows, size, checksum, place)


def _namable(table: pa.Table, columns: tuple[str, ...]) -> tuple[pa.Table, list[Refusal]]:
    """The records whose values can name a folder, and the others."""
    try:
        list(split(table, columns))
    except (ValueError, UnicodeError):
        faults = dict(_unnamable(table, columns))
        good = [row for row in range(table.num_rows) if row not in faults]
        refused = [Refusal(readable_row(table.slice(row, 1)), error) for row, error in faults.items()]
        return table.take(pa.array(good, pa.int64())), refused
    return table, []


def _unnamable(table: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[int, Exception]]:
    for row in range(table.num_rows):
        try:
            list(split(table.slice(row, 1), columns))
        except (ValueError, UnicodeError) as error:
            yield row, error


def write_durably(path: Path, content: bytes | pa.Buffer, mode: int) -> None:
    make_folder(path.parent)
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
