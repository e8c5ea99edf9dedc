"""The arrivals of a source: the times and the items of its records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from springtide.model.rate import Steps
from springtide.sim.draws import generator
from springtide.sim.kernels import Floats, Ints
from springtide.sim.model import Source

BLOCK = 32_768
"""Records that are generated and simulated at once: their columns fit into a core's cache."""

NOT_CARRIED: Ints = np.empty(0, dtype=np.int64)


class Batch(NamedTuple):
    """Records on their way to an operator, in the order of time. The last three columns are empty where nothing needs them."""

    at: Floats
    created: Floats
    item: Ints
    root: Ints
    origin: Ints

    def part(self, rows: Any) -> Batch:
        """The records that a slice, a mask or indices select."""
        item, root, origin = (column[rows] if len(column) else column for column in self[2:])
        return Batch(self.at[rows], self.created[rows], item, root, origin)


def joined(batches: Sequence[Batch]) -> Batch:
    at, created, item, root, origin = (np.concatenate(columns) for columns in zip(*batches, strict=True))
    item, root, origin = (column if len(column) == len(at) else NOT_CARRIED for column in (item, root, origin))
    return Batch(at, created, item, root, origin)


class Arrivals:
    """The records of one source, generated block by block."""

    def __init__(self, source: Source, seed: int, records: int | None, roots: int) -> None:
        self.source = source
        self._random = generator(seed, f"arrivals of {source.name}")
        self._items = None if source.items is None else source.items.start(generator(seed, f"items of {source.name}"))
        self._steps = source.steps.steps
        limits = (records, source.limit, None if source.times is None else len(source.times))
        self._left = min((limit for limit in limits if limit is not None), default=math.inf)
        self._made, self._unit = 0, 0.0
        self._roots = roots  # the index of its first record among those of all sources
        self._times: Floats = np.empty(0)
        self._item: Ints = np.empty(0, dtype=np.int64)
        self._taken = 0
        self.block = BLOCK  # the size of the next block
        self._origin: Ints = np.full(BLOCK, -1 if source.node is None else source.node)
        self._more()

    @property
    def exhausted(self) -> bool:
        return self._taken == len(self._times)

    @property
    def next_at(self) -> float:
        return math.inf if self.exhausted else float(self._times[self._taken])

    @property
    def block_end(self) -> float:
        """The time of the last record of this block; the next block is generated when this one is used up."""
        return float(self._times[-1]) if not self.exhausted else math.inf

    def take(self, until: float) -> Batch:
        """The records that arrive by ``until``, which is at most the end of the block."""
        first = self._taken
        last = int(np.searchsorted(self._times, until, side="right"))
        self._taken = max(first, last)
        part = slice(first, self._taken)
        times, root = self._times[part], self._root[part]
        batch = Batch(times, times, root if self._items is None else self._item[part], root, self._origin[part])
        if self.exhausted:
            self._more()
        return batch

    def _more(self) -> None:
        count = int(min(self.block, self._left))
        if count > len(self._origin):
            self._origin = np.full(count, self._origin[0])
        self._times = self._next(count) if count else np.empty(0)
        self._taken = 0
        if self._items is not None:
            self._item = self._items.draw(self._times, self._made)
        begin = self._roots + self._made
        self._root = np.arange(begin, begin + len(self._times), dtype=np.int64)
        self._made += len(self._times)
        self._left -= len(self._times)

    def _next(self, count: int) -> Floats:
        if self.source.times is not None:
            return np.asarray(self.source.times[self._made : self._made + count], dtype=np.float64)
        if self.source.arrivals == "even":
            wanted = np.arange(self._made + 1, self._made + count + 1, dtype=np.float64)
        else:
            wanted = self._random.standard_exponential(count)
            wanted[0] += self._unit
            np.cumsum(wanted, out=wanted)
            self._unit = float(wanted[-1])
        return _dated(self._steps, wanted)


def _dated(steps: Steps, wanted: Floats) -> Floats:
    """The times at which the rate's integral reaches these counts, without those never reached. Overwrites ``wanted``."""
    if len(steps.values) == 1 and math.isinf(steps.edges[1]):
        wanted /= steps.values[0]
        wanted += steps.edges[0]
        return wanted
    coming = wanted[: np.searchsorted(wanted, steps.counts[-1], side="right")]
    if not len(coming):
        return coming
    low, high = np.searchsorted(steps.counts, (coming[0], coming[-1]), side="left")  # a block spans few steps
    ends = low + np.searchsorted(steps.counts[low:high], coming, side="left")
    begins = ends - 1
    times = steps.edges[begins] + (coming - steps.counts[begins]) / steps.values[begins]
    dated: Floats = np.minimum(times, steps.edges[ends])
    return dated
