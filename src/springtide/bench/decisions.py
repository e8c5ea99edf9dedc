"""How long one decision of every scaling policy takes, for 10, 100 and 1,000 operators on as many nodes.

A made-up cluster: trees of operators, some of which read two others, with rates, costs and selectivities by a seed, sources
that tell their arrivals by the second, and replicas that lie on nodes by chance. Its load moves a little from one interval to
the next. Every policy sees the same intervals, first those that fill its windows, forecasts and caches, then those that are
timed, and carries its state on. Degrees stay as they are, as in a dry run, so that everybody has something to ask for and no
policy waits for a change to settle. The policies take turns; a round's time is the median of its decisions that asked for
changes, and told is the least of the rounds, as noise only adds.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

import numpy as np

from springtide.bench.statistics import turned
from springtide.model.plan import Plan
from springtide.model.snapshot import NodeSnapshot, OperatorSnapshot, ReplicaSnapshot, Snapshot, SourceSnapshot
from springtide.policy import registry
from springtide.policy.scale import ScalePolicy

SIZES = (10, 100, 1_000)
LIMIT_MS = 50.0
"""What a decision may take with 1,000 operators."""
EXEMPT = ("q-learning", "model-based", "rlearning", "clairvoyant")
"""Learners keep tables for each operator, and the clairvoyant decides before a run, not in it."""
INTERVAL_S = 30
WARM, TIMED, ROUNDS = 24, 8, 3
"""Intervals before, and in each round. Flink's rule looks back over 15 after 5 that it ignores; spark-ratio decides in every
other one."""
EXEMPT_WARM, EXEMPT_TIMED = 6, 3
"""The same for those that nothing is asked of, in one round: a decision of model-based takes a second."""


@dataclass(frozen=True)
class _Operator:
    """What does not change from interval to interval. ``inputs``: whom it reads, as an index; below 0 a source."""

    name: str
    inputs: tuple[int, ...]
    selectivity: float
    cost_s: float
    degree: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class _Cluster:
    rates: tuple[float, ...]
    operators: tuple[_Operator, ...]
    target_s: float


def measure(sizes: Sequence[int] = SIZES, rounds: int = ROUNDS, seed: int = 0, progress: TextIO = sys.stderr) -> dict[str, Any]:
    """All registered policies, with their default parameters."""
    rows = []
    for size in sizes:
        intervals = snapshots(size, WARM + rounds * TIMED, seed)
        gc.collect()
        gc.freeze()  # no run has so many intervals in memory; the collector shall not look through them again and again
        try:
            rows += _timed(size, intervals, rounds, seed)
        finally:
            gc.unfreeze()
        print(f"{size:,} operators: done", file=progress, flush=True)
    return {"interval_s": INTERVAL_S, "limit_ms": LIMIT_MS, "rounds": rounds, "rows": rows, "growth": growth(rows)}


def _timed(size: int, intervals: Sequence[Snapshot], rounds: int, seed: int) -> list[dict[str, Any]]:
    """A row for each policy."""
    found = registry.available("scale")
    took: dict[str, list[list[float]]] = {cls.name: [] for cls in found}
    held = [cls for cls in found if cls.name not in EXEMPT]
    runs = {cls.name: _Run(cls(), seed) for cls in held}
    for run in runs.values():
        run.decisions(intervals[:WARM])
    for number in range(rounds):
        part = intervals[WARM + number * TIMED :][:TIMED]
        for name in turned(tuple(runs), number):
            took[name].append(runs[name].decisions(part))
    for cls in found:
        if cls.name in EXEMPT and not getattr(cls, "simulator_only", False):
            run = _Run(cls(), seed)
            run.decisions(intervals[WARM - EXEMPT_WARM : WARM])
            took[cls.name].append(run.decisions(intervals[WARM : WARM + EXEMPT_TIMED]))
    return [
        {"policy": name, "operators": size, "nodes": size, "ms": _least(each), "exempt": name in EXEMPT,
         "decisions": sum(map(len, each))}
        for name, each in took.items()
    ]  # fmt: skip


def _least(rounds: Sequence[Sequence[float]]) -> float | None:
    """Milliseconds: the least of the medians."""
    medians = [statistics.median(each) for each in rounds if each]
    return round(1000 * min(medians), 3) if medians else None


def growth(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By policy, how many times as long each size takes as the one before it.

    >>> row = {"policy": "a", "nodes": 1}
    >>> growth([{**row, "operators": 10, "ms": 2.0}, {**row, "operators": 100, "ms": 5.0}])
    [{'policy': 'a', 'factors': [2.5]}]
    """
    found: dict[str, list[float | None]] = {}
    for row in rows:
        found.setdefault(row["policy"], []).append(row["ms"])
    return [
        {"policy": policy, "factors": [round(b / a, 2) if a and b else None for a, b in itertools.pairwise(each)]}
        for policy, each in found.items()
    ]


