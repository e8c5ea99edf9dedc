"""Measures the cost of each record of a task, where operators work per record; spreads the rest over the records.

The cost of a record is the time that its task spends on it, in the operator that received it and in those chained behind.
So every chunk has for each row the arrived record that it was made of (``Chunk.origins``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.model.topology import Kind
from springtide.spark.shared.costs import Seconds
from springtide.spark.task.chunk import Refused

Origins = npt.NDArray[np.int64]


class Meter:
    """Sums up the time of each of the records that arrived together."""

    def __init__(self, rows: int) -> None:
        self.seconds: Seconds = np.zeros(rows)
        self._begun = time.perf_counter()

    def add(self, origins: Origins | None, seconds: Seconds) -> None:
        """Add the time of rows to the records at ``origins``, or to all records if the origins are unknown."""
        if origins is None or len(origins) != len(seconds):
            self._spread(float(seconds.sum()))
        else:
            self.seconds += np.bincount(origins, weights=seconds, minlength=len(self.seconds))

    def finished(self) -> Seconds:
        """The costs. The time outside of functions, for reading and writing records, is spread evenly. It is the whole cost of
        a record whose function does nothing."""
        rest = time.perf_counter() - self._begun - float(self.seconds.sum())
        self._spread(max(0.0, rest))
        return self.seconds

    def _spread(self, seconds: float) -> None:
        if len(self.seconds):
            self.seconds += seconds / len(self.seconds)


def clocked(function: Callable[[Any], Any], kind: Kind) -> tuple[Callable[[Any], Any], list[float]]:
    """A function that measures each of its calls, in 0.2 µs a call, and the list of the times."""
    noted: list[float] = []
    note, clock = noted.append, time.perf_counter
    whole = list if kind is Kind.FLAT_MAP else None  # a generator runs when it is read

    def timed(record: Any) -> Any:
        begin = clock()
        try:
            return function(record) if whole is None else whole(function(record))
        finally:
            note(clock() - begin)

    return timed, noted


def per_record(noted: list[float], records: list[Any]) -> Seconds:
    """The times in the order of the records. The function was not called on ``Refused`` records."""
    if len(noted) == len(records):
        return np.array(noted)
    seconds = np.zeros(len(records))
    called = [place for place, record in enumerate(records) if record.__class__ is not Refused]
    seconds[called[: len(noted)]] = noted[: len(called)]
    return seconds
