"""Elasticutor's model: the fewest replicas for which the mean time of a record in the graph meets the target.

Source: Wang et al.: "Elasticutor: rapid elasticity for realtime stateful stream processing", SIGMOD 2019, section 4.1. Every
operator is an M/M/k station of a Jackson network. The choice of nodes (section 4.2) is not part of this policy.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes
from springtide.policy.scale.erlang import erlang_b, erlang_b_next, least_stable, queue_length
from springtide.policy.scale.measured import arrival_rates, carried, known_costs, shares, shown

_NEAR = 1.01
"""Without a limit of slots, a latency within 1 % of the work alone meets any target: the work alone would need infinitely many
replicas."""

_NOTHING = 1e-9
"""A smaller relative decrease of E[T] counts as none, so that replicas without effect are not added."""


@dataclass(frozen=True)
class Queueing(ScalePlugin):
    """Starts with the least stable allocation, ⌊λ/μ⌋ + 1, and adds the replica that lowers E[T] most until E[T] ≤ T_max.

    E[T] = (1/λ₀)·Σ λ_j·E[T_j] (equation 1). It ends early when all slots are used; if they do not suffice to keep up, they are
    divided in proportion to the load. Without a target, the stable allocation is the result.

    λ_j follows from λ₀ by the network's traffic equations, so that a bottleneck does not hide it. An operator that cannot keep
    up because of its limit is excluded from E[T], since replicas elsewhere do not help. An operator with an unknown cost or
    input retains its degree.
    """

    name = "queueing"
    source = "Elasticutor (SIGMOD 2019), section 4.1"
    summary = "the fewest replicas whose mean latency, by a network of M/M/k queues, keeps the target"

    target: float = parameter(0.0, "s", 0, help="T_max, the target of the mean latency; 0: the run's target")

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        if not snapshot.interval_s > 0:
            return state, ()
        theta = shares(state.get("shares", {}), snapshot)
        costs = known_costs(state.get("cost_s", {}), snapshot)
        arriving = arrival_rates(snapshot)
        rates = carried(snapshot, theta, arriving)
        known = [o for o in snapshot.operators if o.name in rates and o.name in costs]
        others = sum(o.degree for o in snapshot.operators if o.name not in rates or o.name not in costs)
        slots = None if snapshot.slots is None else max(len(known), snapshot.slots - others)
        loads = [rates[o.name] * costs[o.name] for o in known]
        input_rate = sum(arriving.values())  # λ₀
        target = self.target or snapshot.target_s or math.inf
        # By Little's law λ₀·E[T] is the number of records in the graph; without input there is no latency.
        allowed = input_rate * target if input_rate > 0 else math.inf
        degrees, inside = allocate(loads, [o.limit or 10**9 for o in known], slots, allowed)
        latency = f"E[T] {1000 * inside / input_rate:.4g} ms of {1000 * target:.4g}" if input_rate > 0 else "no input"
        wanted = {
            o.name: (
                degree,
                f"{shown(rates[o.name])}/s of {1000 * costs[o.name]:.4g} ms are a load of {load:.4g}, {latency}: {degree}",
            )
            for o, load, degree in zip(known, loads, degrees, strict=True)
        }
        return {"shares": theta, "cost_s": costs}, changes(snapshot, wanted)


def allocate(loads: Sequence[float], most: Sequence[int], slots: int | None, allowed: float) -> tuple[list[int], float]:
    """The replicas of each station, and the resulting number of records in all stations; infinite if they cannot keep up.

    ``loads``: λ_j/μ_j. ``most``: the limit of each station. ``allowed``: the records allowed in all stations, λ₀·T_max.

    Each further replica shortens a station's queue by less, so the greedy choice is optimal.

    >>> degrees, inside = allocate([1.5, 0.5], [9, 9], 9, allowed=2.5)
    >>> degrees, round(inside, 2)  # (2, 1) hold 3.43 and 1.0 records, (3, 1) 1.74 and 1.0, (3, 2) 1.74 and 0.53
    ([3, 2], 2.27)
    """
    degrees = [min(least_stable(load), limit) for load, limit in zip(loads, most, strict=True)]
    if slots is None:
        allowed = max(allowed, _NEAR * sum(loads))
    elif sum(degrees) > slots:
        return shared_out(loads, [1] * len(loads), most, slots - len(loads)), math.inf
    left = math.inf if slots is None else slots - sum(degrees)
    stations = [_Station(load, degree) for load, degree in zip(loads, degrees, strict=True)]
    steady = [station for station in stations if station.waiting < math.inf]
    inside = math.fsum(station.load + station.waiting for station in steady)
    gains = [(-s.gain, j) for j, s in enumerate(stations) if s.gain < math.inf and s.gain > 0 and s.degree < most[j]]
    heapq.heapify(gains)
    while inside > allowed and left > 0 and gains:
        gain, j = gains[0]
        if -gain < _NOTHING * inside:
            break
        inside, left = inside + gain, left - 1
        stations[j].add()
        if stations[j].gain > 0 and stations[j].degree < most[j]:
            heapq.heapreplace(gains, (-stations[j].gain, j))
        else:
            heapq.heappop(gains)
    return [station.degree for station in stations], inside


class _Station:
    """An M/M/k queue and its gain from another replica, updated by one step of Erlang's recursion at a time."""

    __slots__ = ("_blocking", "_waiting_next", "degree", "gain", "load", "waiting")

    def __init__(self, load: float, degree: int) -> None:
        self.load, self.degree = load, degree
        self._blocking = erlang_b(load, degree)
        self.waiting = queue_length(load, degree, self._blocking)
        self._look_ahead()

    def add(self) -> None:
        self.degree, self.waiting = self.degree + 1, self._waiting_next
        self._look_ahead()

    def _look_ahead(self) -> None:
        more = self.degree + 1
        self._blocking = erlang_b_next(self.load, more, self._blocking)
        self._waiting_next = queue_length(self.load, more, self._blocking)
        self.gain = self.waiting - self._waiting_next if self.waiting < math.inf else math.inf


def shared_out(loads: Sequence[float], degrees: Sequence[int], most: Sequence[int], more: int) -> list[int]:
    """Distribute ``more`` replicas in proportion to the load: each goes to the operator whose replicas have the highest load.

    >>> shared_out([6.0, 3.0, 0.5], [1, 1, 1], [9, 9, 9], 6)
    [5, 3, 1]
    """
    found = list(degrees)
    heaviest = [(-load / found[j], j) for j, load in enumerate(loads) if found[j] < most[j]]
    heapq.heapify(heaviest)
    for _ in range(more):
        if not heaviest:
            break
        j = heaviest[0][1]
        found[j] += 1
        if found[j] < most[j]:
            heapq.heapreplace(heaviest, (-loads[j] / found[j], j))
        else:
            heapq.heappop(heaviest)
    return found
