"""One operator at work: its replicas, the records at them, and the grouping that sends records to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.policy.group import Continual
from springtide.policy.group.keys import mix
from springtide.sim import kernels
from springtide.sim.arrivals import BLOCK, NOT_ASKED, Batch, joined
from springtide.sim.compile import compiled
from springtide.sim.counts import Counts
from springtide.sim.draws import generator
from springtide.sim.first_free import knockout, start_waiting
from springtide.sim.kernels import Floats, Ints, Network, Pending, Replicas
from springtide.sim.model import NO_LIMIT, Operator
from springtide.sim.phases import segments
from springtide.sim.router import Router
from springtide.sim.store import Store

LAST = float(np.finfo(np.float64).max)
"""After all that will ever happen."""


@dataclass
class Station:
    """A step appends what comes to the rows and takes out what leaves.

    Where records start at the replica that is free first, and nobody asks for which one they wait, those that wait have none.
    """

    operator: Operator
    grouping: Continual
    seed: int
    timeout: float  # beyond which a record is removed
    feedback: float
    carried: tuple[str, ...]
    looked_at: bool  # whether it matters for which replica a record waits
    network: Network | None = None
    counts: Counts = field(default_factory=Counts)  # since the last snapshot
    totals: Counts = field(default_factory=Counts)
    waiting: int = 0

    def __post_init__(self) -> None:
        self.active, self.told, self.seen, self.served = 0, 0.0, 0, 0
        self._until, self._paused = 0.0, 0.0
        self._store = Store(BLOCK, self.carried)
        self._left, self._order = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._in_order = False
        self._factors: tuple[float, ...] = ()
        self.replicas = Replicas(np.zeros(0), np.zeros(0, dtype=np.int64), np.ones(0), np.zeros(0, dtype=np.int64))
        self._random = generator(self.seed, f"costs of {self.operator.name}")
        self._speeds = self.operator.phases
        self.slowed = np.ones(0)  # by cores that replicas share
        self.busy_s = np.zeros(0)  # of each replica since the last snapshot, where they have places
        self.router = Router(self.grouping, self.operator.name, self.seed)
        self._tracked = False
        self._pending: Pending | None = None
        limited = self.operator.queue_limit < NO_LIMIT or len(self._speeds) > 1
        self._waits = self.router.first_free and not self.looked_at and not limited
        """Whether records get a replica only when they start."""
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
        if self.operator.queue == "each":
            self._start_all()  # what waits is in the queues of the replicas that were there
        self.active = degree
        self._knockout = knockout(degree)
        self.router.begin(degree)
        self._tracked = self.router.told or self.operator.queue_limit < NO_LIMIT
        self.feedback_s = self.feedback if self._tracked else 0.0
        self._track()
        if self.operator.queue == "shared" and self.under_way:
            self._set_factors(self._factors)
            begin = max(self._until, self._paused)
            compiled(kernels.share_out)(self.rows, self._store.known, self._until, begin, self.timeout, self.replicas, degree)
            if self._waits:  # at once, or another change at the same time would find them still waiting
                self._start(self._until, self._until, np.zeros(5))

    def step(self, batches: Sequence[Batch], since: float, until: float) -> tuple[Ints, int]:
        """Take in what was sent by ``until``: the rows that were served by then, and how many those are.

        Afterwards call ``clear``, which takes them out.
        """
        count = self._take(batches)
        sums, store = np.zeros(5), self._store
        if self._waits:
            self._set_factors(self._speeds[0].factors if self._speeds else ())
            served = self._start(since, until, sums)
        else:
            self._route(until)
            served = compiled(kernels.settle)(self.rows, store.count, since, until, self._left, sums)
        self.seen += count
        self.counts.add(Counts(count, served, float(sums[0]), float(sums[1]), int(sums[2]), int(sums[3])))
        self.waiting, self.served = int(sums[4]), served
        if self.replicas.node[0] >= 0:
            self._add_busy(since, until)
        self._until = until
        return self._left, served

    def leaving(self) -> Batch:
        """What was served in the step, in the order in which it leaves."""
        rows, order = self.rows, self._order[: self.served]
        if not self._in_order:
            left = self._left[: self.served]
            order = left[np.argsort(rows.depart[left], kind="stable")]
        carried = {name: getattr(rows, name)[order] if name in self.carried else NOT_ASKED for name in ("item", "root")}
        origin = self.replicas.node[rows.target[order]] if "origin" in self.carried else NOT_ASKED
        return Batch(rows.depart[order], rows.created[order], **carried, origin=origin)

    def clear(self) -> None:
        self._store.leave(compiled(kernels.keep)(self.rows, self._store.known, self._until, self.feedback_s))

    def _start(self, since: float, until: float, sums: Floats) -> int:
        """Start what waits for the first free replica, as far as it starts by ``until``: how many rows were served by then."""
        store = self._store
        store.known, served, self._in_order = compiled(start_waiting)(
            self.rows, store.known, store.count, since, until, self.replicas, self._knockout, self.timeout, self._left,
            self._order, sums,
        )  # fmt: skip
        return int(served)

    def _route(self, until: float) -> None:
        """Send the rows that have no replica to theirs."""
        begin, last = self._store.known, self._store.count
        for end, factors in segments(self._speeds, self.rows.at, begin, last, self.seen):
            self._set_factors(factors)
            told, self.told = self.told, until if end == last else float(self.rows.at[end - 1])
            self.router.serve(
                self.rows, begin, end, told, self.told, self.replicas, self.timeout, self.operator.queue_limit,
                self.feedback_s, self.network, self._pending,
            )  # fmt: skip
            begin = end
        self._store.known = last

    def _start_all(self) -> None:
        """Give a replica to those that would get theirs when they start, as if nothing were to change until then."""
        if self._store.known < self._store.count:
            self._start(self._until, LAST, np.zeros(5))

    def defer(self, now: float, until: float, drop: bool) -> None:
        """A pause, or a restart, from ``now`` until then."""
        self._paused = until
        self._start_all()
        compiled(kernels.defer)(self.rows, self.under_way, now, until, self.timeout, self.replicas, drop)

    def queues(self) -> Ints:
        """How many records wait for each active replica."""
        rows, now = slice(self.under_way), self._until
        waits = (self.rows.start[rows] > now) & (self.rows.fate[rows] <= kernels.LATE)
        return np.bincount(self.rows.target[rows][waits], minlength=len(self.replicas.free))[: self.active]

    @property
    def there(self) -> int:
        """How many records are at it, waiting or being served."""
        return int(self._there().sum())

    def oldest(self) -> float:
        """When the oldest record that is there was created."""
        return float(self.rows.created[: self.under_way][self._there()].min(initial=np.inf))

    def older_than(self, time: float) -> int:
        """How many of the records that are there were created before ``time``."""
        return int((self._there() & (self.rows.created[: self.under_way] < time)).sum())

    def last_departure(self) -> float:
        """When it will have done all that it was given."""
        self._start_all()
        return float(self.rows.depart[: self.under_way].max(initial=0.0))

    @property
    def rows(self) -> kernels.Rows:
        """Those under way, those with a replica first; behind them is room."""
        return self._store.rows

    @property
    def under_way(self) -> int:
        return self._store.count

    def _there(self) -> npt.NDArray[np.bool_]:
        """Which rows are those of records that are there: they have a replica and have not left, or wait for one."""
        there = self.rows.fate[: self.under_way] <= kernels.LATE
        there[self._store.known :] = True
        return there

    def take_busy(self) -> Floats:
        """How long each replica was busy since the last call."""
        taken, self.busy_s = self.busy_s, np.zeros(len(self.busy_s))
        return taken

    def take_counts(self) -> Counts:
        """What it did since the last call."""
        taken, self.counts = self.counts, Counts()
        self.totals.add(taken)
        return taken

    def _add_busy(self, since: float, until: float) -> None:
        rows, last = self.rows, self._store.known
        begun = (rows.fate[:last] == kernels.SERVED) & (rows.start[:last] <= until)
        took = np.minimum(rows.depart[:last], until) - np.maximum(rows.start[:last], since)
        self.busy_s += np.bincount(rows.target[:last][begun], took[begun], minlength=len(self.busy_s))

    def _take(self, batches: Sequence[Batch]) -> int:
        """Append what comes, in the order of time."""
        count = sum(len(batch.at) for batch in batches)
        if not count:
            return 0
        if len(batches) == 1:
            (batch,) = batches
            order: Any = slice(None)
        else:
            batch = joined(batches)
            order = np.argsort(batch.at, kind="stable")
        new = self._store.append(batch, order)
        rows = self.rows
        self._track()
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

    def _set_factors(self, factors: tuple[float, ...]) -> None:
        self._factors = factors
        self.replicas.factor[:] = self.slowed
        known = min(len(factors), len(self.slowed))
        self.replicas.factor[:known] *= factors[:known]

    def _track(self) -> None:
        """Room for the lists of rows that leave, and of those that replicas have yet to finish, if anybody asks for them."""
        size, replicas = self._store.size, len(self.replicas.free)
        if len(self._left) < size:
            self._left, self._order = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
        if not self._tracked:
            self._pending = None
        elif self._pending is None or len(self._pending.head) < replicas or len(self._pending.link) < size:
            whole = np.empty(2 * replicas + size, dtype=np.int64)
            self._pending = Pending(whole[:replicas], whole[replicas : 2 * replicas], np.empty(replicas), whole[2 * replicas :])
