"""Aggregate functions on whole columns: the state of a key, how a batch changes it, and the result.

The state of an aggregate is a few columns with a row for each key. Arrow first aggregates a batch by itself; the result is
then merged into the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from springtide.errors import TopologyError
from springtide.model.state import Mask

Columns = Sequence[pa.Array]
WIDE = 60
"""Decimal digits of a sum that might overflow the state's type. The state has 38 digits at most, Arrow 76."""
EXACT = Context(prec=WIDE)


@dataclass(frozen=True)
class Aggregate:
    """A function of a column, or of the records themselves (``count``).

    ``parts``: the Arrow aggregations of a batch, each of which yields a column of the state. ``merge``: the state after a
    batch, from the state before and the aggregated batch, column by column. ``result``: the aggregate, from the state.
    """

    name: str
    column: str | None
    parts: tuple[str, ...]
    merge: Callable[[Columns, Columns], Columns]
    result: Callable[[Columns], pa.Array]

    def __str__(self) -> str:
        return f"{self.name}({'' if self.column is None else repr(self.column)})"

    @property
    def stored(self) -> str:
        """The aggregate whose state is stored. A standard deviation stores its variance, and takes the root for its result."""
        return str(variance(self.column)) if self.name == "stddev" and self.column is not None else str(self)

    def check(self, where: str, offered: pa.Schema) -> None:
        if self.column is None:
            return
        if self.column not in offered.names:
            raise TopologyError(f"{where}: {self}: no such column; there are: {', '.join(offered.names)}")
        kind = offered.field(self.column).type
        if self.name in ("sum", "mean", "variance", "stddev"):
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
                raise TopologyError(f"{where}: {self}: {kind} is no number")
            if pa.types.is_decimal(kind) and not pa.types.is_decimal128(kind):
                raise TopologyError(f"{where}: {self}: {kind} cannot be added up; cast it to decimal128 first")
        try:
            self.state_types(offered)
        except pa.ArrowNotImplementedError:
            raise TopologyError(f"{where}: {self}: {kind} has no {self.name}; take a part of it out with map()") from None

    def state_types(self, offered: pa.Schema) -> list[pa.DataType]:
        """The types of the state's columns."""
        return [column.type for column in self.of(_blank(offered), np.zeros(0, dtype=np.int64), 0)]

    def of(self, records: pa.RecordBatch, group: Any, groups: int) -> Columns:
        """The state of each group after this batch alone; in wide decimals, if a sum might overflow."""
        column = pa.nulls(records.num_rows, pa.bool_()) if self.column is None else records.column(self.column)
        if "sum" in self.parts and _may_overflow(column):
            column = _wide(column)
        table = pa.table({"g": group, "x": column})
        options = [_aggregation(part) for part in self.parts]
        found = pa.TableGroupBy(table, "g", use_threads=False).aggregate(options)
        order = np.full(groups, -1, dtype=np.int64)
        order[found.column("g").to_numpy()] = np.arange(found.num_rows)
        places = pa.array(order, mask=order < 0)
        return [found.column(_result_name(part)).combine_chunks().take(places) for part in self.parts]

    def after(self, old: Columns, new: Columns) -> tuple[Columns, Mask | None]:
        """The state of the groups after a batch, and a mask of the groups whose new state overflows its type (None if there are
        none). Those groups stay as they were."""
        merged = self.merge(old, new)
        try:
            return [column.cast(before.type) for column, before in zip(merged, old, strict=True)], None
        except pa.ArrowInvalid:
            fits = np.logical_and.reduce([_fits(column, before.type) for column, before in zip(merged, old, strict=True)])
            chosen = [pc.if_else(pa.array(fits), column, pa.scalar(None, column.type)) for column in merged]
            cast = [column.cast(before.type) for column, before in zip(chosen, old, strict=True)]
            return [pc.if_else(pa.array(fits), column, before) for column, before in zip(cast, old, strict=True)], ~fits

    def too_large(self, where: str, kind: pa.DataType) -> Exception:
        """The error of a group whose sum overflows its type."""
        return OverflowError(f"{where}: {self}: the sum does not fit {kind}")


def _result_name(part: str) -> str:
    return "count_all" if part == "count_all" else f"x_{part}"


def _aggregation(part: str) -> tuple[Any, ...]:
    if part == "count_all":
        return ([], "count_all")
    return ("x", part)


def _blank(offered: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in offered], names=offered.names)


def _added(old: Columns, new: Columns) -> Columns:
    return [
        pc.add_checked(pc.coalesce(before, _zero(before)), pc.coalesce(batch, _zero(batch)))
        for before, batch in zip(old, new, strict=True)
    ]


def _zero(column: pa.Array) -> pa.Scalar:
    return pa.scalar(0, column.type)


def _first_known(old: Columns, new: Columns) -> Columns:
    return [pc.coalesce(preferred, other) for preferred, other in zip(old, new, strict=True)]


def _last_known(old: Columns, new: Columns) -> Columns:
    return _first_known(new, old)


def _summed(old: Columns, new: Columns) -> Columns:
    """The sum of both, null where both are null; in wide decimals, if it overflows or either is a decimal already."""
    (before,), (batch,) = old, new
    if before.type == batch.type and not pa.types.is_decimal(before.type):
        try:
            return [pc.coalesce(pc.add_checked(before, batch), before, batch)]
        except pa.ArrowInvalid:
            pass
    before, batch = _wide(before), _wide(batch)
    return [pc.coalesce(pc.add(before, batch).cast(before.type), before, batch)]


