"""Counters of operators and of the records that leave the network, and statistics of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from springtide.model.report import Latency
from springtide.policy.group import kernel
from springtide.sim.kernels import Floats, Ints, Rows

BINS_PER_OCTAVE, OCTAVES, LEAST = 128, 64, -30
"""The histogram of latencies starts at 2⁻³⁰ s and has 128 bins per doubling: a bin is 0.4 to 0.8 % wide."""

_MOST_SECONDS = 10_000_000
"""Limits the seconds with counters of their own; later records count for the last second."""


class LatencyBook(NamedTuple):
    """Counters of the records that leave the network."""

    latency: Floats  # buffer for one step
    bins: Ints  # the histogram of latencies since the last snapshot
    seconds: Floats  # by second of the run: departures, the sum of their latencies, and the earliest creation time
    sums: Floats  # sum of latencies, departures, and departures beyond the timeout
    by_root: Floats  # the latency of each record of the sources, or empty


@dataclass
class Counts:
    """Counters of an operator, in an interval or in total."""

    rows_in: int = 0
    served: int = 0
    busy_s: float = 0.0
    response_s: float = 0.0
    lost: int = 0
    late: int = 0

    def add(self, other: Counts) -> None:
        for name in vars(other):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@kernel
def write_down(rows: Rows, left: Ints, served: int, book: LatencyBook, timeout: float, since: float) -> None:
    """Count the records that left, except those created before ``since``. A latency begins at the creation of its record."""
    count = 0
    horizon = book.seconds.shape[0] - 1
    for j in range(served):
        i = left[j]
        depart, created = rows.depart[i], rows.created[i]
        latency = depart - created
        if len(book.by_root) > 0:
            root = rows.root[i]
            if not book.by_root[root] > latency:  # NaN at first, or an earlier part of the same record
                book.by_root[root] = latency
        if created < since:
            continue
        book.latency[count] = latency
        count += 1
        book.sums[0] += latency
        if latency > timeout:
            book.sums[2] += 1
        second = min(int(depart), horizon)
        book.seconds[second, 0] += 1
        book.seconds[second, 1] += latency
        book.seconds[second, 2] = min(book.seconds[second, 2], created)
    book.sums[1] += count
    bits = book.latency.view(np.int64)
    low, high = (1023 + LEAST) * BINS_PER_OCTAVE, len(book.bins) - 1
    for j in range(count):  # the upper bits of a float are its base-2 logarithm, rounded down
        book.bins[max(0, min((bits[j] >> 45) - low, high))] += 1


def new_book(rows: int, seconds: float, roots: int) -> LatencyBook:
    """An empty book. ``rows``: records in a step; ``roots``: records with a latency of their own."""
    each = np.zeros((max(1, int(seconds) + 2), 3))
    each[:, 2] = np.inf
    return LatencyBook(
        np.empty(rows), np.zeros(BINS_PER_OCTAVE * OCTAVES, dtype=np.int64), each, np.zeros(3), np.full(roots, np.nan)
    )


def with_room(book: LatencyBook, rows: int, until: float) -> LatencyBook:
    """The same book, large enough for this many records in a step and for the seconds up to ``until``."""
    if rows > len(book.latency):
        book = book._replace(latency=np.empty(2 * rows))
    if until + 1 > len(book.seconds) < _MOST_SECONDS:
        more = np.zeros((int(min(until, _MOST_SECONDS)) + 2, 3))
        more[:, 2] = np.inf
        book = book._replace(seconds=np.concatenate([book.seconds, more]))
    return book


def quantile(bins: Ints, share: float) -> float:
    """The quantile of the latency in seconds: the middle of its bin."""
    place = int(np.searchsorted(np.cumsum(bins), share * bins.sum() - 1e-9))
    octave, part = divmod(place, BINS_PER_OCTAVE)
    return float(2.0 ** (octave + LEAST) * (1 + (part + 0.5) / BINS_PER_OCTAVE))


def share_above(bins: Ints, seconds: float) -> float | None:
    """The share of records with a higher latency; None without records. A bin counts in proportion to its part above."""
    total = int(bins.sum())
    if not total:
        return None
    octave = math.floor(math.log2(seconds))
    place = (octave - LEAST + seconds / 2.0**octave - 1) * BINS_PER_OCTAVE
    whole = min(max(int(place), 0), len(bins) - 1)
    return float(bins[whole + 1 :].sum() + bins[whole] * (1 - min(max(place - whole, 0.0), 1.0))) / total


def latency_of(bins: Ints, total_s: float, count: float) -> Latency | None:
    """The latency in milliseconds; None without departures."""
    if not count:
        return None
    low, middle, high = (round(quantile(bins, share) * 1000, 6) for share in (0.5, 0.95, 0.99))
    return Latency(round(total_s / count * 1000, 6), low, middle, high)
