"""Reads staged parts in blocks of bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow.parquet

from springtide.model.publisher import Part

BLOCK_BYTES = 4 << 20
"""Of a block's records, on average. Their Python objects take two to three times as much."""
BLOCK_ROWS = 4096


class Block(NamedTuple):
    """Consecutive messages of a part, from ``row`` on: what ``produce`` wants of each after the topic."""

    part: int
    row: int
    messages: list[tuple[Any, ...]]


def blocks(parts: Sequence[Part], part: int, row: int) -> Iterator[Block]:
    """The messages of a batch from a row of a part on."""
    for each in parts[part:]:
        skip = row if each.number == parts[part].number else 0
        with pyarrow.parquet.ParquetFile(each.file) as file:
            first = 0
            for batch in file.iter_batches(_rows(file.metadata)):
                here = max(0, skip - first)
                if here < batch.num_rows:
                    yield Block(each.number, first + here, _messages(batch.slice(here)))
                first += batch.num_rows


def _rows(metadata: Any) -> int:
    size: int = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES * int(metadata.num_rows) // max(1, size)))


def _messages(batch: Any) -> list[tuple[Any, ...]]:
    """(value, key), and with further columns (value, key, partition, None, timestamp, headers)."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    plain = (columns["value"], columns["key"])
    if len(columns) == 2:
        return list(zip(*plain, strict=True))
    none = [None] * batch.num_rows
    partitions = [-1 if number is None else number for number in columns.get("partition", none)]
    times = [at or 0 for at in columns.get("timestamp", none)]
    headers = [[(each["name"], each["value"]) for each in row or ()] for row in columns.get("headers", none)]
    # 0 is now, -1 is the partitioner's choice; the fifth argument is a callback for each record
    return list(zip(*plain, partitions, none, times, headers, strict=True))
