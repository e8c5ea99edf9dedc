"""Merges segments: keeps the newest row of every key, one group of shards at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from springtide.policy.group.shards import shards_of
from springtide.spark.state.lookup import distinct_in
from springtide.spark.state.segment import GONE, HASH, TOUCHED, Segment, Writer
from springtide.spark.state.stepping import StateLayout, group_bytes, shards_at_once
from springtide.spark.state.store import store_of

STEP_BYTES = 8 << 20
"""A merge works on this much at once, and may then sleep for the same time, since batches need the cores and the disk."""
Fit = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Converts rows of an older schema to the present schema."""


def merge(
    layout: StateLayout, names: Sequence[str], target: str, oldest: bool, now: int, rests: bool = False
) -> dict[str, Any]:
    """Merge segments, given newest first, into the file ``target``. ``oldest``: no segment is older, so deleted keys are
    dropped. ``rests``: sleep between groups for as long as the last group took.

    Returns the file, None if no row is left, the number of expired keys, and the cache traffic."""
    store = store_of(layout.folder)
    segments = store.segments(names)
    writer, expired = None, 0
    begin = time.perf_counter()
    file = None
    try:
        for newest in newest_by_group(segments, layout.shards, layout.fitted, STEP_BYTES):
            rows, gone = _living(newest, layout, now) if oldest else (newest, 0)
            expired += gone
            if rows.num_rows:
                writer = writer or Writer(store.writing(target), layout.schema, layout.shards, layout.timers)
                writer.add(rows)
                writer.sync()
            if rests:
                time.sleep(time.perf_counter() - begin)
            begin = time.perf_counter()
        if writer is not None:
            file = writer.finish()
            store.publish(target)
    except BaseException:  # failed merges are retried: their files would fill the disk
        if writer is not None:
            writer.discard()
        raise
    return {"file": file, "expired": expired, "traffic": vars(store.traffic)}


def newest_by_group(
    segments: Sequence[Segment], shards: int, fitted: Fit, most_bytes: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The newest row of every key, sorted, by groups of shards. ``segments``: newest first."""
    for first, last in groups(segments, shards, most_bytes):
        rows = newest_within(segments, first, last, shards, fitted)
        if rows is not None:
            yield rows


def groups(segments: Sequence[Segment], shards: int, most_bytes: int | None = None) -> Iterator[tuple[int, int]]:
    """The first and the last shard of every group."""
    count = shards_at_once(segments, shards, most_bytes or group_bytes())
    for first in range(0, shards, count):
        yield first, min(first + count, shards) - 1


def newest_within(segments: Sequence[Segment], first: int, last: int, shards: int, fitted: Fit) -> pa.RecordBatch | None:
    """The newest row of every key in a range of shards, sorted; None if there is no row."""
    parts = [fitted(part) for segment in segments for part in rows_within(segment, first, last, shards)]
    if not parts:
        return None
    rows = pa.concat_batches(parts)  # the newest first
    _, newest, _ = distinct_in(rows)
    return rows.take(pa.array(newest))


def rows_within(segment: Segment, first: int, last: int, shards: int) -> Iterator[pa.RecordBatch]:
    for number in segment.within(first, last):
        rows = segment.read(number)
        of = shards_of(rows.column(HASH).to_numpy(), shards)
        begin, end = np.searchsorted(of, first), np.searchsorted(of, last, side="right")
        if end > begin:
            yield rows.slice(begin, end - begin)


def _living(rows: pa.RecordBatch, layout: StateLayout, now: int) -> tuple[pa.RecordBatch, int]:
    """The rows without deleted and expired keys, and the number of expired keys."""
    there = ~rows.column(GONE).to_numpy(zero_copy_only=False)
    fresh = there
    if layout.ttl_us is not None:
        fresh = there & (rows.column(TOUCHED).to_numpy() + layout.ttl_us >= now)
    return (rows if fresh.all() else rows.filter(pa.array(fresh))), int((there & ~fresh).sum())
