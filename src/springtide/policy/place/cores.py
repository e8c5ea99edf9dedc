"""The assignment of cores to executors: each gets its grant, with the least state moved, and near its data.

Source: Wang et al.: "Elasticutor: rapid elasticity for realtime stateful stream processing", SIGMOD 2019, section 4.2,
algorithm 1. Node i has c_i cores, x_ij of them belong to executor j, whose main process is on its home node; X_j = Σ_i x_ij.
An executor's state s_j is spread evenly over its cores, so that a core more on node i moves C⁺ = s_j·(X_j − x_ij) /
(X_j·(X_j + 1)) bytes over the network, and a core fewer C⁻ = s_j·(X_j − x_ij) / (X_j·(X_j − 1)). Executors whose input and
output exceed φ bytes per second and core get cores of their home node only; if there are too few, φ is doubled.

The paper leaves some points open, which are read as follows. Executors with the most data come first (the pseudo-code says
ascending, the text descending). Cores come from executors above their grant, or are free and cost nothing. An executor's last
core is never taken (C⁻ would divide by 0), and its first core costs nothing (nor would C⁺ be defined). Doubling of φ ends above
the greatest data intensity, where φ excludes no executor.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide.errors import OptionError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

PHI = 512 * 1024.0
"""φ: an executor counts as data-intensive above this many bytes per second and core."""
NO_DONOR = -1
"""Stands for the donor of a free core."""


@dataclass(frozen=True, eq=False)
class Assigned:
    """``cores``: x, a row for each node and a column for each executor. ``phi``: the final φ; infinite if φ played no part."""

    cores: Ints
    phi: float


def assign(
    granted: Ints, cores: Ints, capacity: Ints, home: Ints, state: Floats, intensity: Floats, phi: float = PHI,
    from_any: bool = False,
) -> Assigned:  # fmt: skip
    """Assign at least ``granted`` cores to every executor, starting from their present ``cores``.

    ``capacity``: c of every node. ``home``, ``state`` (bytes) and ``intensity`` (bytes per second and core): of every executor.
    ``from_any``: a data-intensive executor may take cores from any that is not, as line 7 of the algorithm has it; a donor that
    falls below its grant is served later. An executor with more than its grant retains the cores that no other needs.

    >>> two = np.array([[3, 1], [0, 0]])  # nodes × executors; node 1 is free
    >>> one_more = np.array([3, 2])
    >>> assign(one_more, two, np.array([5, 4]), np.array([0, 1]), np.array([9e6, 9e6]), np.zeros(2)).cores.tolist()
    [[3, 2], [0, 0]]
    """
    _check(granted, cores, capacity)
    greatest = float(intensity.max(initial=0.0))
    if not np.isfinite(greatest) or not phi > 0:
        raise OptionError(f"data intensities must be finite and φ above 0 bytes/s; they are {greatest} and {phi}")
    market = _Market(granted, cores, capacity, state)
    while True:
        intensive = intensity > phi
        donors = ~intensive if from_any else np.zeros(len(granted), dtype=np.bool_)
        if market.may_serve(intensive, home, donors):
            assigned = _attempt(market.copy(), home, intensity, intensive, donors)
            if assigned is not None:
                return Assigned(assigned, phi)
        while phi < greatest and (intensive == (intensity > phi)).all():
            phi *= 2  # until it excludes fewer executors; the same set would fail again


def naive(granted: Ints, cores: Ints, capacity: Ints, rng: np.random.Generator) -> Assigned:
    """Assign cores without regard to state and data: an executor gets any core that is free or above another's grant.

    This is ``naive-EC`` of section 5.4.
    """
    _check(granted, cores, capacity)
    nodes = np.arange(len(capacity))
    assigned, have = cores.copy(), cores.sum(axis=0)
    spare = [np.repeat(nodes, capacity - cores.sum(axis=1))]
    donors = [np.full(len(spare[0]), NO_DONOR)]
    for j in np.flatnonzero(have > granted):
        spare.append(rng.permutation(np.repeat(nodes, cores[:, j]))[: have[j] - granted[j]])
        donors.append(np.full(len(spare[-1]), j))
    needed = np.repeat(np.arange(len(granted)), np.maximum(granted - have, 0))
    chosen = rng.permutation(sum(map(len, spare)))[: len(needed)]
    at, donor = np.concatenate(spare)[chosen], np.concatenate(donors)[chosen]
    np.add.at(assigned, (at, needed), 1)
    np.subtract.at(assigned, (at[donor != NO_DONOR], donor[donor != NO_DONOR]), 1)
    return Assigned(assigned, np.inf)


def _check(granted: Ints, cores: Ints, capacity: Ints) -> None:
    if (granted < 1).any():
        raise OptionError(f"every executor needs a core; granted: {granted.tolist()}")
    if granted.sum() > capacity.sum():
        raise OptionError(f"{granted.sum()} cores are granted and there are {capacity.sum()}; grant fewer")
    over = np.flatnonzero(cores.sum(axis=1) > capacity)
    if len(over):
        i = int(over[0])
        raise OptionError(f"node {i} has {capacity[i]} cores and {cores[i].sum()} of them are in use")


def _attempt(market: _Market, home: Ints, intensity: Floats, intensive: Flags, donors: Flags) -> Ints | None:
    """Algorithm 1 for a given φ; None if it fails."""
    granted = market.granted
    needy = deque(sorted(np.flatnonzero(market.have < granted).tolist(), key=lambda j: -intensity[j]))
    while needy:
        j = needy.popleft()
        while market.have[j] < granted[j]:
            if intensive[j]:
                node, donor = int(home[j]), market.local(int(home[j]), donors)
            else:
                node, donor = market.anywhere(j, int(home[j]))
            if donor is None:
                return None
            market.trade(node, donor, j)
            if donor != NO_DONOR and market.have[donor] == granted[donor] - 1:
                needy.append(donor)  # with ``from_any`` only; a donor is not data-intensive, so it is served last
    return market.cores


class _Market:
    """The owners of all cores, and the cost of taking a core: an entry for every executor and node on which it has cores.

    There are at most as many entries as cores, and a trade changes only the donor's, so it is fast with 1,000 nodes.
    """

    def __init__(self, granted: Ints, cores: Ints, capacity: Ints, state: Floats) -> None:
        self.granted, self.state = granted, state
        self.cores, self.have = cores, cores.sum(axis=0)
        self.free = capacity - cores.sum(axis=1)
        self._node, self._owner = np.nonzero(cores)
        self._begins = np.searchsorted(self._node, np.arange(len(capacity) + 1))
        loss = self._loss(np.arange(len(self._node)))
        self._cost = np.where((self.have > granted)[self._owner], loss, np.inf)  # C⁻ of executors above their grant

    def copy(self) -> _Market:
        """A copy for an attempt; arrays that no trade changes are shared."""
        other = copy(self)
        other.cores, other.have, other.free = self.cores.copy(), self.have.copy(), self.free.copy()
        other._cost = self._cost.copy()
        return other

    def may_serve(self, intensive: Flags, home: Ints, donors: Flags) -> bool:
        """Whether every node has enough cores to give for the data-intensive executors at home there."""
        need = np.where(intensive, np.maximum(self.granted - self.have, 0), 0)
        wanted = np.bincount(home, need, minlength=len(self.free))
        spare = np.maximum(self.have - np.where(donors, 1, self.granted), 0)[self._owner]
        given = np.minimum(self.cores[self._node, self._owner], spare)
        return bool((wanted <= self.free + np.bincount(self._node, given, minlength=len(self.free))).all())

    def _loss(self, entries: Ints) -> Floats:
        """C⁻; infinite for an executor's last core, and on a node where it has none."""
        own, here = self._owner[entries], self.cores[self._node[entries], self._owner[entries]]
        have = self.have[own]
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = self.state[own] * (have - here) / (have * (have - 1))
        return np.where((have > 1) & (here > 0), loss, np.inf)

    def local(self, node: int, donors: Flags) -> int | None:
        """The executor that gives up a core of this node at the least cost: one above its grant, or any of the ``donors``."""
        if self.free[node] > 0:
            return NO_DONOR
        entries = np.arange(self._begins[node], self._begins[node + 1])
        costs = np.where(donors[self._owner[entries]], self._loss(entries), self._cost[entries])
        best = int(costs.argmin()) if len(costs) else -1
        return int(self._owner[entries[best]]) if best >= 0 and costs[best] < np.inf else None

    def anywhere(self, j: int, home: int) -> tuple[int, int | None]:
        """The node and the donor with the least C⁻ + C⁺; at equal cost, free cores and cores at home come first."""
        have = self.have[j]
        gain = self.state[j] * (have - self.cores[:, j]) / (have * (have + 1)) if have else np.zeros(len(self.free))
        empty = np.where(self.free > 0, gain, np.inf)
        node = home if empty[home] <= empty.min() else int(empty.argmin())
        cost, donor = empty[node], NO_DONOR if empty[node] < np.inf else None
        if len(self._cost):
            total = self._cost + gain[self._node]
            best = int(total.argmin())
            if total[best] < cost:
                node, donor, cost = int(self._node[best]), int(self._owner[best]), total[best]
        if node != home and donor is not None and self.free[home] == 0:
            at_home = slice(self._begins[home], self._begins[home + 1])
            costs = self._cost[at_home] + gain[home]
            if len(costs) and costs.min() <= cost:
                return home, int(self._owner[at_home][costs.argmin()])
        return node, donor

    def trade(self, node: int, donor: int, j: int) -> None:
        self.cores[node, j] += 1
        self.have[j] += 1
        if donor == NO_DONOR:
            self.free[node] -= 1
            return
        self.cores[node, donor] -= 1
        self.have[donor] -= 1
        entries = np.flatnonzero(self._owner == donor)
        self._cost[entries] = self._loss(entries) if self.have[donor] > self.granted[donor] else np.inf
