"""Aggregate functions on whole columns: what each keeps of a key, how a batch changes it, and what it tells.

Each keeps a few columns. A batch is aggregated by itself first, by Arrow's own grouping, and then merged into what was kept.
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
"""Digits in which sums are made that might not fit what is kept: that has 38 at most, and Arrow 76."""
EXACT = Context(prec=WIDE)


@dataclass(frozen=True)
class Aggregate:
    """One function of one column, or of the records as such.

    ``parts``: the Arrow aggregations of a batch whose results ``merge`` puts together with what was kept, column by column; the
    columns kept are as many. ``tell``: the result, from what is kept.
    """

    name: str
    column: str | None
    parts: tuple[str, ...]
    merge: Callable[[Columns, Columns], Columns]
    tell: Callable[[Columns], pa.Array]

    def __str__(self) -> str:
        return f"{self.name}({'' if self.column is None else repr(self.column)})"

    @property
    def keeps(self) -> str:
        """What the columns kept are of. The root of a variance is made when it is told."""
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
            self.kept(offered)
        except pa.ArrowNotImplementedError:
            raise TopologyError(f"{where}: {self}: {kind} has no {self.name}; take a part of it out with map()") from None

    def kept(self, offered: pa.Schema) -> list[pa.DataType]:
        """The types of the columns that it keeps."""
        return [column.type for column in self.of(_blank(offered), np.zeros(0, dtype=np.int64), 0)]

    def of(self, records: pa.RecordBatch, group: Any, groups: int) -> Columns:
        """What a batch alone would leave, for each of so many groups; in more digits, if it might not fit."""
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
        """What is kept of groups after a batch; and, if what some have to keep does not fit, which: those keep what they
        had."""
        merged = self.merge(old, new)
        try:
            return [one.cast(was.type) for one, was in zip(merged, old, strict=True)], None
        except pa.ArrowInvalid:
            fits = np.logical_and.reduce([_fits(one, was.type) for one, was in zip(merged, old, strict=True)])
            chosen = [pc.if_else(pa.array(fits), one, pa.scalar(None, one.type)) for one in merged]
            cast = [one.cast(was.type) for one, was in zip(chosen, old, strict=True)]
            return [pc.if_else(pa.array(fits), one, was) for one, was in zip(cast, old, strict=True)], ~fits

    def too_large(self, where: str, kind: pa.DataType) -> Exception:
        """What to say of a group that does not fit."""
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
    pairs = zip(old, new, strict=True)
    return [pc.add_checked(pc.coalesce(one, _zero(one)), pc.coalesce(other, _zero(other))) for one, other in pairs]


def _zero(column: pa.Array) -> pa.Scalar:
    return pa.scalar(0, column.type)


def _first_known(old: Columns, new: Columns) -> Columns:
    return [pc.coalesce(one, other) for one, other in zip(old, new, strict=True)]


def _last_known(old: Columns, new: Columns) -> Columns:
    return _first_known(new, old)


def _summed(old: Columns, new: Columns) -> Columns:
    """A sum that is null as long as no value came; in more digits, if one of them does not fit."""
    (one,), (other,) = old, new
    if one.type == other.type and not pa.types.is_decimal(one.type):
        try:
            return [pc.coalesce(pc.add_checked(one, other), one, other)]
        except pa.ArrowInvalid:
            pass
    one, other = _wide(one), _wide(other)
    return [pc.coalesce(pc.add(one, other).cast(one.type), one, other)]


def _may_overflow(column: pa.Array) -> bool:
    """Whether a sum might not fit, which Arrow would not tell: it would be another number."""
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
    """In what Arrow adds values up."""
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    return pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64()


def _bounds(kind: pa.DataType) -> tuple[Any, Any]:
    """The least and the greatest value of a type of whole numbers or of decimals."""
    if pa.types.is_decimal(kind):
        most = Decimal(10**kind.precision - 1).scaleb(-kind.scale, EXACT)
        return -most, most
    if pa.types.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1


def _wide(column: pa.Array) -> pa.Array:
    """Whole numbers or decimals, in so many digits that no sum of them is too large."""
    return column.cast(pa.decimal256(WIDE, column.type.scale if pa.types.is_decimal(column.type) else 0))


def _fits(column: pa.Array, kind: pa.DataType) -> Mask:
    """Which values are of a type."""
    if not pa.types.is_decimal256(column.type):
        return np.ones(len(column), dtype=np.bool_)
    low, high = (pa.scalar(Decimal(end), column.type) for end in _bounds(kind))
    inside = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
    fits: Mask = inside.fill_null(True).to_numpy(zero_copy_only=False)
    return fits


def _least(old: Columns, new: Columns) -> Columns:
    return [_better(pc.less, one, other) for one, other in zip(old, new, strict=True)]


def _greatest(old: Columns, new: Columns) -> Columns:
    return [_better(pc.greater, one, other) for one, other in zip(old, new, strict=True)]


def _better(is_better: Callable[..., pa.Array], one: pa.Array, other: pa.Array) -> pa.Array:
    """By comparing, because Arrow's own functions know no strings and no time zones. As within a batch, what is no number
    counts if there is nothing else."""
    wins = is_better(other, one)
    if pa.types.is_floating(one.type):
        wins = pc.or_kleene(wins, pc.is_nan(one))
    return pc.coalesce(pc.if_else(wins, other, one), one, other)


def _itself(kept: Columns) -> pa.Array:
    return kept[0]


def _quotient(kept: Columns) -> pa.Array:
    total, count = kept
    known = pc.if_else(pc.greater(pc.coalesce(count, _zero(count)), 0), count.cast(pa.float64()), pa.scalar(None, pa.float64()))
    return pc.divide(total.cast(pa.float64(), safe=False), known)


def _moments(old: Columns, new: Columns) -> Columns:
    """Counts, means and variances of two parts put together (Chan, Golub, LeVeque: Updating formulae, 1979)."""
    (n1, m1, v1), (n2, m2, v2) = (_floats(one) for one in (old, new))
    n = np.maximum(n1 + n2, 1.0)
    apart = m2 - m1
    mean = m1 + apart * n2 / n
    variance = (v1 * n1 + v2 * n2 + apart**2 * n1 * n2 / n) / n
    return [pa.array((n1 + n2).astype(np.int64)), *(pa.array(one, mask=n1 + n2 == 0) for one in (mean, variance))]


def _floats(columns: Columns) -> list[Any]:
    return [pc.coalesce(one.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) for one in columns]


def _third(kept: Columns) -> pa.Array:
    return kept[2]


def _root(kept: Columns) -> pa.Array:
    return pc.sqrt(kept[2])


def count() -> Aggregate:
    """How many records there were."""
    return Aggregate("count", None, ("count_all",), _added, _itself)


def sum(column: str) -> Aggregate:
    """The sum of a column; null as long as no value came. A key whose sum does not fit its type fails: its records of the batch
    go to the dead letters, and its sum stays as it was."""
    return Aggregate("sum", column, ("sum",), _summed, _itself)


def mean(column: str) -> Aggregate:
    """The mean of a column. It keeps the sum, which has to fit as for ``sum``."""
    return Aggregate("mean", column, ("sum", "count"), lambda old, new: [*_summed(old[:1], new[:1]), *_added(old[1:], new[1:])],
                     _quotient)  # fmt: skip


def variance(column: str) -> Aggregate:
    """The variance of a column, of all records rather than of a sample."""
    return Aggregate("variance", column, ("count", "mean", "variance"), _moments, _third)


def stddev(column: str) -> Aggregate:
    """The root of the variance."""
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
