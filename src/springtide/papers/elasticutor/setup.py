"""Elasticutor's set-ups (section 5) in the simulator: the micro-benchmark, and the stock exchange.

The paper describes the micro-benchmark in full, except for the queues, the messages and the scheduler's period, for which
``engine`` states its assumptions. A single executor (figures 13 to 15) has 8,192 shards, the operator's number, because 256
shards could not be balanced over 256 cores.

Of the exchange the paper gives the graph, the sizes of tuples and states, and the results, but neither the data nor the costs.
The assumptions, which the rows repeat if they matter:

    1,200 stocks    of Zipf-0.5 popularity, each times a lognormal factor of deviation 1, which changes every 30 s on average
    1 transaction   for every order, to all 11 operators after the transactor
    12 equal costs  of 55.8 µs: from the 66,600 tuples/s of 8 nodes in table 3 alone
    n/4 executors   of each operator on n nodes: the default of 32 would make 384 for 256 cores
    300 MB          of state for the transactor and for each statistic, and 10 MB for each event operator
    80 %            of Elasticutor's capacity is the input where latencies and transfers are measured, and T_max is 1.5 times
                    the work itself: above every capacity, all queues are full and all cores are in use under any scheduler
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from springtide.papers.elasticutor.engine import Elastic, ElasticOperator, ElasticResult, Keys, run

Floats = npt.NDArray[np.float64]
Progress = Callable[[str], None]

STATIC, CENTRIC, NAIVE, ELASTIC = "static", "resource-centric", "naive-ec", "elasticutor"
THREE = (STATIC, CENTRIC, ELASTIC)
KEYS, SKEW = 10_000, 0.5
KB, MB = 1024.0, 1024.0**2

STOCKS, SPREAD, KEEP_S = 1_200, 1.0, 30.0
WORK_S = 0.67e-3
"""The time of an order at all 12 operators."""
STATISTICS, EVENTS = 6, 5
ORDER, TRANSACTION = 96.0, 160.0
SENT = 0.8
TARGET = 1.5


def shuffled(skew: float, per_minute: float) -> Keys:
    """10,000 keys whose shares are permuted ``per_minute`` times a minute."""

    def shares(rng: np.random.Generator) -> Iterator[Floats]:
        weights = np.arange(1.0, KEYS + 1) ** -skew
        while True:
            yield rng.permutation(weights / weights.sum())

    return Keys(f"Zipf-{skew}", shares, 60 / per_minute if per_minute else math.inf)


def traded() -> Keys:
    """The stocks' shares, which change every second."""

    def shares(rng: np.random.Generator) -> Iterator[Floats]:
        popular = rng.permutation(np.arange(1.0, STOCKS + 1) ** -SKEW)
        factor = np.exp(SPREAD * rng.standard_normal(STOCKS))
        while True:
            weights = popular * factor
            yield weights / weights.sum()
            changed = rng.random(STOCKS) < 1 / KEEP_S
            factor[changed] = np.exp(SPREAD * rng.standard_normal(int(changed.sum())))

    return Keys("stocks", shares, 1.0)


def micro(
    paradigm: str, omega: float = 2.0, skew: float = SKEW, cost_ms: float = 1.0, size: float = 128.0, state: float = 32 * KB,
    executors: int = 32, shards: int = 256, upstream: int = 32,
) -> Elastic:  # fmt: skip
    operator = ElasticOperator(cost_ms / 1000, size, 0.0, state)
    return Elastic(paradigm, shuffled(skew, omega), (operator,), executors, shards, upstream=upstream)


def single(cores: int, omega: float = 2.0, cost_ms: float = 1.0, size: float = 128.0, state: float = 32 * KB) -> Elastic:
    """A single elastic executor. Latency counts from a tuple's arrival there: the senders buffer as many tuples for a single
    core as for 256, and their waiting would hide all else."""
    return replace(micro(ELASTIC, omega, SKEW, cost_ms, size, state, 1, 8192), cores=cores, buffer=0)


def exchange(paradigm: str, nodes: int = 32) -> Elastic:
    executors = nodes // 4
    shards = executors * 256
    cost_s = WORK_S / (1 + STATISTICS + EVENTS)
    transactor = ElasticOperator(cost_s, ORDER, (STATISTICS + EVENTS) * TRANSACTION, 300e6 / shards)
    statistic = ElasticOperator(cost_s, TRANSACTION, 0.0, 300e6 / shards, from_source=False)
    event = ElasticOperator(cost_s, TRANSACTION, 0.0, 10e6 / shards, from_source=False)
    return Elastic(
        paradigm, traded(), (transactor, *(statistic,) * STATISTICS, *(event,) * EVENTS), executors=executors, nodes=nodes
    )


def loaded(setup: Elastic, rate: float) -> Elastic:
    """The set-up with an input of ``rate``."""
    return replace(setup, offered=rate, target_s=TARGET * WORK_S)


@dataclass
class Lab:
    """Runs every set-up once with each seed, and caches the results. It calls ``progress`` before every run."""

    seeds: int = 1
    seconds: float = 60.0
    progress: Progress = lambda _: None
    _results: dict[Elastic, list[ElasticResult]] = field(default_factory=dict)

    def runs(self, setup: Elastic) -> list[ElasticResult]:
        setup = replace(setup, seconds=self.seconds)
        if setup not in self._results:
            self._results[setup] = [self._run(setup, seed) for seed in range(self.seeds)]
        return self._results[setup]

    def _run(self, setup: Elastic, seed: int) -> ElasticResult:
        self.progress(f"{setup.paradigm}, seed {seed}")
        return run(setup, seed)

    def throughputs(self, setup: Elastic) -> list[float]:
        return [result.throughput for result in self.runs(setup)]

    def throughput(self, setup: Elastic) -> float:
        return float(np.mean(self.throughputs(setup)))

    def latencies_ms(self, setup: Elastic) -> list[float]:
        return [1000 * result.latency_s for result in self.runs(setup)]

    def latency_ms(self, setup: Elastic) -> float:
        return float(np.mean(self.latencies_ms(setup)))
