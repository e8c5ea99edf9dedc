"""Generated streams: seeded records at a rate, with the index of the next record as the position.

A record depends only on the seed, its index and its creation time (see ``model.generated``), and the creation time on the
index and the schedule's start, which the checkpoint stores. So a range that is read again, after a lost task or a restart, has
the same records. The driver knows the rate; tasks get only those steps of it that date their records, so a rate may have a
million steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from springtide.errors import RecordError
from springtide.model.columns import to_batch
from springtide.model.generated import draws
from springtide.model.rate import Rate, Steps, constant
from springtide.model.source import Enumerator, Memory, Position, Range, Reader, Records, Source

CHUNK_ROWS = 10_000
"""Limits the records that a task has in memory as objects."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class GenerateSource(Source):
    """Seeded records at a rate. ``limit`` ends the stream after this number of records; with None it ends with the rate.

    ``max_records`` bounds a batch.
    """

    make: Callable[[Any], Any]
    rate: Rate
    seed: int = 0
    limit: int | None = None
    max_records: int | None = None
    begins_with_first_batch = True

    @property
    def most(self) -> int | None:
        return self.max_records

    @property
    def total(self) -> int | None:
        """The number of records in all; None if the stream never ends."""
        return min((total for total in (self.limit, self.rate.total) if total is not None), default=None)

    def arrived(self, seconds: float) -> int:
        """The number of records ``seconds`` after the schedule's start."""
        count = self.rate.count(seconds)
        return count if self.limit is None else min(count, self.limit)

    def begin(self, clock: Clock = time.time) -> Memory:
        """The schedule starts when the first batch is planned, so a slow start of Spark leaves no backlog."""
        return {"started": clock()}

    def enumerator(self, memory: Memory, clock: Clock = time.time) -> Schedule:
        return Schedule(self, float(memory["started"]), clock)

    def in_tasks(self) -> GenerateSource:
        return replace(self, rate=constant(0.0))

    def reader(self, schema: pa.Schema, record: type | None) -> Maker:
        return Maker(self.make, self.seed, schema)


class Schedule(Enumerator):
    """The records that have arrived by the schedule, which began at ``started``, in seconds since 1970."""

    def __init__(self, source: GenerateSource, started: float, clock: Clock = time.time) -> None:
        self._source, self._started, self._clock = source, started, clock
        self._arrived = 0

    def first(self) -> Position:
        return {"next": 0}

    def end(self, since: Position) -> Position:
        self._arrived = max(self._arrived, self._source.arrived(self._clock() - self._started))
        return {"next": max(self._arrived, since["next"])}

    def count(self, since: Position, until: Position) -> int:
        return max(0, int(until["next"] - since["next"]))

    def limited(self, since: Position, end: Position, most: int) -> Position:
        return {"next": min(end["next"], since["next"] + max(1, most))}

    def ranges(self, since: Position, until: Position, tasks: int) -> Sequence[Range]:
        start, end = since["next"], until["next"]
        parts = min(tasks, end - start)
        edges = [start + (end - start) * i // parts for i in range(parts + 1)] if parts else []
        return [self._range(first, last) for first, last in pairwise(edges)]

    def _range(self, first: int, last: int) -> Range:
        steps = self._source.rate.steps.part(first, last)
        arrays = {"edges": steps.edges, "counts": steps.counts, "values": steps.values}
        return {"first": first, "last": last, "started": self._started, **{k: v.tolist() for k, v in arrays.items()}}

    def exhausted(self, position: Position) -> bool:
        total = self._source.total
        return total is not None and bool(position["next"] >= total)


class Maker(Reader):
    """Makes the records of a range."""

    def __init__(self, make: Callable[[Any], Any], seed: int, schema: pa.Schema) -> None:
        self._make, self._seed, self._schema = make, seed, schema

    def read(self, part: Range) -> Iterator[Records]:
        steps = Steps(*(np.array(part[name], dtype=np.float64) for name in ("edges", "counts", "values")))
        for first in range(part["first"], part["last"], CHUNK_ROWS):
            last = min(first + CHUNK_ROWS, part["last"])
            micros = np.rint(steps.created(first, last) * 1e6).astype(np.int64) + round(part["started"] * 1e6)
            records = list(self._made(first, micros.tolist()))
            yield Records(self._fitted(first, records), micros, numbers=np.arange(first, last), next=last)

    def _made(self, first: int, micros: list[int]) -> Iterator[Any]:
        for draw in draws(self._seed, first, micros):
            try:
                made = self._make(draw)
            except BaseException as fault:  # sys.exit() in the user's function must not end the worker
                failed = f"generator {_name_of(self._make)}: record {draw.index} failed"
                raise RecordError(f"{failed}: {type(fault).__name__}: {fault}") from fault
            yield made

    def _fitted(self, first: int, records: list[Any]) -> pa.RecordBatch:
        """The records as a batch. If that fails, find the first record that does not fit and name it in the error."""
        try:
            return to_batch(records, self._schema)
        except Exception:
            for index, record in enumerate(records, start=first):
                try:
                    to_batch([record], self._schema)
                except Exception as fault:
                    raise RecordError(
                        f"generator {_name_of(self._make)}: record {index} does not fit its schema:"
                        f" {fault}; it is {record!r:.500}"
                    ) from fault
            raise


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
