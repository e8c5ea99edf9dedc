"""The search for the column that determines a record's cost: it explains the most of the costs' variance.

A column of n records with G distinct values explains 1 − [SSW/(n − G)] / [SST/(n − 1)], where SSW and SST are the sums of
squares within the values and in all: the adjusted R² of a one-way analysis of variance. The degrees of freedom matter: without
them a column of unique values, such as an id, would explain everything and predict nothing; with them it has no freedom left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from springtide.errors import OptionError
from springtide.model.costs import Hashes
from springtide.policy.group.keys import is_bytes, is_text, key_hashes

MIN_FREEDOM = 100
"""The fewest degrees of freedom for the share that a column explains: with fewer, the estimate is off by a tenth or more."""
MIN_EXPLAINED = 0.1
"""The least share that a column must explain for routing by it to pay."""
TIE = 0.02
"""Columns whose shares are within this of the best count as equal; that with the fewest values wins: it learns fastest."""
SAMPLE = 1_000
"""The most records of a task that are examined, because hashing a column of text takes a microsecond a value."""
MAX_MEAN_BYTES = 256
"""The longest mean value, in bytes, of a column of text or bytes that is searched. Longer values rarely repeat, and hashing 50
of them with 1 MB each would take 30 ms of every batch."""
PREFIX = 64
"""Of a longer value only this many bytes and the length are hashed. With the limit above, a column takes 1 ms at most."""


MIN_RECORDS = 20_000
"""The search does not give up before this many records."""

MAX_ROUNDS = 4
"""A half of the search starts again at this many times the least freedom; the search gives up after this many such rounds."""


class Variance(NamedTuple):
    """Sums of squares of records' costs, within the values of a column and in all. They are added over tasks."""

    records: float
    parts: float  # the number of samples in the sums; each has its own mean
    values: float
    within: float
    total: float

    def plus(self, other: Variance) -> Variance:
        return Variance(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def freedom(self) -> float:
        return self.records - self.values

    @property
    def explained(self) -> float | None:
        """The share that the column explains; None while it cannot be estimated."""
        if self.freedom < MIN_FREEDOM or self.total <= 0:
            return None
        return 1 - (self.within / self.freedom) / (self.total / (self.records - self.parts))


NOTHING = Variance(0, 0, 0, 0, 0)


def candidates(schema: pa.Schema) -> list[str]:
    """The columns that may determine a cost: those without nested values, because a list or a map rarely repeats."""
    return [field.name for field in schema if not pa.types.is_nested(field.type)]


def variances(records: pa.RecordBatch | pa.Table, seconds: npt.NDArray[np.float64]) -> dict[str, Variance]:
    """The variance of these records' costs by each column; ``NOTHING`` for a column whose values are too long."""
    sample, costs = records.slice(0, SAMPLE), seconds[:SAMPLE]
    by_column = {}
    for name in candidates(records.schema):
        column = sample.column(name)
        if _mean_bytes(column) > MAX_MEAN_BYTES:
            by_column[name] = NOTHING
            continue
        with contextlib.suppress(OptionError):  # of a type that cannot be a key
            values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            by_column[name] = variance(_hashes(values), costs)
    return by_column


def _mean_bytes(column: pa.Array | pa.ChunkedArray) -> float:
    """The mean length of a column of text or bytes; 0 for other types."""
    if not (is_text(column.type) or is_bytes(column.type)):
        return 0.0
    return float(pc.mean(pc.binary_length(_plain(column))).as_py() or 0.0)


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Text or bytes as bytes, which Arrow can measure and slice."""
    return column.cast(pa.large_string()).cast(pa.large_binary()) if is_text(column.type) else column.cast(pa.large_binary())


def _hashes(values: pa.Array) -> Hashes:
    if not (is_text(values.type) or is_bytes(values.type)):
        return key_hashes(pa.record_batch({"value": values}), ("value",))
    plain = _plain(values)
    parts = pa.record_batch({"first": pc.binary_slice(plain, 0, PREFIX), "length": pc.binary_length(plain)})
    return key_hashes(parts, ("first", "length"))


def variance(keys: Hashes, costs: npt.NDArray[np.float64]) -> Variance:
    """
    >>> alternating = np.array([1, 2, 1, 2], dtype=np.uint64)
    >>> variance(alternating, np.array([1.0, 5.0, 1.0, 5.0])).within
    0.0
    """
    if not len(costs):
        return NOTHING
    values, places = np.unique(keys, return_inverse=True)
    means = np.bincount(places, weights=costs) / np.bincount(places)
    within, total = costs - means[places], costs - costs.mean()
    return Variance(len(costs), 1, len(values), float(within @ within), float(total @ total))


def choose(columns: Mapping[str, Variance]) -> tuple[str, float] | None:
    """The column to route by, and the share that it explains; None if no column explains enough."""
    estimates = {name: variance.explained for name, variance in columns.items()}
    shares = {name: share for name, share in estimates.items() if share is not None and share >= MIN_EXPLAINED}
    if not shares:
        return None
    best = max(shares.values())
    tied = [name for name, share in shares.items() if share >= best - TIE]
    chosen = min(tied, key=lambda name: columns[name].values)
    return chosen, shares[chosen]


@dataclass(frozen=True)
class CostKey:
    """The result of a search: the columns to route by, () if no column determines the cost, and the reason."""

    key: tuple[str, ...]
    reason: str


class Search:
    """Searches for the column that determines the cost, batch by batch.

    Batches are added alternately to two halves, and a column is chosen only if it wins in both. The reason is outliers: a
    single call of half a second, as the first in a process may take, hides the effect of a column, or makes any column with a
    unique value for that call explain everything, but only in its own half. A half with enough records and no agreement starts
    again.
    """

    def __init__(self) -> None:
        self._halves: tuple[dict[str, Variance], ...] = ({}, {})
        self._turn, self._seen, self._fruitless = 0, 0.0, 0
        self._too_long: set[str] = set()

    def add(self, columns: Mapping[str, tuple[float, ...]]) -> CostKey | None:
        """Add the variances of a batch. The result is None while the search goes on."""
        half = self._halves[self._turn]
        if max((column.freedom for column in half.values()), default=0.0) >= MAX_ROUNDS * MIN_FREEDOM:
            self._fruitless += choose(half) is None
            half.clear()
        for column, more in columns.items():
            half[column] = half.get(column, NOTHING).plus(Variance(*more))
        self._seen += max((more[0] for more in columns.values()), default=0.0)
        self._too_long.update(column for column, more in columns.items() if Variance(*more) == NOTHING)
        first, second = (choose(half) for half in self._halves)
        if first is not None and second is not None and first[0] == second[0]:
            share = min(first[1], second[1])
            explains = f"column {first[0]!r} explains {100 * share:.0f} % of its records' costs"
            return CostKey((first[0],), explains + self._passed_over())
        self._turn = 1 - self._turn
        if self._seen >= MIN_RECORDS and self._fruitless >= MAX_ROUNDS:
            return CostKey((), f"no column explains its records' costs{self._passed_over()}; they are dealt out in turn")
        return None

    def _passed_over(self) -> str:
        names = ", ".join(map(repr, sorted(self._too_long)))
        return f" (not searched: {names}, longer than {MAX_MEAN_BYTES} bytes on average; name one with by=)" if names else ""
