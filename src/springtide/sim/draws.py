"""Random draws for every record: arrival time, item and cost.

numpy generates the numbers in blocks. Each generator is seeded by the run's seed and its purpose: a new operator does not
change the draws of others.
"""

from __future__ import annotations

import types
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from springtide.errors import OptionError
from springtide.policy.group import kernel
from springtide.sim.compile import compiled, reads
from springtide.sim.kernels import Floats, Ints

_ITEMS = 2  # the index of ``items`` among the arguments of ``Cost.draw``


def generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64([seed, zlib.crc32(purpose.encode())]))


class Cost(Protocol):
    """The distribution of a record's work in seconds."""

    def draw(self, random: np.random.Generator, items: Ints, out: Floats) -> None: ...


def reads_items(cost: Cost) -> bool:
    """Whether costs depend on the records' items. If that is unknown, they may.

    >>> reads_items(Exponential(0.1)), reads_items(ByItem(np.ones(3)))
    (False, True)
    """
    draw = getattr(type(cost), "draw", None)
    inspectable = isinstance(draw, types.FunctionType) and draw.__code__.co_argcount > _ITEMS
    return not inspectable or reads(draw, _ITEMS)


@dataclass(frozen=True)
class Constant:
    seconds: float

    def draw(self, random: np.random.Generator, items: Ints, out: Floats) -> None:
        out[:] = self.seconds


NOTHING = Constant(0.0)


@dataclass(frozen=True)
class Exponential:
    mean: float

    def draw(self, random: np.random.Generator, items: Ints, out: Floats) -> None:
        random.standard_exponential(out=out)
        out *= self.mean


@dataclass(frozen=True)
class Normal:
    """A normal distribution, drawn again until it is positive."""

    mean: float
    deviation: float

    def draw(self, random: np.random.Generator, items: Ints, out: Floats) -> None:
        out[:] = random.normal(self.mean, self.deviation, len(out))
        while (wrong := np.flatnonzero(out <= 0)).size:
            out[wrong] = random.normal(self.mean, self.deviation, wrong.size)

    def __post_init__(self) -> None:
        if not (self.mean > 0 and self.deviation >= 0):
            raise OptionError(f"{self}: the mean is above 0, the deviation 0 or more")


@dataclass(frozen=True)
class ByItem:
    """A cost for each item: ``seconds[item]``."""

    seconds: Floats = field(compare=False)

    def draw(self, random: np.random.Generator, items: Ints, out: Floats) -> None:
        np.take(self.seconds, items, out=out)


class Items(Protocol):
    """The distribution of a source's items: the keys for costs and groupings."""

    @property
    def size(self) -> int: ...

    def start(self, random: np.random.Generator) -> ItemStream:
        """Begin a sequence of draws."""


class ItemStream(Protocol):
    """Draws the items of a source's records in sequence."""

    def draw(self, times: Floats, first: int) -> Ints:
        """The items of the records from number ``first`` on, which are created at these times."""


@dataclass(frozen=True)
class Given:
    """A given sequence of items, repeated from the start after the last."""

    items: Ints = field(compare=False)

    @property
    def size(self) -> int:
        return int(self.items.max()) + 1

    def start(self, random: np.random.Generator) -> ItemStream:
        return self

    def draw(self, times: Floats, first: int) -> Ints:
        return np.take(self.items, np.arange(first, first + len(times)), mode="wrap")


@dataclass(frozen=True)
class Weighted:
    """Items with these probabilities, which are reassigned among the items ``shuffles`` times a minute."""

    chances: Floats = field(compare=False)
    shuffles: float = 0.0
    permuted: bool = False

    @property
    def size(self) -> int:
        return len(self.chances)

    def start(self, random: np.random.Generator) -> ItemStream:
        return _Dealt(self, random)

    def ranked(self, random: np.random.Generator) -> Ints:
        """The initial assignment of probabilities to items."""
        return random.permutation(self.size) if self.permuted else np.arange(self.size)

    @cached_property
    def alias(self) -> tuple[Floats, Ints]:
        """Walker's tables, by Vose's method."""
        chances = np.asarray(self.chances, dtype=np.float64)
        if not (chances.ndim == 1 and len(chances) and (chances >= 0).all() and chances.sum() > 0):
            raise OptionError("chances of items are 0 or more, and not all are 0")
        size = len(chances)
        chance, other = chances / chances.sum() * size, np.arange(size)
        small, large = list(np.flatnonzero(chance < 1)), list(np.flatnonzero(chance >= 1))
        while small and large:
            below, above = small.pop(), large[-1]
            other[below] = above
            chance[above] -= 1 - chance[below]
            if chance[above] < 1:
                small.append(large.pop())
        chance[[*small, *large]] = 1.0
        return chance, other


def Uniform(size: int) -> Weighted:  # noqa: N802  reads like the others
    """Items with equal probabilities."""
    return Weighted(np.ones(size))


def Zipf(size: int, exponent: float, shuffles: float = 0.0) -> Weighted:  # noqa: N802
    """Zipf's distribution: the r-th most frequent item is drawn in proportion to r to the power of -exponent. The seed decides
    which item that is."""
    return Weighted(np.arange(1, size + 1, dtype=np.float64) ** -exponent, shuffles, permuted=True)


def chances_of(items: Items, random: np.random.Generator) -> Floats:
    """The probability of each item for draws with this generator; uniform for unknown kinds of items."""
    if isinstance(items, Given):
        return np.bincount(items.items, minlength=items.size) / len(items.items)
    chances: Floats = np.full(items.size, 1 / items.size)
    if isinstance(items, Weighted) and not items.shuffles:  # shuffled probabilities are uniform over time
        chances[items.ranked(random)] = np.asarray(items.chances, dtype=np.float64) / np.sum(items.chances)
    return chances


class _Dealt:
    """Draws ranks by the alias tables, and maps them to items by the current assignment."""

    def __init__(self, items: Weighted, random: np.random.Generator) -> None:
        self._random, self._every = random, 60.0 / items.shuffles if items.shuffles else np.inf
        self._chance, self._other = items.alias
        self._deal = 0
        self._ranked = items.ranked(random)

    def draw(self, times: Floats, first: int) -> Ints:
        ranks = np.empty(len(times), dtype=np.int64)
        compiled(pick)(self._random.random(len(times)), self._chance, self._other, ranks, len(times))
        if not np.isfinite(self._every):
            return self._ranked[ranks]
        deals = (times // self._every).astype(np.int64)
        for deal in np.unique(deals):
            while self._deal < deal:
                self._ranked, self._deal = self._random.permutation(self._ranked), self._deal + 1
            ranks[deals == deal] = self._ranked[ranks[deals == deal]]
        return ranks


@kernel
def pick(uniform: Floats, chance: Floats, other: Ints, item: Ints, count: int) -> None:
    """Draw items by Walker's alias method: one number from [0, 1) selects both the column and its side."""
    size = len(chance)
    for i in range(count):
        place = uniform[i] * size
        column = int(place)
        item[i] = column if place - column < chance[column] else other[column]
