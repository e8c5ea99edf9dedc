"""An operator in the simulation: its replicas, records and grouping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.policy.group import Continual
from springtide.policy.group.keys import mix
from springtide.sim import kernels
from springtide.sim.arrivals import BLOCK, NOT_CARRIED, Batch, joined
from springtide.sim.book import Counts
from springtide.sim.compile import compiled
from springtide.sim.draws import generator
from springtide.sim.first_free import knockout, start_waiting
from springtide.sim.kernels import Floats, Ints, Network, Pending, Replicas
from springtide.sim.model import NO_LIMIT, Operator
from springtide.sim.phases import segments
from springtide.sim.router import Router
from springtide.sim.store import Store

LAST = float(np.finfo(np.float64).max)
"""A time after all events."""


@dataclass
class Station:
    """A step appends arrivals to the rows, and removes departures.

    If records start at the first free replica, and nothing depends on where they wait, waiting records have no replica.
    """

    operator: Operator
    grouping: Continual
    seed: int
    timeout: float  # the age beyond which a record is removed
    feedback: float
    carried: tuple[str, ...]
    looked_at: bool  # whether the replica of a waiting record matters
    network: Network | None = None
    counts: Counts = field(default_factory=Counts)  # since the last snapshot
    totals: Counts = field(default_factory=Counts)
    waiting: int = 0

    def __post_init__(self) -> None:
        self.active, self.informed, self.seen, self.served = 0, 0.0, 0, 0
        self._until, self._paused = 0.0, 0.0
        self._store = Store(BLOCK, self.carried)
        self._left, self._order = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._in_order = False
        self._factors: tuple[float, ...] = ()
        self.replicas = Replicas(np.zeros(0), np.zeros(0, dtype=np.int64), np.ones(0), np.zeros(0, dtype=np.int64))
        self._random = generator(self.seed, f"costs of {self.operator.name}")
        self._speeds = self.operator.phases
        self.slowed = np.ones(0)  # factors of replicas that share cores
        self.busy_s = np.zeros(0)  # by replica since the last snapshot, if they have nodes
        self.router = Router(self.grouping, self.operator.name, self.seed)
        self._tracked = False
        self._pending: Pending | None = None
        limited = self.operator.queue_limit < NO_LIMIT or len(self._speeds) > 1
        self._waits = self.router.first_free and not self.looked_at and not limited
        """Whether a record gets its replica only when it starts."""
        self.resize(self.operator.replicas)

    def resize(self, degree: int) -> None:
        """Change the number of active replicas; deactivated ones drain their queues."""
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
            self._start_all()  # waiting records belong to the queues of the old replicas
        self.active = degree
        self._knockout = knockout(degree)
        self.router.begin(degree)
        self._tracked = self.router.wants_feedback or self.operator.queue_limit < NO_LIMIT
        self.feedback_s = self.feedback if self._tracked else 0.0
        self._track()
        if self.operator.queue == "shared" and self.under_way:
            self._set_factors(self._factors)
            begin = max(self._until, self._paused)
            compiled(kernels.share_out)(self.rows, self._store.known, self._until, begin, self.timeout, self.replicas, degree)
            if self._waits:  # now, or another change at this time would find them waiting
                self._start(self._until, self._until, np.zeros(5))

    def step(self, batches: Sequence[Batch], since: float, until: float) -> tuple[Ints, int]:
        """Simulate up to ``until``. Returns the rows that were served, and their number.

        ``clear`` removes them afterwards.
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
        """The records served in this step, in the order of departure."""
        rows, order = self.rows, self._order[: self.served]
        if not self._in_order:
            left = self._left[: self.served]
            order = left[np.argsort(rows.depart[left], kind="stable")]
        carried = {name: getattr(rows, name)[order] if name in self.carried else NOT_CARRIED for name in ("item", "root")}
        origin = self.replicas.node[rows.target[order]] if "origin" in self.carried else NOT_CARRIED
        return Batch(rows.depart[order], rows.created[order], **carried, origin=origin)

    def clear(self) -> None:
        self._store.leave(compiled(kernels.keep)(self.rows, self._store.known, self._until, self.feedback_s))

    def _start(self, since: float, until: float, sums: Floats) -> int:
        """Start the records that the first free replica can start by ``until``. Returns the number served by then."""
        store = self._store
        store.known, served, self._in_order = compiled(start_waiting)(
            self.rows, store.known, store.count, since, until, self.replicas, self._knockout, self.timeout, self._left,
            self._order, sums,
        )  # fmt: skip
        return int(served)

    def _route(self, until: float) -> None:
        """Route the rows without a replica, and serve them."""
        begin, last = self._store.known, self._store.count
        for end, factors in segments(self._speeds, self.rows.at, begin, last, self.seen):
            self._set_factors(factors)
            informed, self.informed = self.informed, until if end == last else float(self.rows.at[end - 1])
            self.router.serve(
                self.rows, begin, end, informed, self.informed, self.replicas, self.timeout, self.operator.queue_limit,
                self.feedback_s, self.network, self._pending,
            )  # fmt: skip
            begin = end
        self._store.known = last

    def _start_all(self) -> None:
        """Assign replicas to all waiting records as if nothing changed later."""
        if self._store.known < self._store.count:
            self._start(self._until, LAST, np.zeros(5))

    def defer(self, now: float, until: float, drop: bool) -> None:
        """Pause from ``now`` to ``until``; ``drop`` makes it a restart that loses the waiting records."""
        self._paused = until
        self._start_all()
        compiled(kernels.defer)(self.rows, self.under_way, now, until, self.timeout, self.replicas, drop)

    def queues(self) -> Ints:
        """The number of records waiting for each active replica."""
        rows, now = slice(self.under_way), self._until
        waits = (self.rows.start[rows] > now) & (self.rows.fate[rows] <= kernels.LATE)
        return np.bincount(self.rows.target[rows][waits], minlength=len(self.replicas.free))[: self.active]

    @property
    def in_flight(self) -> int:
        """The number of its records, waiting or in service."""
        return int(self._unfinished().sum())

    def oldest(self) -> float:
        """The creation time of its oldest record."""
        return float(self.rows.created[: self.under_way][self._unfinished()].min(initial=np.inf))

    def older_than(self, time: float) -> int:
        """The number of its records that were created before ``time``."""
        return int((self._unfinished() & (self.rows.created[: self.under_way] < time)).sum())

    def last_departure(self) -> float:
        """The time at which it will have finished all its records."""
        self._start_all()
        return float(self.rows.depart[: self.under_way].max(initial=0.0))

    @property
    def rows(self) -> kernels.Rows:
        """Its rows: first those with a replica, then those without; spare rows follow."""
        return self._store.rows

    @property
    def under_way(self) -> int:
        return self._store.count

    def _unfinished(self) -> npt.NDArray[np.bool_]:
        """Marks the rows that have not left."""
        unfinished = self.rows.fate[: self.under_way] <= kernels.LATE
        unfinished[self._store.known :] = True
        return unfinished

    def take_busy(self) -> Floats:
        """The busy seconds of each replica since the last call."""
        taken, self.busy_s = self.busy_s, np.zeros(len(self.busy_s))
        return taken

    def take_counts(self) -> Counts:
        """The counters since the last call."""
        taken, self.counts = self.counts, Counts()
        self.totals.add(taken)
        return taken

    def _add_busy(self, since: float, until: float) -> None:
        rows, last = self.rows, self._store.known
        begun = (rows.fate[:last] == kernels.SERVED) & (rows.start[:last] <= until)
        took = np.minimum(rows.depart[:last], until) - np.maximum(rows.start[:last], since)
        self.busy_s += np.bincount(rows.target[:last][begun], took[begun], minlength=len(self.busy_s))

    def _take(self, batches: Sequence[Batch]) -> int:
        """Append arrivals in the order of time."""
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
        """Allocate the lists of departures and, if anything needs them, of pending rows."""
        size, replicas = self._store.size, len(self.replicas.free)
        if len(self._left) < size:
            self._left, self._order = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
        if not self._tracked:
            self._pending = None
        elif self._pending is None or len(self._pending.head) < replicas or len(self._pending.link) < size:
            whole = np.empty(2 * replicas + size, dtype=np.int64)
            self._pending = Pending(whole[:replicas], whole[replicas : 2 * replicas], np.empty(replicas), whole[2 * replicas :])
