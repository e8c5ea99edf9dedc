"""Staged output: files that tasks write and the driver commits.

A task writes a file of its own, whose name no other attempt has, and tells the driver of it in a receipt. Only files of
receipts that reached the manifest are ever moved to where readers look; the rest is swept away at the next start.
"""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from springtide.errors import RunError
from springtide.spark.durable import make_folder, sync_folder
from springtide.spark.program import Staging


@dataclass(frozen=True)
class Place:
    """Which attempt of which task writes."""

    epoch: int
    batch: int
    level: int
    gate: int
    task: int
    attempt: int


def write(staging: Staging, sink: str, place: Place, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    """Write one file, durably, and return its receipt. ``sink`` is "" for dead letters."""
    table = pa.Table.from_batches(batches)
    folder = Path(staging.folder) / f"epoch-{place.epoch:06d}"
    make_folder(folder)
    stem = f"{staging.stem}-{place.batch:08d}-{place.level}-{place.gate}-{place.task:05d}"
    path = folder / f"{stem}-{place.attempt}.{staging.format}"
    with path.open("wb") as file:
        _encode(table, staging.format, file)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)
    return {"sink": sink, "staged": str(path), "name": f"{stem}.{staging.format}", "rows": table.num_rows}


def _encode(table: pa.Table, format: str, file: Any) -> None:
    if format == "parquet":
        pa.parquet.write_table(table, file)
    elif format == "csv":
        pa.csv.write_csv(table, file)
    else:
        kind = pa.struct(list(table.schema))
        for row in table.to_pylist():
            file.write(json.dumps(_as_json(row, kind), allow_nan=False, ensure_ascii=False).encode() + b"\n")


def _as_json(value: Any, kind: pa.DataType) -> Any:
    """A value as Spark's JSON has it: maps are objects, bytes are base64, and what is no number is null."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if pa.types.is_struct(kind):
        return {field.name: _as_json(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {str(key): _as_json(one, kind.item_type) for key, one in value}
    if pa.types.is_list(kind):
        return [_as_json(one, kind.value_type) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if isinstance(value, bool | int | float | str) else str(value)


def publish(receipt: dict[str, Any], folder: Path) -> None:
    """Move a staged file to where readers look. One that is not there any more was moved before."""
    try:
        os.replace(receipt["staged"], folder / receipt["name"])
    except FileNotFoundError:
        if os.path.exists(receipt["staged"]):  # then it is the folder that is not there
            raise


def check_seen(receipts: Iterable[dict[str, Any]]) -> None:
    """Refuse a batch of which the driver does not see a file, before it is committed: ``publish`` would take it for moved."""
    for receipt in receipts:
        if not os.path.exists(receipt["staged"]):
            raise RunError(
                f"a task wrote {receipt['staged']}, with {receipt['rows']} records, and the driver does not see it; nothing of"
                " the batch was committed. Mount that folder on every node, and start again"
            )


def sweep(staging: Staging, before_epoch: int) -> None:
    """Remove what earlier epochs staged and did not commit."""
    root = Path(staging.folder)
    for folder in root.glob("epoch-*"):
        if int(folder.name.removeprefix("epoch-")) < before_epoch:
            shutil.rmtree(folder, ignore_errors=True)
