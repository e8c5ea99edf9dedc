"""Staged output: files that tasks write and the driver commits.

A task writes a file of its own, whose name no other attempt has, and tells the driver of it in a receipt. Only files of
receipts that reached the manifest are ever moved to where readers look; the rest is swept away at the next start.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from springtide.spark.program import Staging


@dataclass(frozen=True)
class Place:
    """Which attempt of which task writes."""

    epoch: int
    batch: int
    level: int
    task: int
    attempt: int


def write(staging: Staging, sink: str, place: Place, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    """Write one file, durably, and return its receipt. ``sink`` is "" for dead letters."""
    table = pa.Table.from_batches(batches)
    folder = Path(staging.folder) / f"epoch-{place.epoch:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{staging.stem}-{place.batch:08d}-{place.level}-{place.task:05d}"
    path = folder / f"{stem}-{place.attempt}.{staging.format}"
    with path.open("wb") as file:
        _encode(table, staging.format, file)
        file.flush()
        os.fsync(file.fileno())
    return {"sink": sink, "staged": str(path), "name": f"{stem}.{staging.format}", "rows": table.num_rows}


def _encode(table: pa.Table, format: str, file: Any) -> None:
    if format == "parquet":
        pa.parquet.write_table(table, file)
    elif format == "csv":
        pa.csv.write_csv(table, file)
    else:
        for row in table.to_pylist():
            file.write(json.dumps(row, default=str, ensure_ascii=False).encode() + b"\n")


def publish(receipt: dict[str, Any], folder: Path) -> None:
    """Move a staged file to where readers look. One that is not there any more was moved before."""
    with contextlib.suppress(FileNotFoundError):
        os.replace(receipt["staged"], folder / receipt["name"])


def sweep(staging: Staging, before_epoch: int) -> None:
    """Remove what earlier epochs staged and did not commit."""
    root = Path(staging.folder)
    for folder in root.glob("epoch-*"):
        if int(folder.name.removeprefix("epoch-")) < before_epoch:
            shutil.rmtree(folder, ignore_errors=True)
