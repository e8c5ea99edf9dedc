"""Stages output: tasks write files that the driver commits, see ``driver/staged.py``.

Each attempt writes a file with a unique name, and reports a receipt with its size and checksum.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from springtide.spark.shared.durable import make_folder, sync_folder
from springtide.spark.shared.program import Staging
from springtide.spark.shared.receipt import Receipt, folder
from springtide.spark.task.encoding import Refusal, encoded


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
    """The receipt of a task's records for one sink, if any could be written, and the refused records."""

    receipts: tuple[Receipt, ...]
    refused: tuple[Refusal, ...] = ()


def write(staging: Staging, sink: str, attempt: Attempt, batches: list[pa.RecordBatch]) -> Written:
    """Write the records that the format can represent to a file, durably. ``sink`` is "" for dead letters."""
    content = encoded(pa.Table.from_batches(batches), staging.format)
    if not content.rows:
        return Written((), content.refused)
    stem = f"{staging.stem}-{attempt.batch:08d}-{attempt.level}-{attempt.gate}-{attempt.task:05d}"
    file = f"{stem}-{attempt.attempt}.{staging.format}"
    path = folder(staging, attempt.epoch) / file
    try:
        _write_durably(path, content.content, staging.mode)
    except OSError as error:  # such as a full disk: not a record's fault, so the attempt fails
        raise OSError(error.errno, f"{error.strerror}, while {content.rows} records were staged", str(path)) from error
    size, checksum = len(content.content), zlib.crc32(content.content)
    receipt = Receipt(sink, attempt.epoch, file, f"{stem}.{staging.format}", content.rows, size, checksum)
    return Written((receipt,), content.refused)


def _write_durably(path: Path, content: bytes | pa.Buffer, mode: int) -> None:
    make_folder(path.parent)
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
