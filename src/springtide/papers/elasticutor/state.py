"""The state of ``engine``: the places of shards, cores and executors, and their capacities.

Shards move within a *group*: an executor or, in paradigms with an executor per core, an operator. A *station* has a queue: it
is an executor in both cases. Loads are per source tuple: a station whose most loaded core has a load of 5 µs processes 200,000
tuples a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from springtide.errors import OptionError

if TYPE_CHECKING:
    from springtide.papers.elasticutor.engine import Elastic

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_UNLIMITED = 1e12
"""A rate in tuples per second above all others: that of a station without input."""


class ExecutorState:
    def __init__(self, setup: Elastic, core_node: Ints, core_group: Ints, home: Ints, rng: np.random.Generator) -> None:
        self.setup, self.nodes = setup, setup.nodes
        self.core_node, self.core_group, self.core_next = core_node, core_group, core_group.copy()
        self.home = home  # by station
        operators, per_operator = len(setup.operators), setup.executors * setup.shards
        self.groups = operators * (setup.executors if setup.elastic else 1)
        self.per_group = operators * per_operator // self.groups
        """Shards of a group, which have consecutive numbers."""
        self.shard_group = np.arange(operators * per_operator) // self.per_group

        def of_shards(name: str) -> Floats:
            return np.repeat([float(getattr(operator, name)) for operator in setup.operators], per_operator)

        self.cost_s, self.state_bytes = of_shards("cost_s"), of_shards("state_bytes")
        self.bytes_in, self.bytes_out = of_shards("bytes_in"), of_shards("bytes_out")
        self.source_bytes = sum(o.per_tuple * o.bytes_in for o in setup.operators if o.from_source)
        self._hash: list[Ints] = []
        self._rng = rng
        cores = map(self.cores_of, range(self.groups))
        self.shard_core = np.concatenate([own[np.arange(self.per_group) * len(own) // self.per_group] for own in cores])
        stations = len(home)
        self.waiting, self.sent, self.served = (np.zeros(stations) for _ in range(3))  # tuples, now and in the last step
        self.share = np.zeros(len(self.shard_core))  # tuples of each shard per source tuple
        self._since = 0.0  # source tuples since the last update of the window
        self._buckets = [np.zeros(len(self.share) + 1) for _ in range(2)]  # seconds of work by shard, and all tuples
        self.work, self.seen = np.zeros(len(self.share)), 0.0
        self.backlog = 0.0  # tuples in the senders
        self.last_rate = 0.0  # of the source in the last step, which takes ``step_s``
        self.step_s = 1.0
        self._stale = False

    @classmethod
    def of(cls, setup: Elastic, rng: np.random.Generator) -> ExecutorState:
        """Spread the executors over the nodes and each node's cores over its executors, round-robin; spare cores go to all."""
        total = setup.cores or setup.nodes * setup.cores_per_node
        core_node = np.arange(total) // setup.cores_per_node
        executors = len(setup.operators) * setup.executors
        if (executors if setup.elastic else len(setup.operators)) > total:
            raise OptionError(f"{executors} executors need a core each, and there are {total}: fewer executors or more cores")
        if not setup.elastic:
            work = np.array([operator.per_tuple * operator.cost_s for operator in setup.operators])
            edges = np.cumsum(work) / work.sum() * (total - len(work)) + np.arange(1, len(work) + 1)
            dealt = np.searchsorted(edges, np.arange(total) + 0.5)  # in proportion to the work, at least one
            return cls(setup, core_node, rng.permutation(dealt) if len(work) > 1 else dealt, core_node.copy(), rng)
        home = np.arange(executors) % setup.nodes
        group, turn = np.full(total, -1), 0
        for node in range(setup.nodes):
            here, own = np.flatnonzero(core_node == node), np.flatnonzero(home == node)
            for k, core in enumerate(here):
                group[core] = own[k % len(own)] if len(own) else turn % executors
                turn += not len(own)
        if len(np.unique(group)) < executors:
            raise OptionError(f"{executors} executors on {setup.nodes} nodes leave some without a core of their own node")
        return cls(setup, core_node, group, home, rng)

    def cores_of(self, group: int) -> Ints:
        """The cores that a group may use, without those it is about to give away."""
        return np.flatnonzero((self.core_group == group) & (self.core_next == group))

    def shards_of(self, group: int) -> slice:
        return slice(group * self.per_group, (group + 1) * self.per_group)

    @property
    def station_of(self) -> Ints:
        return self.core_group if self.setup.elastic else np.arange(len(self.core_node))

    def spread(self, weights: Floats) -> None:
        """Apply new shares of the keys."""
        self.update_window()
        size = self.setup.executors * self.setup.shards
        if not self._hash:
            self._hash = [self._rng.integers(0, size, len(weights)) for _ in self.setup.operators]
        parts = [
            np.bincount(slots, weights, minlength=size) * operator.per_tuple
            for slots, operator in zip(self._hash, self.setup.operators, strict=True)
        ]
        self.share = np.concatenate(parts)
        self.refresh()

    def refresh(self) -> None:
        """Recompute the loads of cores from the places of shards."""
        cores = len(self.core_node)
        self.core_load = np.bincount(self.shard_core, self.share * self.cost_s, minlength=cores)
        self.core_share = np.bincount(self.shard_core, self.share, minlength=cores)
        self.core_in = np.bincount(self.shard_core, self.share * self.bytes_in, minlength=cores)
        self.core_out = np.bincount(self.shard_core, self.share * self.bytes_out, minlength=cores)
        self.core_shards = np.bincount(self.shard_core, minlength=cores)
        self._derive()

    def put(self, shard: int, core: int) -> None:
        old, share = self.shard_core[shard], self.share[shard]
        for core_sum, amount in (
            (self.core_load, share * self.cost_s[shard]), (self.core_share, share), (self.core_shards, 1),
            (self.core_in, share * self.bytes_in[shard]), (self.core_out, share * self.bytes_out[shard]),
        ):  # fmt: skip
            core_sum[old] -= amount
            core_sum[core] += amount
        self.shard_core[shard] = core
        self._stale = True

    def _derive(self) -> None:
        self._stale = False
        station, stations, count = self.station_of, len(self.home), self.nodes
        self.per_tuple = np.bincount(station, self.core_share, minlength=stations).clip(min=0.0)
        work = np.bincount(station, self.core_load, minlength=stations)
        self.mean_cost_s = np.divide(work, self.per_tuple, out=np.zeros(stations), where=self.per_tuple > 0)
        cores = np.bincount(station, minlength=stations)
        self.room = self.setup.queue + (self.setup.core_queue * cores if self.setup.elastic else np.zeros(stations))
        """The capacity of each queue in tuples."""
        self._worst = np.zeros(stations)
        np.maximum.at(self._worst, station, self.core_load)
        away = self.core_node != self.home[station]
        at, homes = self.core_node[away], self.home[station[away]]
        taken, given = self.core_in[away], self.core_out[away]
        crossing = 1 - 1 / count  # the share of traffic with other nodes
        incoming = np.bincount(station, self.core_in, minlength=stations)
        outgoing = np.bincount(station, self.core_out, minlength=stations)
        self.node_in = (
            np.bincount(self.home, incoming, minlength=count) * crossing + np.bincount(at, taken, minlength=count)
            + np.bincount(homes, given, minlength=count)
        ).clip(min=0.0)  # fmt: skip
        self.node_out = (
            np.bincount(self.home, outgoing, minlength=count) * crossing + np.bincount(homes, taken, minlength=count)
            + np.bincount(at, given, minlength=count) + self.source_bytes * crossing / count
        ).clip(min=0.0)  # fmt: skip
        self.remote_bytes = float((taken + given).sum())
        self._busy = self.core_share > 0

    def capacity(self, claimed: tuple[Floats, Floats]) -> Floats:
        """The tuples per second that each station can serve while state migration claims these bytes per second.

        Tuples get at least half of an interface. A station without input empties its queue at once.
        """
        if self._stale:
            self._derive()
        whole = self.setup.interface
        left = [np.maximum(whole - used, whole / 2) for used in claimed]
        with np.errstate(divide="ignore"):
            limit = np.minimum(left[0] / self.node_in, left[1] / self.node_out)
            rate = np.minimum(1 / self._worst, limit[self.home])
        np.minimum.at(rate, self.station_of[self._busy], limit[self.core_node[self._busy]])
        served: Floats = np.multiply(rate, self.per_tuple, out=np.full(len(rate), _UNLIMITED), where=self.per_tuple > 0)
        return served

    def pass_on(self, rate: float, served: Floats, step_s: float) -> None:
        """Record the tuples that were sent and served in a step."""
        self.last_rate, self.step_s = rate, step_s
        self.sent, self.served = rate * step_s * self.per_tuple, served
        self.waiting += self.sent - served
        self._since += rate * step_s

    # The balancer and the scheduler see the work that was sent to each shard, not the work done: after a stop all queues are
    # full and all cores are equally busy. The authors' code also counts at the router.

    def update_window(self) -> None:
        if self._since:
            self._buckets[-1] += self._since * np.append(self.share * self.cost_s, 1.0)
            self._since = 0.0

    def close_window(self, keep: bool = True) -> None:
        """Close a window: ``work`` covers the last two. Without ``keep`` it is cleared, as after a stop."""
        self.update_window()
        older, current = self._buckets if keep else [np.zeros(len(self.share) + 1)] * 2
        self.work, self.seen = (older + current)[:-1], float((older + current)[-1])
        self._buckets = [current, np.zeros(len(self.share) + 1)]

    def hand_over(self) -> None:
        """Pass on the cores that their executors no longer use."""
        ready = (self.core_next != self.core_group) & (self.core_shards == 0)
        if ready.any():
            self.core_group = np.where(ready, self.core_next, self.core_group)
            self._derive()