class _Run:
    """A policy that goes from interval to interval, with what it remembers."""

    def __init__(self, policy: ScalePolicy, seed: int) -> None:
        self._policy, self._state, self._rng = policy, policy.initial(), np.random.default_rng(seed)

    def decisions(self, intervals: Sequence[Snapshot]) -> list[float]:
        """Seconds of those decisions that asked for changes."""
        took = []
        for snapshot in intervals:
            fresh = replace(snapshot)  # by_name is cached: whoever came before must not have paid for it
            begin = time.perf_counter()
            self._state, requests = self._policy.decide(self._state, fresh, self._rng)
            seconds = time.perf_counter() - begin
            if requests:
                took.append(seconds)
        return took


def snapshots(size: int, count: int, seed: int) -> list[Snapshot]:
    """So many intervals of one cluster, whose input swells and ebbs by a fifth."""
    chance = random.Random(seed)
    cluster = _cluster(size, chance)
    backlogs = [0] * size
    made = []
    for number in range(count):
        level = 1 + 0.2 * math.sin(2 * math.pi * number / 20)
        made.append(_snapshot(cluster, number, level, backlogs, chance))
        backlogs = [operator.backlog or 0 for operator in made[-1].operators]
    return made


def _cluster(size: int, chance: random.Random) -> _Cluster:
    """Every 50 operators a source; each operator reads one that came before it, and one in ten reads two."""
    rates = tuple(chance.uniform(500, 5_000) for _ in range(max(1, size // 50)))
    operators: list[_Operator] = []
    leaving: list[float] = []
    work = 0.0
    for i in range(size):
        inputs: tuple[int, ...] = (-1 - i,) if i < len(rates) else (chance.randrange(i),)
        if i >= len(rates) + 1 and chance.random() < 0.1:
            inputs = tuple(chance.sample(range(i), 2))
        rate = sum(rates[-1 - j] if j < 0 else leaving[j] for j in inputs)
        short = i % 5 == 1  # one in five has half the replicas that it needs
        load = chance.uniform(1.2 if short else 0.3, 5.0)  # replicas of work
        degree = max(1, math.ceil(load * (0.5 if short else chance.uniform(0.8, 2.0))))
        selectivity = chance.uniform(0.5, 1.1)
        nodes = tuple(chance.randrange(size) for _ in range(degree))
        operators.append(_Operator(f"operator{i}", inputs, selectivity, load / rate, degree, nodes))
        leaving.append(rate * selectivity)
        work += load
    return _Cluster(rates, tuple(operators), 4 * work / sum(rates))  # four times as long as a record's work


def _snapshot(cluster: _Cluster, number: int, level: float, backlogs: Sequence[int], chance: random.Random) -> Snapshot:
    """One interval: records flow from the sources on, as far as the replicas keep up."""
    sources = []
    for i, rate in enumerate(cluster.rates):
        arrivals = tuple(max(0.0, float(round(chance.gauss(rate * level, 0.1 * rate)))) for _ in range(INTERVAL_S))
        sources.append(SourceSnapshot(f"source{i}", int(sum(arrivals)), arrivals, sum(arrivals) / INTERVAL_S, 0))
    used = [0.0] * len(cluster.operators)
    operators: list[OperatorSnapshot] = []
    for one, waited in zip(cluster.operators, backlogs, strict=True):
        made = _measured(one, waited, sources, operators, chance)
        operators.append(made)
        for node, replica in zip(one.nodes, made.replicas, strict=True):
            used[node] += replica.utilisation or 0.0
    degrees = {operator.name: operator.degree for operator in operators}
    return Snapshot(
        at=float(INTERVAL_S * (number + 1)), interval_s=float(INTERVAL_S), plan=Plan(degrees, sum(degrees.values()), degrees),
        operators=tuple(operators), batches=(), rate=sum(source.rows or 0 for source in sources) / INTERVAL_S,
        backlog=sum(operator.backlog or 0 for operator in operators), latency=None, sources=tuple(sources),
        nodes=tuple(NodeSnapshot(f"node{i}", 8, round(cores, 3)) for i, cores in enumerate(used)),
        target_s=cluster.target_s, slots=3 * sum(degrees.values()), starting_s=5.0,
    )  # fmt: skip


def _measured(
    one: _Operator, waited: int, sources: Sequence[SourceSnapshot], operators: Sequence[OperatorSnapshot], chance: random.Random
) -> OperatorSnapshot:
    inputs = []
    for j in one.inputs:
        name, rows = (sources[-1 - j].name, sources[-1 - j].rows) if j < 0 else (operators[j].name, operators[j].rows_out)
        inputs.append((name, rows or 0))
    came = sum(rows for _, rows in inputs)
    cost = one.cost_s * chance.uniform(0.95, 1.05)
    served = min(came + waited, int(one.degree * INTERVAL_S / cost))
    left = min(came + waited - served, 10 * came // INTERVAL_S)  # what waits longer than 10 s, the source holds back
    used = min(1.0, served * cost / one.degree / INTERVAL_S)
    return OperatorSnapshot(
        one.name, one.degree, one.degree, came, int(served * one.selectivity), 0, busy_s=used * one.degree * INTERVAL_S,
        rate=came / INTERVAL_S, utilisation=used, backlog=left, latency_ms=1000 * cost * (1 + left / one.degree), served=served,
        inputs=tuple(inputs), limit=16,
        replicas=tuple(ReplicaSnapshot(f"node{i}", min(1.0, used * chance.uniform(0.9, 1.1))) for i in one.nodes),
    )  # fmt: skip
