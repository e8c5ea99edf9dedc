"""Elasticutor's model: the fewest replicas with which a record's mean time through the graph keeps the target.

Source: Wang et al.: "Elasticutor: rapid elasticity for realtime stateful stream processing", SIGMOD 2019, section 4.1. Every
operator is an M/M/k station of a Jackson network. Which node a replica goes to (section 4.2) is not decided here.
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
"""Where nobody bounds the slots, within 1 % of the work alone counts as reached: the work alone would take infinitely many."""

_NOTHING = 1e-9
"""A replica that lowers E[T] by less than this part of it does not lower it: slots are not used up for their own sake."""


@dataclass(frozen=True)
class Queueing(ScalePlugin):
    """From the least allocation that keeps up, ⌊λ/μ⌋ + 1, adds the replica that lowers E[T] most, until E[T] ≤ T_max.

    E[T] = (1/λ₀)·Σ λ_j·E[T_j] (equation 1). It ends earlier when the slots are used up; when they do not even suffice to keep
    up, they are dealt out in proportion to the load. Without a target, what keeps up is enough.

    λ_j follows from λ₀ by the network's traffic equations, so that it is not too small behind a bottleneck. An operator that
    its limit keeps from keeping up is left out of E[T]: no replica elsewhere mends it. One whose cost or input is not known
    keeps its degree.
    """

    name = "queueing"
    source = "Elasticutor (SIGMOD 2019), section 4.1"
    summary = "the fewest replicas whose mean latency, by a network of M/M/k queues, keeps the target"

    target: float = parameter(0.0, "s", 0, help="T_max, the mean latency that is wanted; 0: the target of the run")

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
        # By Little's law λ₀·E[T] is the number of records that are in the graph; with no input there is nothing to wait for.
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
    """The replicas of each station, and how many records are in all of them then; infinite if they cannot keep up.

    ``loads``: λ_j/μ_j. ``most``: the limit of each. ``allowed``: how many records may be in all stations, λ₀·T_max.

    What waits at a station falls by less with each replica, so the greedy choice is the best one.

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
    """An M/M/k queue and the same with one replica more, brought forward by one step of Erlang's recursion at a time."""

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
    """So many more replicas, one after another to the operator whose replicas carry the most load: in proportion to the load.

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
