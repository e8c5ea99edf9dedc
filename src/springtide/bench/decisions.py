"""The duration of a decision of every scaling policy, for 10, 100 and 1,000 operators on as many nodes.

The cluster is synthetic: trees of operators, some of which read two others, with random rates, costs and selectivities, sources
that report arrivals by the second, and replicas on random nodes. Its load varies a little from interval to interval. Every
policy sees the same intervals and carries its state on: first intervals that fill its windows, forecasts and caches, then those
that are timed. Degrees stay the same, as in a dry run, so that every policy has changes to request, and none waits for a change
to settle. The policies take turns. A round's time is the median of its decisions with requests; the result is the least of the
rounds, because noise only adds time.
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
"""The longest allowed decision with 1,000 operators."""
EXEMPT = ("q-learning", "model-based", "rlearning", "clairvoyant")
"""Policies without a limit: learners have a table for each operator, and the clairvoyant decides before a run, not in it."""
INTERVAL_S = 30
WARM, TIMED, ROUNDS = 24, 8, 3
"""Intervals to warm up, intervals in a round, and rounds. Flink's rule needs 20, of which it ignores 5; spark-ratio decides in
every second interval."""
EXEMPT_WARM, EXEMPT_TIMED = 6, 3
"""The same for exempt policies, in a single round: a decision of model-based takes a second."""


@dataclass(frozen=True)
class _Operator:
    """The constant properties of an operator. ``inputs``: the indices of its inputs; an index below 0 is a source."""

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
    """Measure all registered policies with their default parameters."""
    rows = []
    for size in sizes:
        intervals = snapshots(size, WARM + rounds * TIMED, seed)
        gc.collect()
        gc.freeze()  # unlike a run, all intervals are in memory; the collector would scan them again and again
        try:
            rows += _timed(size, intervals, rounds, seed)
        finally:
            gc.unfreeze()
        print(f"{size:,} operators: done", file=progress, flush=True)
    return {"interval_s": INTERVAL_S, "limit_ms": LIMIT_MS, "rounds": rounds, "rows": rows, "growth": growth(rows)}


def _timed(size: int, intervals: Sequence[Snapshot], rounds: int, seed: int) -> list[dict[str, Any]]:
    """A row for each policy."""
    policies = registry.available("scale")
    took: dict[str, list[list[float]]] = {cls.name: [] for cls in policies}
    runs = {cls.name: _Run(cls(), seed) for cls in policies if cls.name not in EXEMPT}
    for run in runs.values():
        run.decisions(intervals[:WARM])
    for number in range(rounds):
        part = intervals[WARM + number * TIMED :][:TIMED]
        for name in turned(tuple(runs), number):
            took[name].append(runs[name].decisions(part))
    for cls in policies:
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
    """The least of the rounds' medians, in milliseconds."""
    medians = [statistics.median(each) for each in rounds if each]
    return round(1000 * min(medians), 3) if medians else None


