"""POSG's streams (section V-A) in the simulator: a source, an operator with k replicas, and a grouping between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.apps import tweets
from springtide.policy import registry
from springtide.policy.group import Continual, Online, kernel
from springtide.policy.group.posg.machine import Machine, choose, completed
from springtide.sim import ByItem, Given, Model, Operator, Source, Speeds, simulate

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SERIES = ("round-robin", "posg", "full-knowledge", "tide")
"""The compared groupings."""
PAPERS_OWN = {"columns_27": True}
"""Section V-A uses matrices with 54 columns at ε = 0.05, although e/ε gives 55."""


@dataclass(frozen=True)
class StreamSetup:
    """The parameters of a stream; the defaults are the paper's."""

    zipf: float = 1.0
    provisioning: float = 1.0
    w_max_ms: float = 64.0
    w_n: int = 64
    k: int = 5
    m: int = 32_768
    n: int = 4_096
    speeds: tuple[Speeds, ...] = ()
    tweets: bool = False

    @lru_cache(maxsize=100)  # noqa: B019  each series goes through the same streams
    def stream(self, seed: int) -> tuple[Ints, Floats]:
        """The items of m tuples, and the seconds of every item: n/w_n random items have each of the w_n execution times."""
        random = np.random.default_rng(seed)
        if self.tweets:
            shares = [round(self.n * percent / 100) for percent in tweets.KINDS.values()]
            seconds = np.repeat([tweets.WAIT_S[kind] for kind in tweets.KINDS], shares)
        else:
            seconds = np.repeat(np.linspace(1.0, self.w_max_ms, self.w_n) / 1000, self.n // self.w_n)
        random.shuffle(seconds)
        return np.searchsorted(_zipf(self.n, self.zipf), random.random(self.m)), seconds


TWEETS = StreamSetup(zipf=tweets.EXPONENT, m=500_000, n=tweets.ENTITIES, tweets=True)
"""Figure 12. The paper does not give the number of entities of each class; those of the topology ``tweets`` are taken."""
CHANGE = 75_000
SHIFTED = StreamSetup(
    m=150_000, speeds=(Speeds((1.05, 1.025, 1.0, 0.975, 0.95)), Speeds((0.90, 0.95, 1.0, 1.05, 1.10), from_record=CHANGE))
)
"""Figures 10 and 11: the instances' execution times change at tuple 75,000."""


@cache
def _zipf(n: int, exponent: float) -> Floats:
    weights = np.arange(1, n + 1, dtype=np.float64) ** -exponent
    return np.cumsum(weights / weights.sum()).clip(max=1.0)


@dataclass(frozen=True, eq=False)
class StreamRun:
    """A stream under a grouping: each tuple's completion time, and the grouping's final state."""

    completion_s: Floats
    messages: int
    state: Any


def run(
    setup: StreamSetup, series: str, seed: int, settings: Mapping[str, object] | None = None, watched: bool = False
) -> StreamRun:
    """Run a stream. Tuples come at equal intervals: k/W̄ a second at 100 % provisioning, for a mean execution time of W̄."""
    items, seconds = setup.stream(seed)
    chosen = {**(PAPERS_OWN if series == "posg" else {}), **(settings or {})}
    rate = setup.k / float(seconds[items].mean()) / setup.provisioning
    grouping = _Observed(registry.create("group", series, chosen), watched)
    model = Model(
        "posg",
        sources=(Source("source", rate=rate, items=Given(items)),),
        operators=(Operator("operator", ("source",), ByItem(seconds), replicas=setup.k, speeds=setup.speeds),),
    )
    outcome = simulate(model, grouping=grouping, seed=seed, records=setup.m, by_record=True)
    assert outcome.latencies_s is not None
    return StreamRun(outcome.latencies_s, int(outcome.summary["control_messages"] or 0), grouping.state)


def scaled(setup: StreamSetup, k: int) -> StreamSetup:
    """The set-up with k instances, and as many tuples for each instance as with five."""
    return replace(setup, k=k, m=StreamSetup.m * k // 5)


class _Observed:
    """A grouping whose final state can be read."""

    def __init__(self, grouping: Any, watched: bool) -> None:
        self.name, self.grouping, self.watched, self.state = grouping.name, grouping, watched, None

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        inner: Continual = self.grouping
        made = inner.online(k, seed, before)
        if self.watched:
            state = Watch(made.state, np.zeros(k, dtype=np.int64), made.state.messages)
            made = Online(state, watched_choose, watched_completed)
        self.state = made.state
        return made


class Watch(NamedTuple):
    """POSG's state, and the tuple at which each instance's matrices first arrived after the change of figure 10."""

    machine: Machine
    arrived: Ints
    messages: Ints


@kernel
def watched_choose(state: Watch, key: int, now: float, free: Floats, queue: Ints) -> int:
    return choose(state.machine, key, now, free, queue)


@kernel
def watched_completed(state: Watch, target: int, key: int, cost: float, now: float) -> None:
    before = state.messages[0]
    completed(state.machine, target, key, cost, now)
    if state.messages[0] > before and state.arrived[target] == 0 and state.machine.tuples[0] > CHANGE:
        state.arrived[target] = state.machine.tuples[0]
