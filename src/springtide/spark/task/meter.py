"""What each record of a task costs: measured where an operator works per record, spread over the rows elsewhere.

A record's cost is all the time that its task spends for it: in the operator that it was sent to, and in those chained
behind it. So every chunk remembers of which record that arrived each of its rows was made (``Chunk.origins``).
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
    """Sums up what each of the records that arrived together takes."""

    def __init__(self, rows: int) -> None:
        self.seconds: Seconds = np.zeros(rows)
        self._begun = time.perf_counter()

    def add(self, origins: Origins | None, seconds: Seconds) -> None:
        """So much time for rows that were made of the records at ``origins``; None: of which is not known."""
        if origins is None or len(origins) != len(seconds):
            self._spread(float(seconds.sum()))
        else:
            self.seconds += np.bincount(origins, weights=seconds, minlength=len(self.seconds))

    def finished(self) -> Seconds:
        """The costs. What the operators' functions did not take, reading and writing records, is spread evenly: it is the
        whole cost of a record whose function does nothing."""
        rest = time.perf_counter() - self._begun - float(self.seconds.sum())
        self._spread(max(0.0, rest))
        return self.seconds

    def _spread(self, seconds: float) -> None:
        if len(self.seconds):
            self.seconds += seconds / len(self.seconds)


def clocked(function: Callable[[Any], Any], kind: Kind) -> tuple[Callable[[Any], Any], list[float]]:
    """A function that notes how long each of its calls takes, and its notes. Costs 0.2 µs a call."""
    noted: list[float] = []
    note, clock = noted.append, time.perf_counter
    whole = list if kind is Kind.FLAT_MAP else None  # a generator works when it is read, not when it is called

    def timed(record: Any) -> Any:
        begin = clock()
        try:
            return function(record) if whole is None else whole(function(record))
        finally:
            note(clock() - begin)

    return timed, noted


def per_record(noted: list[float], records: list[Any]) -> Seconds:
    """The notes in the order of the records; the function was not called on those that were refused before."""
    if len(noted) == len(records):
        return np.array(noted)
    seconds = np.zeros(len(records))
    called = [place for place, record in enumerate(records) if record.__class__ is not Refused]
    seconds[called[: len(noted)]] = noted[: len(called)]
    return seconds
