"""Whether two keys are the same, by the rules of ``keys.py``: what decides where two keys share a hash.

Rows are compared pairwise, column by column. Flat values, structs and lists of them are compared as whole columns; maps,
which have no order, and types that are seldom a key go through Python values.
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
    """Row by row, whether two batches have the same key. Both have the same columns, in the same order.

    >>> ours = pa.record_batch({"route": pa.array([1, None, 3])})
    >>> same_keys(ours, pa.record_batch({"route": pa.array([1, None, None])})).tolist()
    [True, True, False]
    """
    same = np.ones(ours.num_rows, dtype=np.bool_)
    for one, other in zip(ours.columns, theirs.columns, strict=True):
        same &= _same(one, other)
    return same


def comparable(keys: pa.RecordBatch) -> list[Hashable]:
    """Every row's key as a Python value: two are equal if and only if the keys are the same. Some microseconds a row."""
    columns = [_comparable(column) for column in keys.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * keys.num_rows


def _same(one: pa.Array, other: pa.Array) -> Mask:
    if not one.null_count and not other.null_count:
        return _same_values(one, other)
    one_null, other_null = _nulls(one), _nulls(other)
    both: Mask = one_null & other_null
    return both | (~(one_null | other_null) & _same_values(one, other))


def _nulls(column: pa.Array) -> Mask:
    nulls: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _same_values(one: pa.Array, other: pa.Array) -> Mask:
    """Of the rows where both have a value; the others do not matter."""
    kind, is_ = one.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _same(one.storage, other.storage)
    if is_.is_null(kind) or not len(one):
        return np.ones(len(one), dtype=np.bool_)
    if is_text(kind) or is_bytes(kind):
        wide = pa.large_string() if is_text(kind) else pa.large_binary()
        return _flags(pc.equal(one.cast(wide), other.cast(wide)))
    if is_.is_boolean(kind) or is_.is_decimal128(kind) or is_.is_decimal256(kind):
        return _flags(pc.equal(one, other))
    if is_.is_integer(kind) or (is_.is_temporal(kind) and not is_.is_interval(kind)):
        return np.equal(_numbers(one), _numbers(other))
    if is_.is_floating(kind):
        return np.equal(floats(one), floats(other))
    if is_.is_struct(kind):
        same = np.ones(len(one), dtype=np.bool_)
        for ours, theirs in zip(one.flatten(), other.flatten(), strict=True):
            same &= _same(ours, theirs)
        return same
    if is_.is_list(kind) or is_.is_large_list(kind):
        return _same_lists(one, other)
    pairs = zip(_comparable(one), _comparable(other), strict=True)
    return np.array([ours == theirs for ours, theirs in pairs], dtype=np.bool_)


def _flags(column: pa.Array) -> Mask:
    flags: Mask = column.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Integers and times of one type, in its own unit, as no two of its values are alike; nanoseconds as microseconds."""
    kind = column.type
    values = raw(column, f"i{kind.bit_width // 8}")
    whole = values // 1_000 if getattr(kind, "unit", None) == "ns" else values
    return whole // 86_400_000 if pa.types.is_date64(kind) else whole  # type: ignore[return-value]


def _same_lists(one: pa.Array, other: pa.Array) -> Mask:
    """Lists of the same length, whose elements are the same in each place."""
    lengths, others = (_flat_lengths(column) for column in (one, other))
    same: Mask = lengths == others
    if same.any():
        alike = pa.array(np.flatnonzero(same))
        elements = _same(one.take(alike).flatten(), other.take(alike).flatten())
        owners = np.repeat(np.flatnonzero(same), lengths[same])
        same[owners[~elements]] = False
    return same


def _flat_lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """The length of every list; that of a null is 0, as ``flatten`` leaves out what lies under it."""
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
    """The elements of every list of a column."""
    offsets = column.offsets.to_pylist()
    return [elements[begin:end] for begin, end in pairwise(offsets)]
