"""One operator at work: its replicas, the records at them, and the grouping that sends records to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from springtide.policy.group import Continual
from springtide.policy.group.keys import mix
from springtide.sim import kernels
from springtide.sim.arrivals import BLOCK, Batch, joined
from springtide.sim.compile import compiled
from springtide.sim.draws import generator
from springtide.sim.kernels import Floats, Ints, Network, Pending, Replicas, Rows
from springtide.sim.model import NO_LIMIT, Operator
from springtide.sim.router import Router


@dataclass
class Counts:
    """What an operator did: in an interval, or in all."""

    rows_in: int = 0
    served: int = 0
    busy_s: float = 0.0
    response_s: float = 0.0
    lost: int = 0
    late: int = 0

    def add(self, other: Counts) -> None:
        for name in vars(other):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class Station:
    """The rows at the front of ``rows`` are under way; a step appends what comes and takes out what leaves."""

    operator: Operator
    grouping: Continual
    seed: int
    timeout: float  # beyond which a record is removed
    feedback: float
    by_record: bool = False
    network: Network | None = None
    counts: Counts = field(default_factory=Counts)  # since the last snapshot
    totals: Counts = field(default_factory=Counts)
    waiting: int = 0

    def __post_init__(self) -> None:
        self.active, self.under_way, self.told, self.seen, self.served = 0, 0, 0.0, 0, 0
        self._last, self._until, self._paused = 0, 0.0, 0.0
        self._factors: tuple[float, ...] = ()
        self.replicas = Replicas(np.zeros(0), np.zeros(0, dtype=np.int64), np.ones(0), np.zeros(0, dtype=np.int64))
        self._random = generator(self.seed, f"costs of {self.operator.name}")
        self._speeds = self.operator.phases
        self.slowed = np.ones(0)  # by cores that replicas share
        self.busy_s = np.zeros(0)  # of each replica since the last snapshot, where they have places
        self.router = Router(self.grouping, self.operator.name, self.seed)
        self._tracked = False
        self._rows(BLOCK)
        self.resize(self.operator.replicas)

    def resize(self, degree: int) -> None:
        """Activate or deactivate replicas; those that are no longer active drain their queues."""
        if degree > len(self.replicas.free):
            more = degree - len(self.replicas.free)
            free, queue, factor, node = self.replicas
            self.replicas = Replicas(
                np.append(free, np.full(more, self._paused)), np.append(queue, np.zeros(more, dtype=np.int64)),
                np.append(factor, np.ones(more)), np.append(node, np.full(more, -1)),
            )  # fmt: skip
            self.slowed = np.append(self.slowed, np.ones(more))
            self.busy_s = np.append(self.busy_s, np.zeros(more))
        if degree == self.active:
            return
        self.active = degree
        self.router.begin(degree)
        self._tracked = self.router.told or self.operator.queue_limit < NO_LIMIT
        self.feedback_s = self.feedback if self._tracked else 0.0
        self._track()
        if self.operator.queue == "shared" and self.under_way:
            self._set_factors(self._factors)
            begin = max(self._until, self._paused)
            compiled(kernels.share_out)(self.rows, self.under_way, self._until, begin, self.timeout, self.replicas, degree)

    def step(self, batches: Sequence[Batch], since: float, until: float) -> tuple[Ints, int]:
        """Take in what was sent by ``until``: the rows that were served by then, and how many those are.

        Afterwards call ``clear``, which takes them out.
        """
        first = self.under_way
        count = self._take(batches)
        last = first + count
        begin = first
        for end, factors in self._segments(first, last):
            self._set_factors(factors)
            told, self.told = self.told, until if end == last else float(self.rows.at[end - 1])
            self.router.serve(
                self.rows, begin, end, told, self.told, self.replicas, self.timeout, self.operator.queue_limit,
                self.feedback_s, self.network, self._pending,
            )  # fmt: skip
            begin = end
        self.seen += count
        sums = np.zeros(5)
        served = compiled(kernels.settle)(self.rows, last, since, until, self._left, sums)
        self.counts.add(Counts(count, served, float(sums[0]), float(sums[1]), int(sums[2]), int(sums[3])))
        self.waiting, self.served = int(sums[4]), served
        if self.replicas.node[0] >= 0:
            self._add_busy(last, since, until)
        self._last, self._until = last, until
        return self._left, served

    def clear(self) -> None:
        self.under_way = compiled(kernels.keep)(self.rows, self._last, self._until, self.feedback_s)

    def defer(self, now: float, until: float, drop: bool) -> None:
        """A pause, or a restart, from ``now`` until then."""
        self._paused = until
        compiled(kernels.defer)(self.rows, self.under_way, now, until, self.timeout, self.replicas, drop)

    def queues(self) -> Ints:
        """How many records wait for each active replica."""
        rows, now = slice(self.under_way), self._until
        waits = (self.rows.start[rows] > now) & (self.rows.fate[rows] <= kernels.LATE)
        return np.bincount(self.rows.target[rows][waits], minlength=len(self.replicas.free))[: self.active]

    @property
    def there(self) -> int:
        """How many records are at it, waiting or being served."""
        return int((self.rows.fate[: self.under_way] <= kernels.LATE).sum())

    def oldest(self) -> float:
        """When the oldest record that is there was created."""
        there = self.rows.fate[: self.under_way] <= kernels.LATE
        return float(self.rows.created[: self.under_way][there].min(initial=np.inf))

    def older_than(self, time: float) -> int:
        """How many of the records that are there were created before ``time``."""
        rows = slice(self.under_way)
        return int(((self.rows.fate[rows] <= kernels.LATE) & (self.rows.created[rows] < time)).sum())

    def last_departure(self) -> float:
        """When it will have done all that it was given."""
        return float(self.rows.depart[: self.under_way].max(initial=0.0))

    def take_busy(self) -> Floats:
        """How long each replica was busy since the last call."""
        taken, self.busy_s = self.busy_s, np.zeros(len(self.busy_s))
        return taken

    def take_counts(self) -> Counts:
        """What it did since the last call."""
        taken, self.counts = self.counts, Counts()
        self.totals.add(taken)
        return taken

    def _add_busy(self, last: int, since: float, until: float) -> None:
        rows = self.rows
        begun = (rows.fate[:last] == kernels.SERVED) & (rows.start[:last] <= until)
        took = np.minimum(rows.depart[:last], until) - np.maximum(rows.start[:last], since)
        self.busy_s += np.bincount(rows.target[:last][begun], took[begun], minlength=len(self.busy_s))

    def _take(self, batches: Sequence[Batch]) -> int:
        """Append what comes, in the order of time."""
        count = sum(len(batch.at) for batch in batches)
        if not count:
            return 0
        first, last = self.under_way, self.under_way + count
        if last > len(self.rows.at):
            self._rows(2 * last)
        new = slice(first, last)
        rows = self.rows
        if len(batches) == 1:
            (batch,) = batches
            order: Any = slice(None)
        else:
            batch = joined(batches)
            order = np.argsort(batch.at, kind="stable")
        rows.at[new], rows.created[new] = batch.at[order], batch.created[order]
        rows.item[new] = batch.item[order]
        if self.by_record:
            rows.root[new] = batch.root[order]
        if self.network is not None:
            rows.origin[new] = batch.origin[order]
        if self.router.keyed:
            rows.key[new] = self._keys(rows.item[new])
        self.operator.cost.draw(self._random, rows.item[new], rows.cost[new])
        return count

    def _keys(self, items: Ints) -> Any:
        keys = self.operator.keys
        if keys is None:
            return mix(items.view(np.uint64))
        chosen = np.take(keys, items)
        return chosen if self.operator.hashed else mix(chosen.astype(np.uint64))

    def _segments(self, first: int, last: int) -> list[tuple[int, tuple[float, ...]]]:
        """Where the rows from ``first`` to ``last`` are cut by changes of the replicas' speeds, and the factors up to there."""
        if first == last or len(self._speeds) < 2:
            return [(last, self._speeds[0].factors if self._speeds else ())]
        cuts = []
        for speeds in self._speeds:
            by_time = first + int(np.searchsorted(self.rows.at[first:last], speeds.from_s, side="left"))
            cuts.append(min(last, max(first + speeds.from_record - self.seen, by_time)))
        ends = [max(first, cut) for cut in cuts[1:]] + [last]
        found = [(end, speeds.factors) for end, speeds in zip(ends, self._speeds, strict=True)]
        kept = [(end, factors) for i, (end, factors) in enumerate(found) if end > (found[i - 1][0] if i else first)]
        return kept

    def _set_factors(self, factors: tuple[float, ...]) -> None:
        self._factors = factors
        self.replicas.factor[:] = self.slowed
        known = min(len(factors), len(self.slowed))
        self.replicas.factor[:known] *= factors[:known]

    def _rows(self, size: int) -> None:
        """Room for so many rows."""
        kinds = {"key": np.uint64, "item": np.int64, "root": np.int64, "target": np.int64, "origin": np.int64, "fate": np.int8}
        fresh = {name: np.zeros(size, dtype=kinds.get(name, np.float64)) for name in Rows._fields}
        if self.under_way:
            for name, column in fresh.items():
                column[: self.under_way] = getattr(self.rows, name)[: self.under_way]
        self.rows: Rows = Rows(**fresh)
        self._left = np.empty(size, dtype=np.int64)
        self._track()

    def _track(self) -> None:
        """Room for the lists of records that replicas have yet to finish, if anybody asks for them."""
        size, replicas = len(self._left), len(self.replicas.free)
        whole = np.empty(2 * replicas + size, dtype=np.int64)
        lists = Pending(whole[:replicas], whole[replicas : 2 * replicas], np.empty(replicas), whole[2 * replicas :])
        self._pending = lists if self._tracked else None
