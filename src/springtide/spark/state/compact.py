"""Many small segments into few: the newest row of every key, group by group of shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from springtide.policy.group.shards import shards_of
from springtide.spark.state.lookup import distinct_in
from springtide.spark.state.segment import GONE, HASH, TOUCHED, Segment, Writer
from springtide.spark.state.stepping import Kept, group_bytes, shards_at_once
from springtide.spark.state.store import place_of

STEP_BYTES = 8 << 20
"""A merge works on so much at once, and may then rest for as long as that took: batches want the cores, and the disk, too."""
Fit = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Gives rows of an older schema the present one."""


def merge(kept: Kept, names: Sequence[str], target: str, oldest: bool, now: int, rests: bool = False) -> dict[str, Any]:
    """One segment in the place of these, which are given newest first. ``oldest``: no others are older, so that what is gone
    need not be remembered any more. ``target``: the name of the new file. ``rests``: for as long as it works, in between.

    Returns the file, None if nothing is left, how many keys were let go, and what was moved to the node."""
    place = place_of(kept.folder)
    segments = place.segments(names)
    writer, expired = None, 0
    begin = time.perf_counter()
    file = None
    try:
        for newest in newest_by_group(segments, kept.shards, kept.fitted, STEP_BYTES):
            rows, gone = _living(newest, kept, now) if oldest else (newest, 0)
            expired += gone
            if rows.num_rows:
                writer = writer or Writer(place.writing(target), kept.schema, kept.shards, kept.timers)
                writer.add(rows)
                writer.sync()
            if rests:
                time.sleep(time.perf_counter() - begin)
            begin = time.perf_counter()
        if writer is not None:
            file = writer.finish()
            place.keep(target)
    except BaseException:  # a merge is tried again and again: on a full disk its parts would pile up
        if writer is not None:
            writer.discard()
        raise
    return {"file": file, "expired": expired, "traffic": vars(place.traffic)}


def newest_by_group(
    segments: Sequence[Segment], shards: int, fitted: Fit, most_bytes: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The newest row of every key over segments that are given newest first, sorted, by groups of shards."""
    for first, last in groups(segments, shards, most_bytes):
        rows = newest_within(segments, first, last, shards, fitted)
        if rows is not None:
            yield rows


def groups(segments: Sequence[Segment], shards: int, most_bytes: int | None = None) -> Iterator[tuple[int, int]]:
    """The first and the last of the shards of every group."""
    count = shards_at_once(segments, shards, most_bytes or group_bytes())
    for first in range(0, shards, count):
        yield first, min(first + count, shards) - 1


def newest_within(segments: Sequence[Segment], first: int, last: int, shards: int, fitted: Fit) -> pa.RecordBatch | None:
    """The newest row of every key of some shards, sorted; None if there is none."""
    parts = [fitted(part) for segment in segments for part in rows_within(segment, first, last, shards)]
    if not parts:
        return None
    rows = pa.concat_batches(parts)  # the newest first
    _, newest, _ = distinct_in(rows)
    return rows.take(pa.array(newest))


def rows_within(segment: Segment, first: int, last: int, shards: int) -> Iterator[pa.RecordBatch]:
    """A segment's rows of these shards."""
    for number in segment.within(first, last):
        rows = segment.read(number)
        of = shards_of(rows.column(HASH).to_numpy(), shards)
        begin, end = np.searchsorted(of, first), np.searchsorted(of, last, side="right")
        if end > begin:
            yield rows.slice(begin, end - begin)


def _living(rows: pa.RecordBatch, kept: Kept, now: int) -> tuple[pa.RecordBatch, int]:
    """Without what is gone, or has not been written to for longer than it is to be kept; and how many of the latter."""
    there = ~rows.column(GONE).to_numpy(zero_copy_only=False)
    fresh = there
    if kept.ttl_us is not None:
        fresh = there & (rows.column(TOUCHED).to_numpy() + kept.ttl_us >= now)
    return (rows if fresh.all() else rows.filter(pa.array(fresh))), int((there & ~fresh).sum())