def _may_overflow(column: pa.Array) -> bool:
    """Whether the sum of a column might overflow. Arrow does not report it; its sum would be a wrong number."""
    if not len(column) or not (pa.types.is_integer(column.type) or pa.types.is_decimal(column.type)):
        return False
    ends = pc.min_max(column)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    if least is None:
        return False
    high = _bounds(_total(column.type))[1]
    farthest = float(most if most > -least else -least)
    return len(column) * farthest > 0.99 * float(high)  # a little early, as floats are not exact


def _total(kind: pa.DataType) -> pa.DataType:
    """The type in which Arrow sums values of a type."""
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    return pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64()


def _bounds(kind: pa.DataType) -> tuple[Any, Any]:
    """The least and the greatest value of an integer or decimal type."""
    if pa.types.is_decimal(kind):
        most = Decimal(10**kind.precision - 1).scaleb(-kind.scale, EXACT)
        return -most, most
    if pa.types.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1


def _wide(column: pa.Array) -> pa.Array:
    """Integers or decimals as decimals with so many digits that no sum of them overflows."""
    return column.cast(pa.decimal256(WIDE, column.type.scale if pa.types.is_decimal(column.type) else 0))


def _fits(column: pa.Array, kind: pa.DataType) -> Mask:
    """Which values fit a type."""
    if not pa.types.is_decimal256(column.type):
        return np.ones(len(column), dtype=np.bool_)
    low, high = (pa.scalar(Decimal(end), column.type) for end in _bounds(kind))
    inside = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
    fits: Mask = inside.fill_null(True).to_numpy(zero_copy_only=False)
    return fits


def _least(old: Columns, new: Columns) -> Columns:
    return [_better(pc.less, before, batch) for before, batch in zip(old, new, strict=True)]


def _greatest(old: Columns, new: Columns) -> Columns:
    return [_better(pc.greater, before, batch) for before, batch in zip(old, new, strict=True)]


def _better(is_better: Callable[..., pa.Array], before: pa.Array, batch: pa.Array) -> pa.Array:
    """The better value of each pair. Comparisons are used because Arrow's element-wise minimum and maximum support neither
    strings nor time zones. As within a batch, NaN is the result only where there is no other value."""
    wins = is_better(batch, before)
    if pa.types.is_floating(before.type):
        wins = pc.or_kleene(wins, pc.is_nan(before))
    return pc.coalesce(pc.if_else(wins, batch, before), before, batch)


def _itself(state: Columns) -> pa.Array:
    return state[0]


def _quotient(state: Columns) -> pa.Array:
    total, count = state
    known = pc.if_else(pc.greater(pc.coalesce(count, _zero(count)), 0), count.cast(pa.float64()), pa.scalar(None, pa.float64()))
    return pc.divide(total.cast(pa.float64(), safe=False), known)


def _moments(old: Columns, new: Columns) -> Columns:
    """Combine the counts, means and variances of two parts (Chan, Golub, LeVeque: Updating formulae, 1979)."""
    (n1, m1, v1), (n2, m2, v2) = _floats(old), _floats(new)
    n = np.maximum(n1 + n2, 1.0)
    apart = m2 - m1
    mean = m1 + apart * n2 / n
    variance = (v1 * n1 + v2 * n2 + apart**2 * n1 * n2 / n) / n
    return [pa.array((n1 + n2).astype(np.int64)), *(pa.array(moment, mask=n1 + n2 == 0) for moment in (mean, variance))]


def _floats(columns: Columns) -> list[Any]:
    return [pc.coalesce(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) for column in columns]


def _third(state: Columns) -> pa.Array:
    return state[2]


def _root(state: Columns) -> pa.Array:
    return pc.sqrt(state[2])


def count() -> Aggregate:
    """The number of records."""
    return Aggregate("count", None, ("count_all",), _added, _itself)


def sum(column: str) -> Aggregate:
    """The sum of a column; null while the column has no value. A key whose sum overflows its type fails: its records of the
    batch become dead letters, and its sum stays as it was."""
    return Aggregate("sum", column, ("sum",), _summed, _itself)


def mean(column: str) -> Aggregate:
    """The mean of a column. Its state is the sum and the count; the sum may overflow as that of ``sum`` does."""
    return Aggregate("mean", column, ("sum", "count"), lambda old, new: [*_summed(old[:1], new[:1]), *_added(old[1:], new[1:])],
                     _quotient)  # fmt: skip


def variance(column: str) -> Aggregate:
    """The population variance of a column."""
    return Aggregate("variance", column, ("count", "mean", "variance"), _moments, _third)


def stddev(column: str) -> Aggregate:
    """The population standard deviation of a column."""
    return Aggregate("stddev", column, ("count", "mean", "variance"), _moments, _root)


def min(column: str) -> Aggregate:
    """The least value of a column."""
    return Aggregate("min", column, ("min",), _least, _itself)


def max(column: str) -> Aggregate:
    """The greatest value of a column."""
    return Aggregate("max", column, ("max",), _greatest, _itself)


def first(column: str) -> Aggregate:
    """The first value of a column, in the order of the records; nulls do not count."""
    return Aggregate("first", column, ("first",), _first_known, _itself)


def last(column: str) -> Aggregate:
    """The last value of a column, in the order of the records; nulls do not count."""
    return Aggregate("last", column, ("last",), _last_known, _itself)
