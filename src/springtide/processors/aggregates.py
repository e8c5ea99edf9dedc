"""Aggregate functions on whole columns: what each keeps of a key, how a batch changes it, and what it tells.

Each keeps a few columns. A batch is aggregated by itself first, by Arrow's own grouping, and then merged into what was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from springtide.errors import TopologyError

Columns = Sequence[pa.Array]


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

    def check(self, where: str, offered: pa.Schema) -> None:
        if self.column is not None and self.column not in offered.names:
            raise TopologyError(f"{where}: {self.name}({self.column!r}): no such column; there are: {', '.join(offered.names)}")
        if self.column is not None and self.name in ("sum", "mean", "variance", "stddev"):
            kind = offered.field(self.column).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
                raise TopologyError(f"{where}: {self.name}({self.column!r}): {kind} is no number")

    def kept(self, offered: pa.Schema) -> list[pa.DataType]:
        """The types of the columns that it keeps."""
        return [column.type for column in self.of(_blank(offered), np.zeros(0, dtype=np.int64), 0)]

    def of(self, records: pa.RecordBatch, group: Any, groups: int) -> Columns:
        """What a batch alone would leave, for each of so many groups."""
        column = pa.nulls(records.num_rows, pa.bool_()) if self.column is None else records.column(self.column)
        table = pa.table({"g": group, "x": column})
        options = [_aggregation(part) for part in self.parts]
        found = pa.TableGroupBy(table, "g", use_threads=False).aggregate(options)
        order = np.full(groups, -1, dtype=np.int64)
        order[found.column("g").to_numpy()] = np.arange(found.num_rows)
        places = pa.array(order, mask=order < 0)
        return [found.column(_result_name(part)).combine_chunks().take(places) for part in self.parts]


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
    """A sum that is null as long as no value came."""
    both = [pc.add_checked(one, other) for one, other in zip(old, new, strict=True)]
    return [pc.coalesce(total, one, other) for total, one, other in zip(both, old, new, strict=True)]


def _least(old: Columns, new: Columns) -> Columns:
    """By comparing, because Arrow's own functions know no strings and no time zones."""
    pairs = zip(old, new, strict=True)
    return [pc.coalesce(pc.if_else(pc.less(other, one), other, one), one, other) for one, other in pairs]


def _greatest(old: Columns, new: Columns) -> Columns:
    pairs = zip(old, new, strict=True)
    return [pc.coalesce(pc.if_else(pc.greater(other, one), other, one), one, other) for one, other in pairs]


def _itself(kept: Columns) -> pa.Array:
    return kept[0]


def _quotient(kept: Columns) -> pa.Array:
    total, count = kept
    known = pc.if_else(pc.greater(pc.coalesce(count, _zero(count)), 0), count.cast(pa.float64()), pa.scalar(None, pa.float64()))
    return pc.divide(total.cast(pa.float64()), known)


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
    """The sum of a column; null as long as no value came. One that does not fit its type is an error, never a wrong number."""
    return Aggregate("sum", column, ("sum",), _summed, _itself)


def mean(column: str) -> Aggregate:
    """The mean of a column."""
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
