"""The future for the clairvoyant: the arrivals at each operator in each second, and their costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from springtide.model.rate import Rate
from springtide.policy.scale.clairvoyant import Clairvoyant, Foreseen, FutureWork
from springtide.sim.draws import chances_of, generator
from springtide.sim.kernels import Floats
from springtide.sim.model import Model, Operator, Source

DRAWN = 20_000


def future_of(model: Model, end_s: float, seed: int, max_slots: int) -> list[FutureWork]:
    """The future work of each operator, in the model's order. Arrivals follow the rates, without their random variation."""
    seconds = math.ceil(end_s)
    coming = {source.name: _per_second(source.steps, seconds) for source in model.sources}
    visits = {source.name: model.visits(source, seed) for source in model.sources}
    found = []
    for operator in model.operators:
        arrivals = sum((coming[name] * visits[name][operator.name] for name in coming), np.zeros(seconds))
        mean, spread = _cost(model.sources[0], operator, seed)
        poisson = float(any(source.arrivals == "poisson" for source in model.sources))
        limit = min(operator.parallelism or max_slots, max_slots)
        found.append(FutureWork(operator.name, arrivals, mean, limit, (poisson + spread) / 2))
    return found


def foreseen(
    bound: Clairvoyant, model: Model, end_s: float, seed: int, max_slots: int, interval_s: float, target_s: float
) -> Foreseen:
    """The clairvoyant that knows this model's future. It computes replicas of stations, but decides degrees of operators: every
    operator of a chain has one replica, and the head gets the rest of the station's replicas."""
    foreseen = bound.for_future(future_of(model, end_s, seed, max_slots), interval_s, target_s)
    degrees: dict[str, tuple[int, ...]] = {}
    for operator in model.operators:
        own = tuple(max(1, replicas - (len(operator.folded) - 1)) for replicas in foreseen.degrees[operator.name])
        before = degrees.get(operator.head)  # an operator in the tasks of several chains adds them up
        degrees[operator.head] = own if before is None else tuple(a + b for a, b in zip(before, own, strict=True))
    return replace(foreseen, degrees=degrees)


def _per_second(rate: Rate, seconds: int) -> Floats:
    edges = np.arange(seconds + 1, dtype=np.float64)
    steps = rate.steps
    counts = np.interp(edges, steps.edges, steps.counts) if np.isfinite(steps.edges[-1]) else None
    if counts is None:  # the last step never ends: continue at its rate
        finite = np.interp(edges, steps.edges[:-1], steps.counts[:-1])
        counts = finite + np.maximum(0.0, edges - steps.edges[-2]) * steps.values[-1]
    return np.diff(counts)


def _cost(source: Source, operator: Operator, seed: int) -> tuple[float, float]:
    """A record's mean cost, and its squared coefficient of variation."""
    random = generator(seed, f"future of {operator.name}")
    items = np.arange(DRAWN, dtype=np.int64)
    if source.items is not None:
        chances = chances_of(source.items, generator(seed, f"items of {source.name}"))
        items = random.choice(len(chances), DRAWN, p=chances / chances.sum())
    costs = np.empty(DRAWN)
    operator.cost.draw(random, items, costs)
    mean = float(getattr(operator.cost, "mean", costs.mean()))
    return mean, float(costs.var() / mean**2) if mean > 0 else 0.0
