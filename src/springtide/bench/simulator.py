"""The speed of the simulator: the same M/M/k model in SimPy and in Springtide, through ``simulate``, in the same run.

Records come as a Poisson process, wait in a single queue, and are served by k servers in exponential time. In Springtide that
is an operator with k replicas whose grouping sends each record to the replica that is free first. An event is the departure of
a record on both sides; both draw their random numbers from numpy, in blocks. Each side runs once to warm up, then they take
turns, in an order that changes from round to round.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any, TextIO

import numpy as np

from springtide.errors import SetupError
from springtide.sim import Exponential, Model, Operator, Source, simulate

SERVERS, LOAD = 8, 0.9
RECORDS, SIMPY_RECORDS = 4_000_000, 100_000

Side = Callable[[int, int], float]
"""Simulates a number of records with a seed. Returns the mean time from arrival to departure, in mean service times."""


def measure(rounds: int = 7, records: int = RECORDS, progress: TextIO = sys.stderr) -> dict[str, Any]:
    """Medians over the rounds, and ratios within a round with their quartiles."""
    if importlib.util.find_spec("simpy") is None:
        raise SetupError("simpy is not installed; pip install 'springtide[bench]'")
    theirs = max(1_000, min(SIMPY_RECORDS, records))
    sides: list[tuple[str, Side, int]] = [("springtide", ours, records), ("simpy", with_simpy, theirs)]
    speeds: dict[str, list[float]] = {name: [] for name, _, _ in sides}
    means: dict[str, list[float]] = {name: [] for name, _, _ in sides}
    for number in range(rounds + 1):
        for name, side, count in sides if number % 2 else reversed(sides):
            begin = time.perf_counter()
            mean = side(count, number)
            if number:
                speeds[name].append(count / (time.perf_counter() - begin))
                means[name].append(mean)
        print(f"round {number} of {rounds}{'' if number else ' (warm-up)'}", file=progress, flush=True)
    ratios = [ours / theirs for ours, theirs in zip(speeds["springtide"], speeds["simpy"], strict=True)]
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return {
        "model": {"k": SERVERS, "rho": LOAD},
        "records": records,
        "simpy_records": theirs,
        "rounds": rounds,
        "events_per_s": round(statistics.median(speeds["springtide"])),
        "simpy_events_per_s": round(statistics.median(speeds["simpy"])),
        "ratio": round(float(middle), 1),
        "ratio_iqr": [round(float(low), 1), round(float(high), 1)],
        "mean_sojourn": {
            "springtide": round(statistics.fmean(means["springtide"]), 4),
            "simpy": round(statistics.fmean(means["simpy"]), 4),
            "closed_form": round(mean_sojourn(SERVERS, LOAD), 4),
        },
    }


def ours(records: int, seed: int) -> float:
    """The model, simulated by Springtide."""
    model = Model(
        "mmk", (Source("source", SERVERS * LOAD, arrivals="poisson"),),
        (Operator("servers", ("source",), Exponential(1.0), replicas=SERVERS),),
    )  # fmt: skip
    outcome = simulate(model, grouping="full-knowledge", records=records, seed=seed)
    return float(outcome.summary["latency_ms"]["mean"]) / 1000


def with_simpy(records: int, seed: int) -> float:
    """The model as SimPy's users write it for speed: servers that take records from a store.

    A process for every record, with a ``Resource``, takes 1.4 times as long.
    """
    import simpy

    environment = simpy.Environment()
    queue = simpy.Store(environment)
    random = np.random.default_rng(seed)
    gaps, services = _exponentials(random, 1 / (SERVERS * LOAD)), _exponentials(random, 1.0)
    total = 0.0

    def server() -> Iterator[Any]:
        nonlocal total
        while True:
            came = yield queue.get()
            yield environment.timeout(next(services))
            total += environment.now - came

    def source() -> Iterator[Any]:
        for gap in _first(gaps, records):
            yield environment.timeout(gap)
            queue.put(environment.now)

    for _ in range(SERVERS):
        environment.process(server())
    environment.process(source())
    environment.run()
    return total / records


def _exponentials(random: np.random.Generator, mean: float) -> Iterator[float]:
    return chain.from_iterable(random.exponential(mean, 10_000).tolist() for _ in repeat(None))


def _first(numbers: Iterator[float], count: int) -> Iterator[float]:
    return (number for number, _ in zip(numbers, range(count), strict=False))


def mean_sojourn(servers: int, load: float) -> float:
    """The closed form for M/M/k, in mean service times: 1 + C/(k·(1 - ρ)), with Erlang's C by the recursion for B.

    >>> round(mean_sojourn(1, 0.5), 6)
    2.0
    """
    offered, blocked = servers * load, 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    waits = blocked / (1 - load * (1 - blocked))
    return 1 + waits / (servers * (1 - load))
