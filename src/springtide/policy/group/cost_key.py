"""Which column drives a record's cost: the one that explains the most of the costs' variance.

A column of n records with G distinct values explains 1 − [SSW/(n − G)] / [SST/(n − 1)], SSW and SST the sums of squares
within the values and in all: the adjusted R² of a one-way analysis of variance. Without the degrees of freedom a column
in which every value is unique, such as an id, would explain everything and predict nothing; with them it has none left.
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

LEAST_FREEDOM = 100
"""Degrees of freedom below which a column is not judged: the estimate would be off by a tenth and more."""
LEAST_EXPLAINED = 0.1
"""A column that explains less is not worth routing by."""
AS_GOOD = 0.02
"""Of columns that explain as much as the best one but for this, the one with the fewest values wins: it learns fastest."""
SAMPLE = 1_000
"""The most records of a task that are looked at: hashing a column of text takes a microsecond a value."""
LONGEST_MEAN = 256
"""Columns of text or bytes whose values have more bytes than this on average are not searched: such values seldom come twice,
and to hash 50 of 1 MB would take 30 ms of every batch."""
PREFIX = 64
"""Of a longer value, its first bytes and its length are looked at. With the limit above, a column takes 1 ms at most."""


LOOKED_AT = 20_000
"""Records after which the search is given up, if columns could be judged by then."""

ENOUGH = 4
"""A half of the search begins anew at so many times the least freedom; so many that found nothing are enough to give up."""


class Variance(NamedTuple):
    """The sums of squares of some records' costs, within the values of a column and in all. Sums add up over tasks."""

    records: float
    parts: float  # how many samples were added up; each has a mean of its own
    values: float
    within: float
    total: float

    def plus(self, other: Variance) -> Variance:
        return Variance(*(one + more for one, more in zip(self, other, strict=True)))

    @property
    def freedom(self) -> float:
        return self.records - self.values

    @property
    def explained(self) -> float | None:
        """The share that the column explains; None while that cannot be told."""
        if self.freedom < LEAST_FREEDOM or self.total <= 0:
            return None
        return 1 - (self.within / self.freedom) / (self.total / (self.records - self.parts))


NOTHING = Variance(0, 0, 0, 0, 0)


def candidates(schema: pa.Schema) -> list[str]:
    """The columns that may drive a cost: single values, as a list or a map seldom comes twice."""
    return [field.name for field in schema if not pa.types.is_nested(field.type)]


def variances(records: pa.RecordBatch | pa.Table, seconds: npt.NDArray[np.float64]) -> dict[str, Variance]:
    """What each column of these records tells about their costs: nothing, if its values are too long."""
    sample, costs = records.slice(0, SAMPLE), seconds[:SAMPLE]
    found = {}
    for name in candidates(records.schema):
        column = sample.column(name)
        if _mean_bytes(column) > LONGEST_MEAN:
            found[name] = NOTHING
            continue
        with contextlib.suppress(OptionError):  # of a type that cannot be a key
            values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            found[name] = variance(_hashes(values), costs)
    return found


def _mean_bytes(column: pa.Array | pa.ChunkedArray) -> float:
    """Of the values of a column of text or bytes; 0 of others."""
    if not (is_text(column.type) or is_bytes(column.type)):
        return 0.0
    return float(pc.mean(pc.binary_length(_plain(column))).as_py() or 0.0)


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Text or bytes as bytes, of whose length and parts Arrow knows."""
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
    """The column to go by, and the share that it explains; None if none explains enough."""
    known = {name: one.explained for name, one in columns.items()}
    judged = {name: share for name, share in known.items() if share is not None and share >= LEAST_EXPLAINED}
    if not judged:
        return None
    best = max(judged.values())
    good = [name for name, share in judged.items() if share >= best - AS_GOOD]
    chosen = min(good, key=lambda name: columns[name].values)
    return chosen, judged[chosen]


@dataclass(frozen=True)
class Found:
    """What a search came to: the columns to go by, none if no column drives the cost, and why."""

    key: tuple[str, ...]
    reason: str


class Search:
    """Looks for the column that drives the cost, batch by batch.

    Batches are added up in two halves, turn about, and a column is chosen only if both say so: one call that takes half a
    second, as the first one in a process may, hides what drives the others, or makes any column with a value of its own for it
    explain everything, in the half that it falls in. A half that has seen enough without agreement begins anew.
    """

    def __init__(self) -> None:
        self._halves: tuple[dict[str, Variance], ...] = ({}, {})
        self._turn, self._seen, self._fruitless = 0, 0.0, 0
        self._too_long: set[str] = set()

    def add(self, columns: Mapping[str, tuple[float, ...]]) -> Found | None:
        """Add what a batch tells of every column; what the search has come to, None as long as it goes on."""
        half = self._halves[self._turn]
        if max((column.freedom for column in half.values()), default=0.0) >= ENOUGH * LEAST_FREEDOM:
            self._fruitless += choose(half) is None
            half.clear()
        for column, more in columns.items():
            half[column] = half.get(column, NOTHING).plus(Variance(*more))
        self._seen += max((more[0] for more in columns.values()), default=0.0)
        self._too_long.update(column for column, more in columns.items() if Variance(*more) == NOTHING)
        one, other = (choose(half) for half in self._halves)
        if one is not None and other is not None and one[0] == other[0]:
            share = min(one[1], other[1])
            explains = f"column {one[0]!r} explains {100 * share:.0f} % of its records' costs"
            return Found((one[0],), explains + self._passed_over())
        self._turn = 1 - self._turn
        if self._seen >= LOOKED_AT and self._fruitless >= ENOUGH:
            return Found((), f"no column explains its records' costs{self._passed_over()}; they are dealt out in turn")
        return None

    def _passed_over(self) -> str:
        names = ", ".join(map(repr, sorted(self._too_long)))
        return f" (not searched: {names}, longer than {LONGEST_MEAN} bytes on average; name one with by=)" if names else ""
