"""Many small segments into few: the newest row of every key, group by group of shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from springtide.policy.group.shards import shards_of
from springtide.spark.state.segment import GONE, HASH, HASH2, TOUCHED, Segment, Writer, opened
from springtide.spark.state.stepping import GROUP_BYTES, Kept


def merge(kept: Kept, names: Sequence[str], path: Path, oldest: bool, now: int) -> dict[str, Any]:
    """One segment in the place of these, which are given newest first. ``oldest``: no others are older, so that what is gone
    need not be remembered any more. Returns the file, None if nothing is left, and how many keys were let go."""
    segments = [opened(f"{kept.folder}/{name}") for name in names]
    writer, expired = None, 0
    for first, last in _groups(kept, segments):
        rows = _newest(segments, first, last, kept)
        if rows is None:
            continue
        if oldest:
            rows, gone = _living(rows, kept, now)
            expired += gone
        if rows.num_rows:
            writer = writer or Writer(path, kept.schema, kept.shards, kept.timers)
            writer.add(rows)
    return {"file": None if writer is None else writer.finish(), "expired": expired}


def _groups(kept: Kept, segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Ranges of shards whose state fits in memory."""
    size = sum(segment.size for segment in segments) / kept.shards
    count = max(1, int(GROUP_BYTES // max(1.0, size)))
    for first in range(0, kept.shards, count):
        yield first, min(first + count, kept.shards) - 1


def _newest(segments: Sequence[Segment], first: int, last: int, kept: Kept) -> pa.RecordBatch | None:
    parts = [part for segment in segments for part in rows_within(segment, first, last, kept)]
    if not parts:
        return None
    rows = pa.concat_batches(parts)  # the newest first, and lexsort keeps that order among equals
    one, two = rows.column(HASH).to_numpy(), rows.column(HASH2).to_numpy()
    order = np.lexsort((two, one))
    one, two = one[order], two[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (one[1:] != one[:-1]) | (two[1:] != two[:-1])
    return rows.take(pa.array(order[new]))


def rows_within(segment: Segment, first: int, last: int, kept: Kept) -> Iterator[pa.RecordBatch]:
    """A segment's rows of these shards."""
    for number in segment.within(first, last):
        rows = kept.fitted(segment.read(number))
        shards = shards_of(rows.column(HASH).to_numpy(), kept.shards)
        begin, end = np.searchsorted(shards, first), np.searchsorted(shards, last, side="right")
        if end > begin:
            yield rows.slice(begin, end - begin)


def _living(rows: pa.RecordBatch, kept: Kept, now: int) -> tuple[pa.RecordBatch, int]:
    """Without what is gone, or has not been written to for longer than it is to be kept; and how many of the latter."""
    there = ~rows.column(GONE).to_numpy(zero_copy_only=False)
    fresh = there
    if kept.ttl_us is not None:
        fresh = there & (rows.column(TOUCHED).to_numpy() + kept.ttl_us >= now)
    return (rows if fresh.all() else rows.filter(pa.array(fresh))), int((there & ~fresh).sum())
