"""Collects the committed output of several batches in larger files.

The manifest of each batch lists the parts that wait: staged files of committed batches, which readers do not see. When a group
of them, those of one folder, has the size or the age, the driver writes them one after another into one staged file before
the next commit. The manifest of that commit names the new file among its receipts and the parts no longer, and a rename makes
the file visible, as any other output. So a crash leaves either the parts or the file.

What is rolled depends only on the manifest before, the receipts of the batch, and the time at which Spark planned it: a replay
rolls the same records into a file of the same name.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from springtide.durable import make_folder, sync_folder
from springtide.model.endpoints import Rolling
from springtide.spark.driver import staged
from springtide.spark.driver.staged import Output
from springtide.spark.shared.program import Staging
from springtide.spark.shared.receipt import Receipt, folder

GROUP_BYTES = 64 << 20
"""About the size of a row group of a rolled Parquet file, and what the driver has in memory of it."""
LARGE = 0.5
"""A part of this share of the size is not copied, but becomes visible as it is."""


@dataclass(frozen=True)
class Part:
    """A staged file that waits: the batch that wrote it, and when Spark planned that, in µs since 1970."""

    receipt: Receipt
    batch: int
    since: int

    def to_json(self) -> dict[str, Any]:
        return {**vars(self.receipt), "batch": self.batch, "since": self.since}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Part:
        """ValueError for a document that is no part."""
        fields = dict(document)
        try:
            batch, since = int(fields.pop("batch")), int(fields.pop("since"))
            return cls(Receipt(**fields), batch, since)
        except (KeyError, TypeError) as error:
            raise ValueError(f"a part that waits has other fields than a part ({error})") from None


@dataclass
class Rolled:
    """``receipts``: of files to publish. ``waiting``: the parts that wait on. ``merged``: the parts in new files."""

    receipts: list[Receipt] = field(default_factory=list)
    waiting: list[Part] = field(default_factory=list)
    merged: list[Part] = field(default_factory=list)


Locate = Callable[[Part], Output]


def roll(
    parts: Sequence[Part], rolling: Rolling, staging: Staging, epoch: int, batch: int, now: int, locate: Locate,
    every: bool = False, first: int = 0,
) -> Rolled:  # fmt: skip
    """Roll the groups that have the size or the age at ``now``, or ``every`` group. ``first``: the number of the next file."""
    rolled, number = Rolled(), first
    groups: dict[str, list[Part]] = {}
    for part in parts:
        groups.setdefault(part.receipt.place, []).append(part)
    for place in sorted(groups):
        group = groups[place]
        large = [part for part in group if (part.receipt.bytes or 0) >= LARGE * rolling.bytes and part.batch == batch]
        rolled.receipts += [part.receipt for part in large]
        rest = [part for part in group if part not in large]
        if not rest or not (every or _is_due(rest, rolling, now)):
            rolled.waiting += rest
            continue
        name = f"{staging.stem}-{batch:08d}-rolled-{number:05d}"
        number += 1
        rolled.receipts.append(_written(rest, staging, epoch, name, [locate(part) for part in rest]))
        rolled.merged += rest
    return rolled


def _is_due(parts: Sequence[Part], rolling: Rolling, now: int) -> bool:
    oldest = min(part.since for part in parts)
    return sum(part.receipt.bytes or 0 for part in parts) >= rolling.bytes or now - oldest >= rolling.age_s * 1e6


def _written(parts: Sequence[Part], staging: Staging, epoch: int, stem: str, outputs: Sequence[Output]) -> Receipt:
    """The receipt of a new staged file with the records of the parts, each of which is compared with its own receipt first."""
    for output in outputs:
        staged.check_part(output)
    first = parts[0].receipt
    file = folder(staging, epoch) / f"{stem}-0.{staging.format}"
    make_folder(file.parent)
    staged.write_durably(
        file, lambda target: _merge([output.staged for output in outputs], staging.format, target), staging.mode
    )
    sync_folder(file.parent)
    rows = sum(part.receipt.rows for part in parts)
    size, checksum = staged.measured(file)
    return Receipt(first.sink, epoch, file.name, f"{stem}.{staging.format}", rows, size, checksum, first.place)


def _merge(files: Sequence[Path], format: str, target: IO[bytes]) -> None:
    if format == "parquet":
        _merge_parquet(files, target)
        return
    for index, file in enumerate(files):
        with file.open("rb") as source:
            if index and format == "csv":
                source.readline()  # its header
            shutil.copyfileobj(source, target, 1 << 20)


def _merge_parquet(files: Sequence[Path], target: IO[bytes]) -> None:
    """Files of one schema in larger row groups."""
    with pq.ParquetWriter(target, pq.read_schema(files[0])) as writer:
        held, size = list[pa.Table](), 0
        for file in files:
            opened = pq.ParquetFile(file)
            for group in range(opened.num_row_groups):
                held.append(opened.read_row_group(group))
                size += held[-1].nbytes
                if size >= GROUP_BYTES:
                    writer.write_table(pa.concat_tables(held))
                    held, size = [], 0
        if held:
            writer.write_table(pa.concat_tables(held))
