"""Comparison of keys by the rules of ``keys.py``, for keys that share a hash.

Rows are compared pairwise, column by column. Flat values, structs and lists of them are compared a column at a time; maps,
which have no order, and types that are rarely keys are compared as Python values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from springtide.policy.group.keys import floats, is_bytes, is_text, raw

Mask = npt.NDArray[np.bool_]


def same_keys(ours: pa.RecordBatch, theirs: pa.RecordBatch) -> Mask:
    """Whether two batches have the same key, row by row. Both have the same columns, in the same order.

    >>> ours = pa.record_batch({"route": pa.array([1, None, 3])})
    >>> same_keys(ours, pa.record_batch({"route": pa.array([1, None, None])})).tolist()
    [True, True, False]
    """
    same = np.ones(ours.num_rows, dtype=np.bool_)
    for our, their in zip(ours.columns, theirs.columns, strict=True):
        same &= _same(our, their)
    return same


def comparable(keys: pa.RecordBatch) -> list[Hashable]:
    """Every row's key as a Python value; values are equal if and only if the keys are the same. Takes microseconds a row."""
    columns = [_comparable(column) for column in keys.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * keys.num_rows


def _same(ours: pa.Array, theirs: pa.Array) -> Mask:
    if not ours.null_count and not theirs.null_count:
        return _same_values(ours, theirs)
    our_nulls, their_nulls = _nulls(ours), _nulls(theirs)
    both: Mask = our_nulls & their_nulls
    return both | (~(our_nulls | their_nulls) & _same_values(ours, theirs))


def _nulls(column: pa.Array) -> Mask:
    nulls: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _same_values(ours: pa.Array, theirs: pa.Array) -> Mask:
    """Whether the values of each row are the same; undefined in rows where either is null."""
    kind, is_ = ours.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _same(ours.storage, theirs.storage)
    if is_.is_null(kind) or not len(ours):
        return np.ones(len(ours), dtype=np.bool_)
    if is_text(kind) or is_bytes(kind):
        wide = pa.large_string() if is_text(kind) else pa.large_binary()
        return _flags(pc.equal(ours.cast(wide), theirs.cast(wide)))
    if is_.is_boolean(kind) or is_.is_decimal128(kind) or is_.is_decimal256(kind):
        return _flags(pc.equal(ours, theirs))
    if is_.is_integer(kind) or (is_.is_temporal(kind) and not is_.is_interval(kind)):
        return np.equal(_numbers(ours), _numbers(theirs))
    if is_.is_floating(kind):
        return np.equal(floats(ours), floats(theirs))
    if is_.is_struct(kind):
        same = np.ones(len(ours), dtype=np.bool_)
        for our, their in zip(ours.flatten(), theirs.flatten(), strict=True):
            same &= _same(our, their)
        return same
    if is_.is_list(kind) or is_.is_large_list(kind):
        return _same_lists(ours, theirs)
    pairs = zip(_comparable(ours), _comparable(theirs), strict=True)
    return np.array([our == their for our, their in pairs], dtype=np.bool_)


def _flags(column: pa.Array) -> Mask:
    flags: Mask = column.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Integers and times as integers, in the type's own unit; nanoseconds become microseconds, and date64 becomes days."""
    kind = column.type
    values = raw(column, f"i{kind.bit_width // 8}")
    whole = values // 1_000 if getattr(kind, "unit", None) == "ns" else values
    return whole // 86_400_000 if pa.types.is_date64(kind) else whole  # type: ignore[return-value]


def _same_lists(ours: pa.Array, theirs: pa.Array) -> Mask:
    """Whether lists have the same length and the same elements, row by row."""
    lengths = _flat_lengths(ours)
    same: Mask = lengths == _flat_lengths(theirs)
    if same.any():
        alike = pa.array(np.flatnonzero(same))
        elements = _same(ours.take(alike).flatten(), theirs.take(alike).flatten())
        owners = np.repeat(np.flatnonzero(same), lengths[same])
        same[owners[~elements]] = False
    return same


def _flat_lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """The length of every list; 0 for null, whose elements ``flatten`` leaves out."""
    lengths: npt.NDArray[np.int64] = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _comparable(column: pa.Array) -> list[Any]:
    kind, is_ = column.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _comparable(column.storage)
    if is_.is_dictionary(kind):
        return _comparable(column.dictionary_decode())
    if is_.is_floating(kind):
        return _with_nulls(floats(column).tolist(), column)
    if is_.is_temporal(kind) and not is_.is_interval(kind):
        return _with_nulls(_numbers(column).tolist(), column)
    if is_.is_struct(kind):
        fields = [_comparable(field) for field in column.flatten()]
        return _with_nulls(list(zip(*fields, strict=True)) if fields else [()] * len(column), column)
    if is_.is_map(kind):
        pairs = list(zip(_comparable(column.keys), _comparable(column.items), strict=True))
        return _with_nulls([frozenset(Counter(part).items()) for part in _parts(pairs, column)], column)
    if is_.is_list(kind) or is_.is_large_list(kind):
        return _with_nulls([tuple(part) for part in _parts(_comparable(column.values), column)], column)
    if is_.is_fixed_size_list(kind):
        return _comparable(column.cast(pa.large_list(kind.value_type)))
    return list(column.to_pylist())


def _with_nulls(values: list[Any], column: pa.Array) -> list[Any]:
    if not column.null_count:
        return values
    return [None if null else value for value, null in zip(values, _nulls(column).tolist(), strict=True)]


def _parts(elements: list[Any], column: pa.Array) -> list[list[Any]]:
    offsets = column.offsets.to_pylist()
    return [elements[begin:end] for begin, end in pairwise(offsets)]
