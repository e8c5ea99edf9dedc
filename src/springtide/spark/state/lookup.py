"""The newest row of each key: a search in sorted hashes, from the newest segment to the oldest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.policy.group.shards import shards_of
from springtide.spark.state.segment import GONE, HASH, HASH2, Hashes, Places, Segment

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


def find(rows: pa.RecordBatch, wanted: Identities) -> Places:
    """The row of each identity in sorted rows, -1 for none."""
    one, two = rows.column(HASH).to_numpy(), rows.column(HASH2).to_numpy()
    places: Places = one.searchsorted(wanted.one)
    last = len(one) - 1
    at = np.minimum(places, last)
    alike = one[at] == wanted.one
    found: Places = np.where(alike & (two[at] == wanted.two), at, -1)
    looking = np.flatnonzero(alike & (found < 0))
    while len(looking):  # never, unless two keys agree in their first 64 bits
        places[looking] += 1
        looking = looking[places[looking] <= last]
        looking = looking[one[places[looking]] == wanted.one[looking]]
        same = two[places[looking]] == wanted.two[looking]
        found[looking[same]] = places[looking[same]]
        looking = looking[~same]
    return found


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
    for segment in segments:
        if not len(missing):
            break
        for number, span in segment.asked(shards_of(wanted.one[missing], segment.shards)):  # sorted, as the hashes are
            of = missing[span]
            rows = segment.look(number)
            places = find(rows, wanted.take(of))
            hit = places >= 0
            if hit.any():
                parts.append(fitted(rows.take(pa.array(places[hit]))))
                owners.append(of[hit])
                known[of[hit]] = True
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
    rows = every.take(pa.array(order))
    gone = rows.column(GONE).fill_null(False).to_numpy(zero_copy_only=False)
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
