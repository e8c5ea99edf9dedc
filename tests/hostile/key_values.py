"""Keys of all types as hypothesis draws them, and what counts as the same key among plain Python values."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Hashable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as some

LONG = 200
"""Bytes of the longest strings: more than are hashed word by word."""
TEXT = some.text(some.characters(exclude_categories=["Cs"]), max_size=4)
FLAT: dict[pa.DataType, some.SearchStrategy[Any]] = {
    pa.bool_(): some.booleans(),
    pa.int8(): some.integers(-128, 127),
    pa.int64(): some.integers(-3, 3) | some.integers(-(2**63), 2**63 - 1),
    pa.uint64(): some.integers(0, 3) | some.integers(2**64 - 3, 2**64 - 1),
    pa.float32(): some.floats(width=32),
    pa.float64(): some.sampled_from([0.0, -0.0, float("nan"), float("inf")]) | some.floats(),
    pa.string(): TEXT | TEXT.map(lambda text: text.ljust(LONG, "é")),
    pa.binary(): some.binary(max_size=4) | some.binary(max_size=4).map(lambda raw: raw.rjust(LONG, b"\xff")),
    pa.date32(): some.dates(datetime.date(1969, 12, 30), datetime.date(1970, 1, 3)),
    pa.timestamp("us", "UTC"): some.datetimes(timezones=some.just(datetime.UTC)),
    pa.decimal128(38, 4): some.decimals(-(10**9), 10**9, places=4, allow_nan=False),
}
KINDS = some.recursive(
    some.sampled_from(list(FLAT)),
    lambda inner: some.one_of(
        inner.map(pa.list_),
        some.lists(inner, min_size=1, max_size=2).map(lambda kinds: pa.struct([(f"f{i}", k) for i, k in enumerate(kinds)])),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    ),
    max_leaves=3,
)


def values(kind: pa.DataType) -> some.SearchStrategy[Any]:
    """Values of a type as Arrow takes them; None among them."""
    if kind in FLAT:
        return some.none() | FLAT[kind]
    if pa.types.is_struct(kind):
        return some.none() | some.fixed_dictionaries({field.name: values(field.type) for field in kind})
    if pa.types.is_map(kind):
        pairs = some.tuples(some.sampled_from(["", "a", "b"]), values(kind.item_type))
        return some.none() | some.lists(pairs, max_size=2, unique_by=lambda pair: pair[0])
    return some.none() | some.lists(values(kind.value_type), max_size=3)


def plain(value: Any, kind: pa.DataType) -> Hashable:
    """A value as a key of a dictionary: equal exactly if it is the same key."""
    if value is None:
        return None
    if pa.types.is_floating(kind):
        return "NaN" if value != value else value
    if pa.types.is_struct(kind):
        return tuple(plain(value[field.name], field.type) for field in kind)
    if pa.types.is_map(kind):
        return frozenset(Counter((key, plain(item, kind.item_type)) for key, item in value).items())
    if pa.types.is_list(kind):
        return tuple(plain(item, kind.value_type) for item in value)
    unchanged: Hashable = value
    return unchanged


def stored(value: Any, kind: pa.DataType) -> Any:
    """A value as Arrow gives it back, such as a float of 32 bits."""
    return pa.array([value], kind, from_pandas=False).to_pylist()[0]