def growth(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each policy, the factors by which the time grows from size to size.

    >>> row = {"policy": "a", "nodes": 1}
    >>> growth([{**row, "operators": 10, "ms": 2.0}, {**row, "operators": 100, "ms": 5.0}])
    [{'policy': 'a', 'factors': [2.5]}]
    """
    times: dict[str, list[float | None]] = {}
    for row in rows:
        times.setdefault(row["policy"], []).append(row["ms"])
    return [
        {"policy": policy, "factors": [round(b / a, 2) if a and b else None for a, b in itertools.pairwise(each)]}
        for policy, each in times.items()
    ]


class _Run:
    """A policy that decides interval by interval, with its state."""

    def __init__(self, policy: ScalePolicy, seed: int) -> None:
        self._policy, self._state, self._rng = policy, policy.initial(), np.random.default_rng(seed)

    def decisions(self, intervals: Sequence[Snapshot]) -> list[float]:
        """The seconds of each decision that requested changes."""
        took = []
        for snapshot in intervals:
            fresh = replace(snapshot)  # a copy, so that by_name is not cached yet: each policy pays for it
            begin = time.perf_counter()
            self._state, requests = self._policy.decide(self._state, fresh, self._rng)
            seconds = time.perf_counter() - begin
            if requests:
                took.append(seconds)
        return took


def snapshots(size: int, count: int, seed: int) -> list[Snapshot]:
    """Snapshots of successive intervals of a cluster whose input varies by a fifth."""
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
    """A cluster with a source for every 50 operators. Each operator reads an earlier one, and every tenth reads two."""
    rates = tuple(chance.uniform(500, 5_000) for _ in range(max(1, size // 50)))
    operators: list[_Operator] = []
    leaving: list[float] = []
    work = 0.0
    for i in range(size):
        inputs: tuple[int, ...] = (-1 - i,) if i < len(rates) else (chance.randrange(i),)
        if i >= len(rates) + 1 and chance.random() < 0.1:
            inputs = tuple(chance.sample(range(i), 2))
        rate = sum(rates[-1 - j] if j < 0 else leaving[j] for j in inputs)
        short = i % 5 == 1  # every fifth operator has half the replicas that it needs
        load = chance.uniform(1.2 if short else 0.3, 5.0)  # replicas of work
        degree = max(1, math.ceil(load * (0.5 if short else chance.uniform(0.8, 2.0))))
        selectivity = chance.uniform(0.5, 1.1)
        nodes = tuple(chance.randrange(size) for _ in range(degree))
        operators.append(_Operator(f"operator{i}", inputs, selectivity, load / rate, degree, nodes))
        leaving.append(rate * selectivity)
        work += load
    return _Cluster(rates, tuple(operators), 4 * work / sum(rates))  # four times as long as a record's work


def _snapshot(cluster: _Cluster, number: int, level: float, backlogs: Sequence[int], chance: random.Random) -> Snapshot:
    """The snapshot of an interval: records flow downstream as far as the replicas keep up."""
    sources = []
    for i, rate in enumerate(cluster.rates):
        arrivals = tuple(max(0.0, float(round(chance.gauss(rate * level, 0.1 * rate)))) for _ in range(INTERVAL_S))
        sources.append(SourceSnapshot(f"source{i}", int(sum(arrivals)), arrivals, sum(arrivals) / INTERVAL_S, 0))
    used = [0.0] * len(cluster.operators)
    operators: list[OperatorSnapshot] = []
    for operator, waited in zip(cluster.operators, backlogs, strict=True):
        made = _measured(operator, waited, sources, operators, chance)
        operators.append(made)
        for node, replica in zip(operator.nodes, made.replicas, strict=True):
            used[node] += replica.utilisation or 0.0
    degrees = {made.name: made.degree for made in operators}
    return Snapshot(
        at=float(INTERVAL_S * (number + 1)), interval_s=float(INTERVAL_S), plan=Plan(degrees, sum(degrees.values()), degrees),
        operators=tuple(operators), batches=(), rate=sum(source.rows or 0 for source in sources) / INTERVAL_S,
        backlog=sum(made.backlog or 0 for made in operators), latency=None, sources=tuple(sources),
        nodes=tuple(NodeSnapshot(f"node{i}", 8, round(cores, 3)) for i, cores in enumerate(used)),
        target_s=cluster.target_s, slots=3 * sum(degrees.values()), starting_s=5.0,
    )  # fmt: skip


def _measured(
    operator: _Operator, waited: int, sources: Sequence[SourceSnapshot], operators: Sequence[OperatorSnapshot],
    chance: random.Random,
) -> OperatorSnapshot:  # fmt: skip
    inputs = []
    for j in operator.inputs:
        name, rows = (sources[-1 - j].name, sources[-1 - j].rows) if j < 0 else (operators[j].name, operators[j].rows_out)
        inputs.append((name, rows or 0))
    arrived, degree = sum(rows for _, rows in inputs), operator.degree
    cost = operator.cost_s * chance.uniform(0.95, 1.05)
    served = min(arrived + waited, int(degree * INTERVAL_S / cost))
    left = min(arrived + waited - served, 10 * arrived // INTERVAL_S)  # at most 10 s of arrivals; the rest waits in the source
    used = min(1.0, served * cost / degree / INTERVAL_S)
    return OperatorSnapshot(
        operator.name, degree, degree, arrived, int(served * operator.selectivity), 0, busy_s=used * degree * INTERVAL_S,
        rate=arrived / INTERVAL_S, utilisation=used, backlog=left, latency_ms=1000 * cost * (1 + left / degree), served=served,
        inputs=tuple(inputs), limit=16,
        replicas=tuple(ReplicaSnapshot(f"node{i}", min(1.0, used * chance.uniform(0.9, 1.1))) for i in operator.nodes),
    )  # fmt: skip
