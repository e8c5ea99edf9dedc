"""The newest row of each key: a search in sorted hashes, from the newest segment to the oldest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.policy.group.shards import shards_of
from springtide.spark.state.segment import GONE, HASH, HASH2, Hashes, Looked, Places, Segment

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Identities:
    """Keys as state knows them, sorted, each once: 128 bits of hash. Of 10⁹ keys, two are alike with a chance of 10⁻²¹."""

    one: Hashes
    two: Hashes

    def __len__(self) -> int:
        return len(self.one)

    def take(self, places: Places | Mask) -> Identities:
        return Identities(self.one[places], self.two[places])


def distinct(one: Hashes, two: Hashes) -> tuple[Identities, Places, Places]:
    """The distinct identities, the row in which each comes first, and which of them each row has."""
    order = np.lexsort((two, one)) if len(one) else np.zeros(0, dtype=np.int64)
    first, second = one[order], two[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    of = np.empty(len(order), dtype=np.int64)
    of[order] = np.cumsum(new) - 1
    return Identities(first[new], second[new]), order[new], of  # lexsort is stable, so the first of each is the earliest


def find(chunk: Looked, one: Hashes, two: Hashes) -> tuple[Places, Places]:
    """Which of these identities a chunk has, and the row of each."""
    places: Places = chunk.one.searchsorted(one)
    last = len(chunk.one) - 1
    looking = np.flatnonzero(chunk.one[np.minimum(places, last)] == one)
    at = places[looking]
    other = chunk.two[at] != two[looking]
    while other.any():  # never, unless two keys agree in their first 64 bits
        at = at + other
        there = at <= last
        looking, at = looking[there], at[there]
        there = chunk.one[at] == one[looking]
        looking, at = looking[there], at[there]
        other = chunk.two[at] != two[looking]
    return looking, at


def newest(
    segments: Sequence[Segment], wanted: Identities, schema: pa.Schema, fitted: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> tuple[pa.RecordBatch, Mask]:
    """A row of state for each identity, and whether it is known; rows of nulls where it is not.

    ``segments``: newest first. ``fitted`` gives rows of an older schema the present one.
    """
    parts: list[pa.RecordBatch] = []
    owners: list[Places] = []
    known = np.zeros(len(wanted), dtype=np.bool_)
    missing = np.arange(len(wanted))
    shards = shards_of(wanted.one, segments[0].shards) if segments else missing  # sorted, as the hashes are
    for segment in segments:
        if not len(missing):
            break
        asked = missing[segment.present[shards[missing]]]
        for number, span in segment.asked(shards[asked]) if len(asked) else ():
            of = asked[span]
            chunk = segment.look(number)
            which, places = find(chunk, wanted.one[of], wanted.two[of])
            if len(which):
                parts.append(fitted(chunk.rows.take(pa.array(places))))
                owners.append(of[which])
                known[of[which]] = True
        segment.remember()
        missing = missing[~known[missing]]
    return _in_order(parts, owners, missing, len(wanted), schema)


def _in_order(
    parts: list[pa.RecordBatch], owners: list[Places], missing: Places, count: int, schema: pa.Schema
) -> tuple[pa.RecordBatch, Mask]:
    known = np.ones(count, dtype=np.bool_)
    known[missing] = False
    blank = pa.RecordBatch.from_arrays([pa.nulls(len(missing), field.type) for field in schema], schema=schema)
    every = pa.concat_batches([*parts, blank])
    order = np.argsort(np.concatenate([*owners, missing])) if parts else np.argsort(missing)
    gone = every.column(GONE).fill_null(False).to_numpy(zero_copy_only=False)[order]
    rows = every.take(pa.array(order, mask=gone) if gone.any() else pa.array(order))  # a row without a place is of nulls
    return rows, known & ~gone


def due(segments: Sequence[Segment], column: str, until: int, alarm: bool, owned: Mask) -> Identities:
    """Keys that may have a timer up to then: all of which some row says so, if not the newest; also of shards that are beside
    those that are ``owned``."""
    ones, twos = [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.uint64)]
    for segment in segments:
        for number, chunk in enumerate(segment.chunks):
            if (chunk.alarm if alarm else chunk.due) <= until and owned[chunk.first_shard : chunk.last_shard + 1].any():
                rows = segment.read(number)
                times = rows.column(column)
                come = times.fill_null(until + 1).to_numpy(zero_copy_only=False) <= until
                ones.append(rows.column(HASH).to_numpy()[come])
                twos.append(rows.column(HASH2).to_numpy()[come])
    return distinct(np.concatenate(ones), np.concatenate(twos))[0]
