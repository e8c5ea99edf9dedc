"""Looks up the newest row of each key by a search in sorted hashes, from the newest segment to the oldest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from springtide.policy.group.same import Mask, comparable, same_keys
from springtide.policy.group.shards import shards_of
from springtide.spark.state.segment import GONE, HASH, HASH2, Hashes, LookupChunk, Places, Segment, keys_in


@dataclass(frozen=True, eq=False)
class Identities:
    """Distinct keys, sorted by 128 bits of hash. Lookups compare the keys, too: two keys with the same hashes are adjacent."""

    one: Hashes
    two: Hashes
    keys: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.one)

    def take(self, places: Places) -> Identities:
        """The keys at these ascending places; without a copy if the places are consecutive."""
        if len(places) and places[-1] - places[0] == len(places) - 1:
            begin, count = int(places[0]), len(places)
            end = begin + count
            return Identities(self.one[begin:end], self.two[begin:end], self.keys.slice(begin, count))
        return Identities(self.one[places], self.two[places], self.keys.take(pa.array(places)))


def none(keys: pa.Schema) -> Identities:
    return Identities(np.zeros(0, np.uint64), np.zeros(0, np.uint64), pa.RecordBatch.from_pylist([], schema=keys))


def distinct(one: Hashes, two: Hashes, keys: pa.RecordBatch) -> tuple[Identities, Places, Places]:
    """The distinct keys, the first row of each, and the index of each row's key. ``one``, ``two``: the hashes of the rows."""
    order = np.lexsort((two, one)) if len(one) else np.zeros(0, dtype=np.int64)
    first, second = one[order], two[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    found = _numbered(one, two, keys, order, new)
    return found if _are_same(keys, found, order[~new]) else _numbered(one, two, keys, *_separated(keys, order, new))


def _numbered(
    one: Hashes, two: Hashes, keys: pa.RecordBatch, order: Places, new: Mask
) -> tuple[Identities, Places, Places]:  # fmt: skip
    """The result of ``distinct``. ``order`` sorts the rows by key, and ``new`` marks the first row of each key in it."""
    of = np.empty(len(order), dtype=np.int64)
    of[order] = np.cumsum(new) - 1
    first = order[new]  # the earliest of each, since lexsort is stable
    return Identities(one[first], two[first], keys.take(pa.array(first))), first, of


def _are_same(keys: pa.RecordBatch, found: tuple[Identities, Places, Places], again: Places) -> bool:
    """Whether the rows ``again``, with the same hashes as an earlier row, also have its key."""
    every, _, of = found
    if not len(again):
        return True
    if 2 * len(again) > len(of):  # comparing all rows saves a copy
        return bool(same_keys(keys, every.keys.take(pa.array(of))).all())
    return bool(same_keys(keys.take(pa.array(again)), every.keys.take(pa.array(of[again]))).all())


def distinct_in(rows: pa.RecordBatch) -> tuple[Identities, Places, Places]:
    """``distinct`` for rows of state."""
    return distinct(rows.column(HASH).to_numpy(), rows.column(HASH2).to_numpy(), keys_in(rows))


def _separated(keys: pa.RecordBatch, order: Places, new: Mask) -> tuple[Places, Mask]:
    """Reorder rows of keys that share their hashes: the rows of each key are adjacent, the earliest first."""
    starts = np.flatnonzero(new)
    order, new = order.copy(), new.copy()
    for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        if end - begin == 1:
            continue
        rows: dict[Hashable, list[int]] = {}
        for row, key in zip(order[begin:end].tolist(), comparable(keys.take(pa.array(order[begin:end]))), strict=True):
            rows.setdefault(key, []).append(row)
        order[begin:end] = [row for own in rows.values() for row in own]
        sizes = [len(own) for own in rows.values()]
        new[begin + np.cumsum([0, *sizes[:-1]])] = True
    return order, new


def find(chunk: LookupChunk, wanted: Identities) -> tuple[Places, Places]:
    """The wanted keys in a chunk, and the row of each."""
    return _found(chunk, wanted, lambda at, looking: same_keys(chunk.keys.take(pa.array(at)), wanted.take(looking).keys))


def find_hashes(chunk: LookupChunk, wanted: Identities) -> tuple[Places, Places]:
    """The same by hashes alone: the first row with the hashes of a key. The caller compares the keys."""
    return _found(chunk, wanted, lambda at, looking: np.ones(len(at), dtype=np.bool_))


def _found(chunk: LookupChunk, wanted: Identities, is_same: Callable[[Places, Places], Mask]) -> tuple[Places, Places]:
    places: Places = chunk.one.searchsorted(wanted.one)
    last = len(chunk.one) - 1
    looking = np.flatnonzero(chunk.one[np.minimum(places, last)] == wanted.one)
    at = places[looking]
    found: list[tuple[Places, Places]] = []
    while len(looking):
        right = chunk.two[at] == wanted.two[looking]
        right[right] = is_same(at[right], looking[right])
        if not found and right.all():
            return looking, at
        found.append((looking[right], at[right]))
        looking, at = looking[~right], at[~right] + 1  # two keys share a hash: the next row may have the other key
        there = at <= last
        looking, at = looking[there], at[there]
        there = chunk.one[at] == wanted.one[looking]
        looking, at = looking[there], at[there]
    return np.concatenate([which for which, _ in found] or [looking]), np.concatenate([rows for _, rows in found] or [at])


def newest(
    segments: Sequence[Segment], wanted: Identities, schema: pa.Schema, fitted: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> tuple[pa.RecordBatch, Mask]:
    """A row of state for each key, and whether the key is known; unknown keys have rows of nulls.

    ``segments``: newest first. ``fitted`` converts rows of an older schema. Keys are looked up by their hashes and compared
    all at once; only if two keys share their hashes, each row is compared during the lookup.
    """
    rows, found = _newest(segments, wanted, schema, fitted, find_hashes)
    if not (same_keys(keys_in(rows), wanted.keys) | ~found).all():
        rows, found = _newest(segments, wanted, schema, fitted, find)
    gone = rows.column(GONE).fill_null(False).to_numpy(zero_copy_only=False)
    if gone.any():
        rows = rows.take(pa.array(np.arange(len(gone)), mask=gone))  # masked places give rows of nulls
    return rows, found & ~gone


def _newest(
    segments: Sequence[Segment], wanted: Identities, schema: pa.Schema, fitted: Callable[[pa.RecordBatch], pa.RecordBatch],
    find: Callable[[LookupChunk, Identities], tuple[Places, Places]],
) -> tuple[pa.RecordBatch, Mask]:  # fmt: skip
    """The newest row of each key, which may mark the key as deleted, and whether there is a row."""
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
            which, places = find(chunk, wanted.take(of))
            if len(which):
                parts.append(fitted(chunk.rows.take(pa.array(places))))
                owners.append(of[which])
                known[of[which]] = True
        segment.remember()
        missing = missing[~known[missing]]
    blank = pa.RecordBatch.from_arrays([pa.nulls(len(missing), field.type) for field in schema], schema=schema)
    order = np.argsort(np.concatenate([*owners, missing]))
    return pa.concat_batches([*parts, blank]).take(pa.array(order)), known


def due(segments: Sequence[Segment], column: str, until: int, alarm: bool, owned: Mask) -> Iterator[pa.RecordBatch]:
    """The identities and keys of rows with a timer up to ``until``. Includes rows that are not the newest of their key, and
    rows of other shards in the same chunks as the ``owned`` ones."""
    for segment in segments:
        for number, chunk in enumerate(segment.chunks):
            if (chunk.alarm if alarm else chunk.due) <= until and owned[chunk.first_shard : chunk.last_shard + 1].any():
                rows = segment.read(number)
                is_due = pc.less_equal(rows.column(column), until).fill_null(False)
                yield rows.select([HASH, HASH2, *keys_in(rows).schema.names]).filter(is_due)
