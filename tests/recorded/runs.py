"""Four runs that were recorded on Spark, as topologies to record and as models to simulate.

    calibration  steps of rate, degrees from 1 to 4: what constants are fitted to
    light        few records, little work: batches are all but fixed costs
    skewed       keys by Zipf's law and costs by key, routed by hash: one task has much more to do than the others
    overloaded   after a while more work comes than the slots can do: batches grow, and the backlog with them

Every record's key is a pure function of its number, so the simulator gets the very records that Spark got.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

import springtide as st
from springtide.model.generated import base_of, draws
from springtide.model.rate import Rate
from springtide.model.topology import Topology
from springtide.sim import ByItem, Given, Model, Operator, Source

KEYS = 512


@dataclass(frozen=True)
class Item:
    key: int


@dataclass(frozen=True)
class Run:
    """One of them. ``seconds`` a record costs on average; by key, from 1/32 to twice that, if it is ``uneven``."""

    rate: Rate
    seconds: float
    grouping: str
    policy: str
    settings: Mapping[str, object]
    max_slots: int
    uneven: bool = False
    settled_s: float = 25.0  # in the schedule: until then workers start, and the JVM compiles
    duration_s: float = 45.0

    def topology(self) -> Topology:
        stream = st.source.generate(item, rate=self.rate)
        worked = stream.map(Work(self.seconds, self.uneven), schema=Item, name="work", grouping=self.grouping, by="key")
        return worked.to(st.sink.discard(), name="nowhere").named("recorded")

    def model(self, first: int, until_s: float, overslept_s: float) -> Model:
        """From the record ``first`` on, up to a time in seconds of the schedule; a record takes ``overslept_s`` longer than it
        is told to sleep."""
        count = self.rate.count(until_s)
        times = self.rate.created(first, count)
        source = Source("source", self.rate, Given(keys_of(first, count)), times=times)
        costs = np.array([cost_of(key, self.seconds, self.uneven) for key in range(KEYS)]) + overslept_s
        return Model("recorded", (source,), (Operator("work", ("source",), ByItem(costs), grouping=self.grouping),))


def item(draw: st.Draw) -> Item:
    return Item(int(np.searchsorted(_shares(), draw.random.random())))


@dataclass(frozen=True)
class Work:
    """Waits, as for something outside."""

    seconds: float
    uneven: bool

    def __call__(self, one: Item) -> Item:
        time.sleep(cost_of(one.key, self.seconds, self.uneven))
        return one


def cost_of(key: int, seconds: float, uneven: bool) -> float:
    return seconds * (1 + base_of(("cost", key)) % 64) / 32.5 if uneven else seconds


def keys_of(first: int, last: int) -> npt.NDArray[np.int64]:
    return np.array([item(draw).key for draw in draws(0, first, [0] * (last - first))], dtype=np.int64)


@cache
def _shares() -> npt.NDArray[np.float64]:
    weights = 1.0 / np.arange(1, KEYS + 1)
    return np.asarray(np.cumsum(weights / weights.sum()))


def steps(*values: float, every_s: float = 8.0) -> Rate:
    return Rate(tuple(every_s * i for i in range(len(values))), values)


RUNS: dict[str, Run] = {
    "calibration": Run(
        steps(50, 50, 50, 50, 400, 100, 800, 200, 1200, 50), 0.0005, "round-robin", "scripted",
        {"script": "work 0:2 30:1 45:4 60:3"}, 4, duration_s=80,
    ),
    "light": Run(steps(40), 0.001, "round-robin", "static", {"degree": 2}, 2),
    "skewed": Run(steps(250), 0.004, "hash", "static", {"degree": 4}, 4, uneven=True),
    "overloaded": Run(
        steps(50, 50, 50, 50, 50, 50, 50, 50, 400), 0.008, "round-robin", "static", {"degree": 3}, 3,
        settled_s=64, duration_s=100,
    ),
}  # fmt: skip


def reduced(reports: list[dict[str, Any]], started: float) -> list[dict[str, Any]]:
    """What is kept of a run's batches: times in seconds of the schedule, to the tenth of a millisecond."""

    def at(time_s: float) -> float:
        return round(time_s - started, 4)

    lines = []
    for report in reports:
        tasks = [
            [t["operator"], t["task"], t["rows_in"], round(t["busy_s"] or 0.0, 5), at(t["started"]), at(t["finished"])]
            for t in report["tasks"]
        ]
        latency = report["latency_ms"]
        lines.append(
            {
                "batch": report["batch"], "started": at(report["started"]), "committed": at(report["committed"]),
                "rows_in": report["rows_in"], "latency_ms": None if latency is None else round(latency["mean"], 2),
                "widths": report["plan"]["widths"], "tasks": tasks,
            }
        )  # fmt: skip
    return lines
